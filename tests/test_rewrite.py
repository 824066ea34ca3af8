"""Anchors found once, and every other byte of the module left as it is."""

from __future__ import annotations

import codecs

import libcst as cst
import pytest
from kvpatch import rewrite
from kvpatch.outcome import Outcome
from kvpatch.patch import Refusal

MODULE = b'''"""A worker."""


class Worker:
    def load_model(self):
        with self.pool():
            connect(self.config)
        # The end.


def attach(config):
    connect(config)
'''


def _insert(line: cst.SimpleStatementLine, call: cst.Call) -> list[rewrite.Statement]:
    module = cst.Module(body=[])
    return [rewrite.statement(module, "before()"), line]


def _edited(text: bytes, name: str = "attach", called: str = "connect") -> bytes:
    module = rewrite.parse(text)
    return rewrite.generate(
        rewrite.edit_function(
            module, name, lambda function: rewrite.replace_call(function, called, _insert)
        )
    )


@pytest.mark.parametrize(
    "text",
    [
        MODULE,
        MODULE.replace(b"\n", b"\r\n"),
        codecs.BOM_UTF8 + MODULE,
        MODULE.rstrip(b"\n"),
        MODULE.replace(b"    ", b"\t"),
        MODULE.replace(b"    ", b"  "),
        MODULE.replace(b"The end", "Das Ende, schön".encode()),
        b"# -*- coding: latin-1 -*-\n" + MODULE.replace(b"The end", b"Sch\xf6n"),
        MODULE + b"\n\n# A last word.\n",
        b"\n\n\n" + MODULE + b"\n\n\n",
        b"",
    ],
)
def test_a_module_that_is_not_edited_keeps_every_byte(text: bytes) -> None:
    assert rewrite.generate(rewrite.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [b"def f(:\n", b"x = (\n", b"if x:\npass\n", b"\xff\xfe\x00", b"# coding: no-such\nx = 1\n"],
)
def test_a_file_that_can_not_be_parsed_has_no_anchor(text: bytes) -> None:
    with pytest.raises(Refusal, match="libcst can't parse the file") as caught:
        rewrite.parse(text)
    assert caught.value.outcome is Outcome.MISSING


def test_the_place_of_a_syntax_error_is_named() -> None:
    with pytest.raises(Refusal, match="line 2"):
        rewrite.parse(b"x = 1\ndef f(:\n")


def test_a_statement_goes_before_the_one_call() -> None:
    assert _edited(MODULE) == MODULE.replace(
        b"    connect(config)\n", b"    before()\n    connect(config)\n"
    )


def test_a_call_in_a_nested_block_is_found() -> None:
    assert _edited(MODULE, "Worker.load_model") == MODULE.replace(
        b"            connect(self.config)\n",
        b"            before()\n            connect(self.config)\n",
    )


@pytest.mark.parametrize(
    "block",
    [
        "if a:\n        {}",
        "if a:\n        pass\n    else:\n        {}",
        "if a:\n        pass\n    elif b:\n        {}",
        "for a in b:\n        {}",
        "while a:\n        {}",
        "with a:\n        {}",
        "try:\n        {}\n    finally:\n        pass",
        "try:\n        pass\n    except E:\n        {}",
        "try:\n        pass\n    except E:\n        pass\n    else:\n        {}",
        "try:\n        pass\n    finally:\n        {}",
        "match a:\n        case 1:\n            {}",
    ],
)
def test_a_call_is_found_in_every_kind_of_block(block: str) -> None:
    text = f"def f():\n    {block}\n"
    after = _edited(text.format("connect(1)").encode(), "f").decode()
    indent = " " * (12 if "case" in block else 8)
    assert after == text.format(f"before()\n{indent}connect(1)")


def test_a_call_in_an_inner_function_or_class_is_not_the_functions_own() -> None:
    text = b"def f():\n    def g():\n        connect(1)\n    class C:\n        connect(2)\n"
    with pytest.raises(Refusal, match="has no statement that calls connect") as caught:
        _edited(text, "f")
    assert caught.value.outcome is Outcome.MISSING


def test_two_calls_are_ambiguous_and_counted() -> None:
    text = MODULE + b"    connect(config)\n    connect(config)\n"
    with pytest.raises(Refusal, match="in 3 places, and exactly one is expected") as caught:
        _edited(text)
    assert caught.value.outcome is Outcome.AMBIGUOUS


@pytest.mark.parametrize(
    "statement",
    [
        b"done = connect(config)",
        b"connect(config); other()",
        b"return connect(config)",
        b"if ready: connect(config)",
        b"self.connect(config)",
        b"await_all(connect(config))",
    ],
)
def test_a_call_that_is_not_a_statement_of_its_own_is_missing_and_shown(statement: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        _edited(MODULE.replace(b"    connect(config)", b"    " + statement))
    assert caught.value.outcome is Outcome.MISSING
    assert f"the nearest misses are: {statement.decode()}" in caught.value.reason


def test_a_call_in_a_comment_is_no_miss_worth_naming() -> None:
    with pytest.raises(Refusal) as caught:
        _edited(MODULE.replace(b"    connect(config)", b"    # connect(config)\n    pass"))
    assert "# connect" not in caught.value.reason


def test_the_nearest_call_is_named_where_the_anchor_was_renamed() -> None:
    with pytest.raises(Refusal, match="the nearest calls are connect"):
        _edited(MODULE, called="connected")


def test_it_says_so_where_nothing_comes_near() -> None:
    with pytest.raises(Refusal, match="nothing comes near"):
        _edited(MODULE, called="zzz")


def test_a_function_that_is_not_there_is_missing_with_the_nearest_names() -> None:
    with pytest.raises(Refusal, match=r"atach is defined 0 times.*attach") as caught:
        _edited(MODULE, "atach")
    assert caught.value.outcome is Outcome.MISSING


def test_a_method_of_a_class_that_is_not_there_is_missing() -> None:
    with pytest.raises(Refusal, match=r"Wrker\.load_model is defined 0 times.*Worker") as caught:
        _edited(MODULE, "Wrker.load_model")
    assert caught.value.outcome is Outcome.MISSING


@pytest.mark.parametrize("name", ["Worker.load_model", "attach"])
def test_a_function_that_is_there_twice_is_ambiguous(name: str) -> None:
    with pytest.raises(Refusal, match="is defined 2 times") as caught:
        _edited(MODULE + b"\n" + MODULE, name)
    assert caught.value.outcome is Outcome.AMBIGUOUS


def test_a_function_under_a_condition_is_not_at_its_place() -> None:
    with pytest.raises(Refusal, match="is defined 0 times"):
        _edited(b"if a:\n    def attach():\n        connect(1)\n")


def test_a_statement_appended_to_a_function_is_on_its_base_level() -> None:
    module = rewrite.parse(MODULE)
    node = rewrite.spaced(rewrite.statement(module, "# Why.\nif a():\n    b()"), 1)
    after = rewrite.edit_function(
        module, "Worker.load_model", lambda function: rewrite.append_statement(function, node)
    )
    added = "\n        # Why.\n        if a():\n            b()\n"
    text = MODULE.decode().replace("(self.config)\n", "(self.config)\n" + added)
    assert rewrite.generate(after).decode() == text


def test_nothing_is_appended_to_a_function_on_one_line() -> None:
    module = rewrite.parse(b"def f(): connect(1)\n")
    node = rewrite.statement(module, "pass")
    with pytest.raises(Refusal, match="the body of f shares a line with its def") as caught:
        rewrite.edit_function(
            module, "f", lambda function: rewrite.append_statement(function, node)
        )
    assert caught.value.outcome is Outcome.MISSING


@pytest.mark.parametrize(("unit", "newline"), [("\t", "\n"), ("  ", "\r\n"), ("   ", "\n")])
def test_an_appended_function_has_the_modules_indent_and_line_ends(unit: str, newline: str) -> None:
    text = f"def f():{newline}{unit}pass{newline}".encode()
    module = rewrite.append_function(
        rewrite.parse(text), "\ndef g():\n    if a:\n        pass\n\n    return 1\n"
    )
    lines = ["", "", "def g():", f"{unit}if a:", f"{unit * 2}pass", "", f"{unit}return 1", ""]
    assert rewrite.generate(module) == text + newline.join(lines).encode()


def test_a_module_without_a_final_newline_stays_without_one() -> None:
    module = rewrite.append_function(rewrite.parse(b"x = 1"), "def g():\n    pass")
    assert rewrite.generate(module) == b"x = 1\n\n\ndef g():\n    pass"


def test_a_function_goes_before_the_comments_at_the_end_of_the_file() -> None:
    text = b"x = 1\n# A last word.\n"
    module = rewrite.append_function(rewrite.parse(text), "def g():\n    pass")
    after = rewrite.generate(module)
    assert after.startswith(b"x = 1\n")
    assert b"# A last word.\n" in after
    compile(after, "f", "exec")


def test_a_name_that_is_already_taken_is_a_conflict() -> None:
    with pytest.raises(Refusal, match="already defines f") as caught:
        rewrite.append_function(rewrite.parse(b"def f():\n    pass\n"), "def f():\n    pass")
    assert caught.value.outcome is Outcome.CONFLICT


def test_only_a_function_can_be_appended_as_one() -> None:
    with pytest.raises(TypeError, match="not one function"):
        rewrite.append_function(rewrite.parse(b""), "x = 1")


def test_whether_a_function_is_defined_looks_at_the_top_level_alone() -> None:
    module = rewrite.parse(MODULE)
    assert rewrite.defines(module, "attach")
    assert not rewrite.defines(module, "load_model")


def test_an_untouched_statement_is_the_same_node() -> None:
    module = rewrite.parse(MODULE)
    after = rewrite.edit_function(
        module,
        "attach",
        lambda function: rewrite.replace_call(function, "connect", lambda line, _: [line]),
    )
    assert after.body[1] is module.body[1]
    assert rewrite.generate(after) == MODULE


def test_a_call_is_recognised_only_as_a_statement_of_that_plain_name() -> None:
    assert rewrite.calls(cst.parse_statement("connect(1)"), "connect") is not None
    for text in ("connect", "connect(1)(2)", "a.connect(1)", "x = connect(1)", "other(1)"):
        assert rewrite.calls(cst.parse_statement(text), "connect") is None
