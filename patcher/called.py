"""What happens in a piece of code: its calls and bindings, in order, and whether they happen."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from .walk import children

Happening = ast.Call | ast.NamedExpr | ast.Lambda
_INNER = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PERHAPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def happenings(root: ast.expr) -> Iterator[tuple[Happening, bool]]:
    """The calls, walrus bindings and lambdas of an expression, the inner ones first.

    Each comes with whether it surely happens: what stands behind ``and`` or ``or``, in a branch of
    a conditional expression or in a comprehension may not. A lambda is not looked into.
    """
    yield from _happenings(root, certain=True)


def _happenings(node: ast.AST, *, certain: bool) -> Iterator[tuple[Happening, bool]]:
    if isinstance(node, ast.Lambda):
        yield node, False
        return
    if isinstance(node, (ast.Name, ast.Constant)):
        return
    for index, child in enumerate(children(node)):
        sure = certain and not isinstance(node, _PERHAPS)
        if isinstance(node, ast.BoolOp):
            # The first child is the operator, the second the operand that is always evaluated.
            sure = certain and index <= 1
        elif isinstance(node, ast.IfExp):
            sure = certain and child is node.test
        elif isinstance(node, ast.Compare) and len(node.ops) > 1:
            sure = certain and child in (node.left, node.comparators[0])
        yield from _happenings(child, certain=sure)
    if isinstance(node, (ast.Call, ast.NamedExpr)):
        yield node, certain


def names_used(node: ast.AST, *, own: bool = False) -> frozenset[str]:
    """The names and attributes that are read anywhere inside, whether called or passed on.

    Args:
        node: where to look.
        own: of attributes, only those of ``self``.
    """
    found: set[str] = set()
    pending = [node]
    while pending:
        inner = pending.pop()
        if isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            if not own or (isinstance(inner.value, ast.Name) and inner.value.id == "self"):
                found.add(inner.attr)
            pending.append(inner.value)
        else:
            pending.extend(children(inner))
    return frozenset(found)


def relevant_inside(root: ast.AST, relevant: Callable[[str], bool]) -> bool:
    """Whether a lambda, or an inner function or class, uses what matters."""
    return isinstance(root, _INNER) and any(map(relevant, names_used(root)))
