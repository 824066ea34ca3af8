"""Patterns that are written as the code they stand for."""

from __future__ import annotations

import ast

import pytest
from kvpatch.matching import matches


def _matches(pattern: str, code: str) -> bool:
    [wanted], [found] = ast.parse(pattern).body, ast.parse(code).body
    return matches(wanted, found)


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("a = f(x)", "a = f( x )  # why"),
        ("a = f('x')", 'a = f("x")'),
        ("a = f(*___)", "a = f(1, *rest, key=2)"),
        ("a = f(x, *___)", "a = f(x)"),
        ("a = ___", "a = [b for b in c]"),
        ("from ___ import A", "from b.c import A"),
        ("___.go()", "self.there.go()"),
    ],
)
def test_what_says_the_same_matches(pattern: str, code: str) -> None:
    assert _matches(pattern, code)


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("a = f(x)", "a = f(y)"),
        ("a = f(x)", "a = f(x, y)"),
        ("a = f(x, *___)", "a = f()"),
        ("a = f(x)", "a: int = f(x)"),
        ("f()", "await_ = f()"),
        ("from ___ import A", "from b import A as C"),
        ("f(key=1)", "f(key=2)"),
    ],
)
def test_what_says_something_else_does_not(pattern: str, code: str) -> None:
    assert not _matches(pattern, code)
