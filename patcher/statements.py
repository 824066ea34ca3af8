"""The imports that statements make when they run, in order, with the ways that failures leave."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .symbols import Choice, Dead, Import, Step

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def dotted(node: ast.expr) -> str:
    """The dotted name of an expression, empty where it is something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def steps(body: Sequence[ast.stmt]) -> Iterator[Step]:
    """The imports that running these statements makes, functions inside them left out."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _imports(node)
        elif isinstance(node, ast.Try):
            ways = [tuple(steps([*node.body, *node.orelse]))]
            ways += [_way(h.body) for h in node.handlers if catches(h, _IMPORT_ERRORS)]
            if ways[0]:
                yield Choice(tuple(ways))
            yield from steps(node.finalbody)
        elif isinstance(node, ast.If):
            if not typing_only(node.test):
                ways = [_way(node.body), _way(node.orelse)]
                if any(not isinstance(step, Dead) for way in ways for step in way):
                    yield Choice(tuple(ways), (ast.unparse(node.test), ""))
            else:
                yield from steps(node.orelse)
        elif isinstance(node, (ast.With, ast.ClassDef)):
            yield from steps(node.body)
        elif isinstance(node, (ast.For, ast.While)) and (inside := tuple(steps(node.body))):
            yield Choice((inside, ()))


def _way(body: Sequence[ast.stmt]) -> tuple[Step, ...]:
    inside = tuple(steps(body))
    raises = [node for node in body if isinstance(node, ast.Raise)]
    return (*inside, Dead(raises[0].lineno)) if raises else inside


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Import]:
    if isinstance(node, ast.ImportFrom):
        names = tuple((item.name, item.asname or item.name) for item in node.names)
        yield Import(node.lineno, node.module or "", node.level, names)
    else:
        for item in node.names:
            yield Import(node.lineno, item.name, 0, bound=item.asname or "")


def catches(handler: ast.ExceptHandler, errors: frozenset[str]) -> bool:
    """Whether a handler is there for one of these errors."""
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(dotted(kind).rpartition(".")[2] in errors for kind in kinds)


def typing_only(test: ast.expr) -> bool:
    """Whether a test is true for type checkers alone."""
    return dotted(test).rpartition(".")[2] == "TYPE_CHECKING"
