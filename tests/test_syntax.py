"""The tree of a file, and the errors where there is none."""

from __future__ import annotations

import ast

import pytest
from kvpatch import syntax
from kvpatch.syntax import syntax_tree


def test_it_is_the_tree_of_the_text() -> None:
    assert ast.dump(syntax_tree(b"x = 1")) == ast.dump(ast.parse("x = 1"))


@pytest.mark.parametrize("text", [b"def (", b"x = '\x00'", b"(" * 5000, b"-" * 100_000 + b"1"])
def test_what_gives_no_tree_is_a_syntax_error(text: bytes) -> None:
    with pytest.raises(SyntaxError, match=r"\w"):
        syntax_tree(text)


def test_a_parser_without_memory_is_told_from_one_that_goes_too_deep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def starved(_: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(ast, "parse", starved)
    with pytest.raises(SyntaxError, match="nested too deeply"):
        syntax_tree(b"x")
    monkeypatch.setattr(syntax, "_SHARE", 1 << 60)
    with pytest.raises(MemoryError):
        syntax_tree(b"x")
