"""Short hashes of the functions of a module, to say where two texts of it differ."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from .syntax import syntax_tree

MODULE = "module level"
"""Stands for the text outside all functions."""


def differing(expected: Mapping[str, str], found: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the functions that are in one text only, or not the same in both."""
    names = dict.fromkeys([*found, *expected])
    return tuple(name for name in names if expected.get(name) != found.get(name))


def function_hashes(content: bytes) -> Mapping[str, str]:
    """Short hashes of the text of each function, by qualified name, and of the rest of the module.

    A text that does not parse has no functions: all of it is module level.
    """
    lines = content.splitlines()
    hashes: dict[str, str] = {}
    rest = list(lines)
    try:
        tree = syntax_tree(content)
    except SyntaxError:
        return {MODULE: _short(lines)}
    for name, node in _named(tree.body, ""):
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)]) - 1
        last = node.end_lineno or node.lineno
        hashes[name] = _short(lines[first:last])
        rest[first:last] = [b""] * (last - first)
    return {MODULE: _short([line for line in rest if line.strip()]), **hashes}


def _named(
    body: Iterable[ast.stmt], prefix: str
) -> Iterable[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _named(node.body, f"{prefix}{node.name}.")


def _short(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:10]
