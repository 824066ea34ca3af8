"""Reads the facts of a Python file off its syntax tree; nothing is imported or executed.

Names are never guessed: what can't be told is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from .definitions import class_facts, function_facts
from .statements import dotted, steps, typing_only
from .symbols import ANY, Binding, Import, Module
from .syntax import syntax_tree

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Fact = TypeVar("_Fact")


class Lazy(Mapping[str, _Fact]):
    """The classes or functions of a file by dotted name, each looked into when it is asked for.

    ``definitions`` parses the file again: of the many files of a run few definitions are asked for,
    and keeping all syntax trees would take too much memory.
    """

    def __init__(
        self,
        names: Sequence[str],
        definitions: Callable[[], Mapping[str, _Definition]],
        look: Callable[[Any], _Fact],
    ) -> None:
        self._names = dict.fromkeys(names)
        self._definitions = definitions
        self._look = look
        self._made: dict[str, _Fact] = {}

    def __getitem__(self, name: str) -> _Fact:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._look(self._definitions()[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class Parsed:
    """The syntax tree of a file, and what it defines by dotted name."""

    tree: ast.Module

    @cached_property
    def definitions(self) -> Mapping[str, _Definition]:
        """Its classes and functions, those of classes too."""
        return dict(_defined(self.tree.body))


Parse = Callable[[bytes], Parsed]
"""Parses a file, or has its tree still; raises SyntaxError."""


def parse(content: bytes) -> Parsed:
    """A file, parsed.

    Raises:
        SyntaxError: for what is not Python of this interpreter's grammar.
        MemoryError: where there is not enough.
    """
    return Parsed(syntax_tree(content))


def read_module(content: bytes, parse: Parse = parse) -> Module:
    """The facts of a file.

    Raises:
        SyntaxError: for what is not Python of this interpreter's grammar.
    """
    parsed = parse(content)
    tree = parsed.tree
    names: dict[str, Binding] = {}
    typing: dict[str, Binding] = {}
    stars: list[Import] = []
    _bind(tree.body, names, typing, stars)
    defined = parsed.definitions

    def definitions() -> Mapping[str, _Definition]:
        return parse(content).definitions

    classes = [name for name, node in defined.items() if isinstance(node, ast.ClassDef)]
    functions = [name for name, node in defined.items() if not isinstance(node, ast.ClassDef)]
    return Module(
        steps=tuple(steps(tree.body)),
        bindings=names,
        typing=typing,
        stars=tuple(stars),
        forwarded=_forwarded(tree),
        classes=Lazy(classes, definitions, class_facts),
        functions=Lazy(functions, definitions, function_facts),
        words={name: words for name, words in _literals(tree) if words and name.isupper()},
    )


def _bind(
    body: Sequence[ast.stmt],
    names: dict[str, Binding],
    typing: dict[str, Binding],
    stars: list[Import],
) -> None:
    for node in body:
        if isinstance(node, ast.ImportFrom):
            for item in node.names:
                if item.name == "*":
                    stars.append(Import(node.lineno, node.module or "", node.level))
                else:
                    names.setdefault(
                        item.asname or item.name,
                        Binding(node.lineno, node.module or "", node.level, item.name),
                    )
        elif isinstance(node, ast.Import):
            for item in node.names:
                whole = item.name if item.asname else item.name.partition(".")[0]
                names.setdefault(item.asname or whole, Binding(node.lineno, whole))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[node.name] = Binding(node.lineno)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(node, ast.AnnAssign) and node.value is None:
                    continue
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        names.setdefault(part.id, Binding(part.lineno))
        elif isinstance(node, ast.If):
            only = typing_only(node.test)
            _bind(node.body, typing if only else names, typing, stars)
            _bind(node.orelse, names, typing, stars)
        elif isinstance(node, ast.Try):
            _bind(node.body, names, typing, stars)
            for handler in node.handlers:
                _bind(handler.body, names, typing, stars)
            _bind([*node.orelse, *node.finalbody], names, typing, stars)
        elif isinstance(node, (ast.With, ast.For, ast.While)):
            _bind(node.body, names, typing, stars)


def _forwarded(tree: ast.Module) -> tuple[str, ...]:
    """The names that the module's own ``__getattr__`` answers, as far as it says so itself."""
    hooks = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "__getattr__"]
    if not hooks:
        return ()
    literals = dict(_literals(tree))
    found: list[str] = []
    for compare in (n for n in ast.walk(hooks[0]) if isinstance(n, ast.Compare)):
        other = compare.comparators[0]
        if isinstance(compare.ops[0], ast.In):
            name = other.func.value if _is_keys(other) else other  # type: ignore[attr-defined]
            found += literals.get(dotted(name), ()) or _words(other)
        elif isinstance(compare.ops[0], ast.Eq):
            found += _words(other)
    return tuple(dict.fromkeys(found)) or (ANY,)


def _literals(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if node.value is not None:
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, _words(node.value)


def _is_keys(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "keys"
    )


def _words(node: ast.expr) -> tuple[str, ...]:
    items: Sequence[ast.expr | None]
    if isinstance(node, ast.Dict):
        items = node.keys
    elif isinstance(node, (ast.Set, ast.List, ast.Tuple)):
        items = node.elts
    elif isinstance(node, ast.Call) and node.args:
        return _words(node.args[0])
    else:
        items = [node]
    return tuple(i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str))


def _defined(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, _Definition]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _defined(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If):
            yield from _defined([*node.body, *node.orelse], prefix)
        elif isinstance(node, ast.Try):
            handlers = [item for handler in node.handlers for item in handler.body]
            yield from _defined([*node.body, *handlers, *node.orelse], prefix)
