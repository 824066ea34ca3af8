"""The calls that stand in a piece of code: which ones, in which order, and whether they happen."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

_LATER = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PERHAPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def certain_calls(root: ast.expr) -> Iterator[tuple[ast.Call, bool]]:
    """The calls of an expression, the inner ones first, each with whether it surely happens.

    What stands behind ``and`` or ``or``, in a branch of a conditional expression or in a
    comprehension may not happen. What stands in a lambda is left out.
    """
    yield from _calls(root, certain=True)


def _calls(node: ast.AST, *, certain: bool) -> Iterator[tuple[ast.Call, bool]]:
    if isinstance(node, _LATER):
        return
    for index, child in enumerate(ast.iter_child_nodes(node)):
        sure = certain and not isinstance(node, _PERHAPS)
        if isinstance(node, ast.BoolOp):
            # The first child is the operator, the second the operand that is always evaluated.
            sure = certain and index <= 1
        elif isinstance(node, ast.IfExp):
            sure = certain and child is node.test
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            sure = certain and child in (node.left, node.comparators[0])
        yield from _calls(child, certain=sure)
    if isinstance(node, ast.Call):
        yield node, certain


def names_used(node: ast.AST) -> frozenset[str]:
    """The names and attributes that are read anywhere inside, whether called or passed on."""
    return frozenset(
        inner.id if isinstance(inner, ast.Name) else inner.attr
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Load)
    )


def relevant_inside(root: ast.AST, relevant: Callable[[str], bool]) -> bool:
    """Whether a lambda, or an inner function or class, uses what matters."""
    return any(
        relevant(name)
        for node in ast.walk(root)
        if isinstance(node, _LATER)
        for name in names_used(node)
    )
