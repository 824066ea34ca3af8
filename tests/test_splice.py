from __future__ import annotations

import libcst as cst
import pytest
from kvpatch import rewrite
from kvpatch.splice import spliced

TEXT = b"""import os  # kept


class Worker:
    \"\"\"A class.\"\"\"

    def first(self):
        return 1   # odd   spacing

    @property
    def second(self):

        # above
        a = [ 1,2 ]
        return a


def alone(x): return x
"""


def _append(module: cst.Module, name: str, line: str = "added()") -> cst.Module:
    node = rewrite.statement(module, line)
    return rewrite.edit_function(module, name, lambda f: rewrite.append_statement(f, node))


@pytest.mark.parametrize("name", ["Worker.first", "Worker.second"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("indent", [b"    ", b"\t", b"  "])
def test_a_changed_method_is_written_as_the_whole_module_would_be(
    name: str, newline: bytes, indent: bytes
) -> None:
    text = TEXT.replace(b"    ", indent).replace(b"\n", newline)
    stock = rewrite.parse(text)
    edited = _append(stock, name)
    assert spliced(stock, edited, text) == rewrite.generate(edited)


def test_a_new_function_comes_at_the_end() -> None:
    stock = rewrite.parse(TEXT)
    edited = rewrite.append_function(stock, "def new():\n    pass\n")
    after = spliced(stock, edited, TEXT)
    assert after == TEXT + b"\n\ndef new():\n    pass\n"
    assert after == rewrite.generate(edited)


def test_two_changed_functions_and_a_new_one_are_all_written() -> None:
    stock = rewrite.parse(TEXT)
    edited = _append(_append(stock, "Worker.first"), "Worker.second")
    edited = rewrite.append_function(edited, "def new():\n    pass\n")
    assert spliced(stock, edited, TEXT) == rewrite.generate(edited)


def test_bytes_that_libcst_would_not_give_back_stay_where_nothing_changes() -> None:
    text = TEXT + b"\nif os:\n    x = 1\n\\\n    y = 1\n"
    stock = rewrite.parse(text)
    assert rewrite.generate(stock) != text, "libcst keeps this now: test something else"
    after = spliced(stock, _append(stock, "Worker.first"), text)
    assert after is not None
    assert after.endswith(b"\nif os:\n    x = 1\n\\\n    y = 1\n")
    assert after.count(b"added()") == 1


def test_an_unchanged_module_is_the_base_itself() -> None:
    stock = rewrite.parse(TEXT)
    assert spliced(stock, stock, TEXT) == TEXT


@pytest.mark.parametrize("end", [b"# the end\n", b"\n\n# the end\n\n#\n", b"\n\n"])
def test_what_stands_below_the_last_statement_stays_there(end: bytes) -> None:
    stock = rewrite.parse(TEXT + end)
    edited = _append(stock, "Worker.first")
    more = rewrite.append_function(edited, "def new():\n    pass\n")
    for module in (edited, more):
        after = spliced(stock, module, TEXT + end)
        assert after == rewrite.generate(module)
        assert after.endswith(end)


def test_an_end_that_an_appended_function_would_move_is_left_to_the_whole_module() -> None:
    text = TEXT.rstrip(b"\n")
    stock = rewrite.parse(text)
    assert spliced(stock, _append(stock, "Worker.first"), text) is None


def test_a_function_whose_text_is_there_twice_is_left_to_the_whole_module() -> None:
    text = (
        b"class A:\n    def f(self):\n        pass\n\n\nclass B:\n    def f(self):\n        pass\n"
    )
    stock = rewrite.parse(text)
    assert spliced(stock, _append(stock, "A.f"), text) is None


def test_edits_of_another_kind_are_left_to_the_whole_module() -> None:
    stock = rewrite.parse(TEXT)
    changed = stock.with_changes(body=[rewrite.statement(stock, "x = 1"), *stock.body[1:]])
    shorter = stock.with_changes(body=stock.body[:-1])
    named = rewrite.statement(stock, "class Other:\n    pass")
    renamed = stock.with_changes(body=[stock.body[0], named, stock.body[2]])
    comment = cst.EmptyLine(comment=cst.Comment("# more"))
    below, above = stock.with_changes(footer=[comment]), stock.with_changes(header=[comment])
    for edited in (changed, shorter, renamed, below, above):
        assert spliced(stock, edited, TEXT) is None
