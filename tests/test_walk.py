"""The walks are those of ``ast``, without contexts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from kvpatch.walk import children, statements, walk

HERE = sorted(Path(__file__).parent.glob("*.py"))[:40]
ODD = """
match point:
    case {"a": [x, *rest], **more} if x: pass
    case Point(x=0) | None as y: pass
def f[T](a, /, b: int = 1, *c, d=2, **e) -> str: return f"{a!r:>{b}}"
async def g(): return [i async for i in h() if await i]
try: pass
except* ValueError as error: del a[1:2], b.c
"""


def plain(nodes: object) -> list[ast.AST]:
    return [n for n in nodes if not isinstance(n, ast.expr_context)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.name)
def test_every_node_comes_in_the_order_of_ast(path: Path) -> None:
    tree = ast.parse(path.read_bytes())
    assert list(walk(tree)) == plain(ast.walk(tree))
    assert all(list(children(n)) == plain(ast.iter_child_nodes(n)) for n in walk(tree))


def test_so_does_every_kind_of_statement_that_this_python_has() -> None:
    for text in ODD.strip().split("\n\n"):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            tree = ast.parse("match a:\n    case [1, *b]: del c.d")
        assert list(walk(tree)) == plain(ast.walk(tree))


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.name)
def test_every_statement_comes_once(path: Path) -> None:
    tree = ast.parse(path.read_bytes())
    found = list(statements(tree.body))
    every = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    assert len(found) == len(every)
    assert set(map(id, found)) == set(map(id, every))
