"""Walks over syntax trees: hundreds of releases are walked, and ``ast.walk`` is most of the time.

Contexts (``Load``, ``Store``, ``Del``) say nothing that their node doesn't, and are left out.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Sequence

# Fields that never hold a node.
_PLAIN = frozenset({"ctx", "id", "attr", "kind", "asname", "module", "level", "type_comment"})


_SUITES = ("body", "orelse", "finalbody")


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each kind of node that may hold nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        names = () if kind is ast.Constant else tuple(n for n in kind._fields if n not in _PLAIN)
        self[kind] = names
        return names


_FIELDS = _Fields()


def children(node: ast.AST) -> Sequence[ast.AST]:
    """As ``ast.iter_child_nodes``, in the same order."""
    fields = _FIELDS[type(node)]
    if not fields:
        return ()
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """As ``ast.walk``, in the same order."""
    waiting = deque([node])
    while waiting:
        found = waiting.popleft()
        waiting.extend(children(found))
        yield found


def statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """These statements and all inside them, those of inner functions and classes too."""
    for node in body:
        yield node
        for name in _SUITES:
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                yield from statements(inner)
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from statements(part.body)
