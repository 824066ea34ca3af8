"""Whether a syntax tree is a pattern, written as the code it stands for."""

from __future__ import annotations

import ast

ANY = "___"
"""In a pattern, any expression or name; as ``*___`` all arguments of a call that are left."""


def matches(pattern: object, node: object) -> bool:
    """Whether a tree is the pattern, wherever the pattern does not say :data:`ANY`."""
    if isinstance(pattern, ast.Name) and pattern.id == ANY:
        return isinstance(node, ast.expr)
    if isinstance(pattern, ast.Call) and isinstance(node, ast.Call) and _open(pattern):
        return matches(pattern.func, node.func) and all(
            len(node.args) > place and matches(given, node.args[place])
            for place, given in enumerate(pattern.args[:-1])
        )
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and all(
            matches(value, getattr(node, name, None)) for name, value in _fields(pattern)
        )
    if isinstance(pattern, list):
        return (
            isinstance(node, list)
            and len(pattern) == len(node)
            and all(map(matches, pattern, node))
        )
    return pattern in (ANY, node)


def _fields(pattern: ast.AST) -> list[tuple[str, object]]:
    return [(n, v) for n, v in ast.iter_fields(pattern) if n not in ("ctx", "type_comment", "kind")]


def _open(call: ast.Call) -> bool:
    last = call.args[-1] if call.args else None
    return isinstance(last, ast.Starred) and matches(last.value, ast.Name(ANY))
