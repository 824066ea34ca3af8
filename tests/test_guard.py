"""What a module is where the guard reads false."""

from __future__ import annotations

import ast

import pytest
from kvpatch.guard import GUARD_SOURCE, is_guard, stock_without_guard

GUARDED = "if _kvpatch_uses_lmcache(self.vllm_config):\n    "


def _without_guard(stock: str, patched: str) -> bool:
    return stock_without_guard(ast.parse(stock), ast.parse(patched)).holds


@pytest.mark.parametrize(
    ("stock", "patched"),
    [
        ("a()\n", "a()\n"),
        ("a()\n", "a()  # a comment\n\n\ndef _kvpatch_helper():\n    b()\n"),
        ("def f():\n    a()\n", f"def f():\n    a()\n    {GUARDED}    b()\n"),
        ("def f():\n    a()\n", f"def f():\n    {GUARDED}    b()\n    else:\n        a()\n"),
        (
            "def f():\n    a()\n",
            "def f():\n    if not _kvpatch_uses_lmcache(c):\n        a()\n",
        ),
        (
            "with x:\n    try:\n        a()\n    finally:\n        b()\n",
            (
                "with x:\n    try:\n        if not _kvpatch_uses_lmcache(c):\n            a()\n"
                "    finally:\n        b()\n        if _kvpatch_uses_lmcache(c):\n            d()\n"
            ),
        ),
        (
            "match x:\n    case 1:\n        a()\n",
            "match x:\n    case 1:\n        if not _kvpatch_uses_lmcache(c):\n            a()\n",
        ),
        (
            "try:\n    a()\nexcept E:\n    b()\n",
            "try:\n    a()\nexcept E:\n    if not _kvpatch_uses_lmcache(c):\n        b()\n",
        ),
    ],
)
def test_a_module_that_differs_behind_the_guard_alone_is_the_stock_one(
    stock: str, patched: str
) -> None:
    assert _without_guard(stock, patched)


@pytest.mark.parametrize(
    ("stock", "patched"),
    [
        ("a()\n", "b()\n"),
        ("a()\n", "a()\nb()\n"),
        ("a()\nb()\n", "b()\na()\n"),
        ("a()\n", "if _kvpatch_uses_lmcache(c):\n    a()\n"),
        ("a()\n", "if not _kvpatch_uses_lmcache(c):\n    pass\nelse:\n    a()\n"),
        ("a()\n", "if other_guard(c):\n    b()\na()\n"),
        ("a()\n", "if _kvpatch_uses_lmcache(c) and x:\n    b()\na()\n"),
        ("def f():\n    a(1)\n", "def f():\n    if not _kvpatch_uses_lmcache(c):\n        a(2)\n"),
        ("a()\n", "import sys\na()\n"),
    ],
)
def test_a_module_that_differs_elsewhere_is_not_the_stock_one(stock: str, patched: str) -> None:
    assert not _without_guard(stock, patched)


def test_an_edited_guard_is_not_the_guard() -> None:
    assert is_guard(ast.parse(GUARD_SOURCE).body[0])
    assert not is_guard(ast.parse(GUARD_SOURCE.replace("return False", "return True")).body[0])
    assert not is_guard(ast.parse(GUARD_SOURCE.replace("(vllm_config)", "(config)")).body[0])
    assert not is_guard(ast.parse("import _kvpatch_uses_lmcache").body[0])
