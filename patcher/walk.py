"""Walks over syntax trees: hundreds of releases are walked, and ``ast.walk`` is most of the time.

Contexts (``Load``, ``Store``, ``Del``) say nothing that their node doesn't, and are left out.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator

# Fields that never hold a node.
_PLAIN = frozenset({"ctx", "id", "attr", "kind", "asname", "module", "level", "type_comment"})


def children(node: ast.AST) -> list[ast.AST]:
    """As ``ast.iter_child_nodes``, in the same order."""
    found: list[ast.AST] = []
    for name in node._fields:
        if name in _PLAIN:
            continue
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
