"""How results of LMCache's patches are read, and what may not change."""

from __future__ import annotations

import ast

import pytest
from kvpatch.blending import as_written, find, follow, function, released_elsewhere, since, suites
from packaging.version import Version

STOCK = """
from vllm.attention import Attention


class LMCBlender:
    def process_qkv(self, q):
        return q

    def blend(self):
        return 1
"""


def test_a_function_is_found_by_its_qualified_name_where_it_is_the_only_one() -> None:
    module = ast.parse(STOCK)
    assert function(module, "LMCBlender.blend") is not None
    assert function(module, "LMCBlender.gone") is None
    assert function(module, "Other.blend") is None
    assert function(ast.parse(STOCK + STOCK), "LMCBlender.blend") is None


def test_every_place_of_a_pattern_is_found() -> None:
    assert len(find(ast.parse("a = f(1)\nif a:\n    f(2)\n"), "f(___)")) == 2
    assert find(None, "f()") == []


@pytest.mark.parametrize(
    "source",
    [
        "a = 1\nb = 1\n",
        "if x:\n    pass\nelse:\n    a = 1\n    b = 1\n",
        "try:\n    f()\nfinally:\n    a = 1\n    b = 1\n",
    ],
)
def test_statements_follow_one_another_in_any_suite(source: str) -> None:
    assert follow(ast.parse(source), "a = 1", "b = 1")


@pytest.mark.parametrize(
    "source",
    [
        "b = 1\na = 1\n",
        "a = 1\nc = 1\nb = 1\n",
        "if x:\n    a = 1\nb = 1\n",
        "a = 1\nb = 1\nif x:\n    b = 1\n",
        "a = 1\n",
        "b = 1\n",
    ],
)
def test_statements_apart_or_twice_do_not_follow(source: str) -> None:
    assert not follow(ast.parse(source), "a = 1", "b = 1")
    assert not follow(None, "a = 1")


def test_an_expression_that_is_a_statement_is_followed_too() -> None:
    assert follow(ast.parse("f(1)\na = f(1)\n"), "f(___)", "a = f(___)")
    assert not follow(ast.parse("a = f(1)\nf(1)\nf(2)\n"), "a = f(1)", "f(___)")


def test_suites_are_those_of_every_branch() -> None:
    source = "if x:\n    a = 1\nelse:\n    b = 1\nf(1 if x else 2)\n"
    assert [len(suite) for suite in suites(ast.parse(source))] == [2, 1, 1]
    assert suites(None) == []


def test_comments_and_layout_do_not_make_a_function_another() -> None:
    source = "def f(a):\n    return a\n"
    assert as_written(ast.parse("def f( a ):  # x\n    return a").body[0], source)
    assert not as_written(ast.parse("def f(a):\n    return -a").body[0], source)
    assert not as_written(None, source)


@pytest.mark.parametrize(
    "patched",
    [
        STOCK,
        STOCK.replace("return q", "return q + 1"),
        STOCK.replace("(self, q)", "(self, q, more=None)"),
        STOCK + "\n\ndef _kvpatch_more():\n    pass\n",
        STOCK.replace("from vllm.attention", "from vllm.attention.layer"),
    ],
)
def test_what_patches_edit_may_change(patched: str) -> None:
    assert released_elsewhere(ast.parse(STOCK), ast.parse(patched)).holds


@pytest.mark.parametrize(
    "patched",
    [
        STOCK.replace("return 1", "return 2"),
        STOCK + "\n\ndef more():\n    pass\n",
        STOCK.replace("def process_qkv", "@cache\n    def process_qkv"),
        STOCK.replace("class LMCBlender", "class LMCBlender(Base)"),
    ],
)
def test_nothing_else_may_change(patched: str) -> None:
    assert not released_elsewhere(ast.parse(STOCK), ast.parse(patched)).holds


@pytest.mark.parametrize(
    ("vllm", "holds"),
    [("0.11.2", False), ("0.12.0", True), ("0.12.0rc1", True), ("0.33.0", True)],
)
def test_a_condition_of_the_pair_goes_by_vllms_release(vllm: str, holds: bool) -> None:
    assert since("0.12.0").holds({"vllm": Version(vllm)}) is holds
    assert not since("0.12.0").holds({})
