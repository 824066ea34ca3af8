"""What one Python file defines, imports, calls and reads, taken from its syntax tree alone.

Plain data, so that it can be kept by the hash of a file and compared across releases. Nothing is
imported or executed, and names are never guessed: what can't be told is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, Union

_Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
_Definition = Union[_Function, ast.ClassDef]
_Fact = TypeVar("_Fact")

ANY = "*"
"""In ``forwarded``: the module's ``__getattr__`` may answer any name."""

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_ATTRIBUTE_ERRORS = frozenset({"AttributeError", "Exception", "BaseException"})


@dataclass(frozen=True)
class Import:
    """One import statement. ``level`` counts its dots.

    ``names`` are pairs (name, bound as), none for ``import a.b``; ``bound`` is what the latter binds.
    """

    line: int
    module: str
    level: int
    names: tuple[tuple[str, str], ...] = ()
    bound: str = ""


@dataclass(frozen=True)
class Choice:
    """Ways of which one has to work: a try with its handlers, or the branches of an if.

    ``tests`` are those that lead to each way of an if, empty for its else.
    """

    ways: tuple[tuple[Step, ...], ...]
    tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dead:
    """A handler or a branch that raises: no way out."""

    line: int


Step = Union[Import, Choice, Dead]


@dataclass(frozen=True)
class Binding:
    """What a name at module level stands for; ``module`` is None for what is defined there."""

    line: int
    module: str | None = None
    level: int = 0
    name: str | None = None


@dataclass(frozen=True)
class Signature:
    """How a function may be called; ``self`` is among ``positional`` of a method."""

    positional: tuple[str, ...]
    defaults: int
    keywords: tuple[str, ...]
    required_keywords: tuple[str, ...]
    more_positional: bool
    more_keywords: bool

    def refuses(self, call: Call, *, bound: bool = False) -> str | None:
        """Why a call does not fit, as the end of a sentence; None where it fits or can't be told.

        Args:
            call: the call.
            bound: whether the first parameter is filled in already, as in a method.
        """
        if call.spread:
            return None
        names = self.positional[1:] if bound else self.positional
        if call.positional > len(names) and not self.more_positional:
            return f"takes {len(names)} positional arguments, and gets {call.positional}"
        for given_name, name in zip(call.arguments, names, strict=False):
            if given_name != name and given_name in names:
                return f"takes {name} where it gets {given_name}"
        taken = set(names[: call.positional])
        for word in call.keywords:
            if word not in (*names, *self.keywords) and not self.more_keywords:
                return f"has no parameter {word}"
            if word in taken:
                return f"gets {word} twice"
        given = taken.union(call.keywords)
        required = [*names[: max(len(names) - self.defaults, 0)], *self.required_keywords]
        missing = [name for name in required if name not in given]
        return f"needs {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Call:
    """A call: the dotted name that is called, how many positionals, which keywords.

    ``arguments`` are the names of the positional ones, empty for what is no name. ``when`` are the
    tests of the ifs that it stands under, those of an else left out.
    """

    line: int
    callee: str
    positional: int
    keywords: tuple[str, ...]
    spread: bool
    arguments: tuple[str, ...] = ()
    when: tuple[str, ...] = ()


@dataclass(frozen=True)
class Read:
    """An attribute that is read: of what (dotted), which, and whether its absence is coped with."""

    line: int
    owner: str
    name: str
    guarded: bool


@dataclass(frozen=True)
class Function:
    """One function or method, what lies inside it included."""

    line: int
    signature: Signature
    annotations: Mapping[str, str]
    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    reads: tuple[Read, ...]
    returns: tuple[str, ...]


@dataclass(frozen=True)
class Class:
    """One class: the names of its bases, and the attributes its own body and methods give it."""

    line: int
    bases: tuple[str, ...]
    members: Mapping[str, int]


@dataclass(frozen=True)
class Module:
    """One file. ``typing`` are the names that exist for type checkers alone, ``words`` the strings
    in the literal collections of its constants.
    """

    steps: tuple[Step, ...] = ()
    bindings: Mapping[str, Binding] = field(default_factory=dict)
    typing: Mapping[str, Binding] = field(default_factory=dict)
    stars: tuple[Import, ...] = ()
    forwarded: tuple[str, ...] = ()
    classes: Mapping[str, Class] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


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


Parse = Callable[[bytes], ast.Module]
"""Parses a file, or has its tree still; raises SyntaxError."""


def parse(content: bytes) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        SyntaxError: for what is not Python of this interpreter's grammar.
    """
    try:
        return ast.parse(content)
    except (ValueError, RecursionError) as error:
        raise SyntaxError(str(error)) from None


def read_module(content: bytes, parse: Parse = parse) -> Module:
    """The facts of a file.

    Raises:
        SyntaxError: for what is not Python of this interpreter's grammar.
    """
    tree = parse(content)
    names: dict[str, Binding] = {}
    typing: dict[str, Binding] = {}
    stars: list[Import] = []
    _bind(tree.body, names, typing, stars)
    defined = dict(_defined(tree.body))

    def definitions() -> Mapping[str, _Definition]:
        return dict(_defined(parse(content).body))

    classes = [name for name, node in defined.items() if isinstance(node, ast.ClassDef)]
    functions = [name for name, node in defined.items() if not isinstance(node, ast.ClassDef)]
    return Module(
        steps=tuple(_steps(tree.body)),
        bindings=names,
        typing=typing,
        stars=tuple(stars),
        forwarded=_forwarded(tree),
        classes=Lazy(classes, definitions, _class),
        functions=Lazy(functions, definitions, _function),
        words={name: words for name, words in _literals(tree) if words and name.isupper()},
    )


def dotted(node: ast.expr) -> str:
    """The dotted name of an expression, empty where it is something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _steps(body: Sequence[ast.stmt]) -> Iterator[Step]:
    """The imports that running these statements makes, functions inside them left out."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _imports(node)
        elif isinstance(node, ast.Try):
            ways = [tuple(_steps([*node.body, *node.orelse]))]
            ways += [_way(h.body) for h in node.handlers if _catches(h, _IMPORT_ERRORS)]
            if ways[0]:
                yield Choice(tuple(ways))
            yield from _steps(node.finalbody)
        elif isinstance(node, ast.If):
            if not _typing_only(node.test):
                ways = [_way(node.body), _way(node.orelse)]
                if any(not isinstance(step, Dead) for way in ways for step in way):
                    yield Choice(tuple(ways), (ast.unparse(node.test), ""))
            else:
                yield from _steps(node.orelse)
        elif isinstance(node, (ast.With, ast.ClassDef)):
            yield from _steps(node.body)
        elif isinstance(node, (ast.For, ast.While)):
            if inside := tuple(_steps(node.body)):
                yield Choice((inside, ()))


def _way(body: Sequence[ast.stmt]) -> tuple[Step, ...]:
    steps = tuple(_steps(body))
    raises = [node for node in body if isinstance(node, ast.Raise)]
    return (*steps, Dead(raises[0].lineno)) if raises else steps


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[Import]:
    if isinstance(node, ast.ImportFrom):
        names = tuple((item.name, item.asname or item.name) for item in node.names)
        yield Import(node.lineno, node.module or "", node.level, names)
    else:
        for item in node.names:
            yield Import(node.lineno, item.name, 0, bound=item.asname or "")


def _catches(handler: ast.ExceptHandler, errors: frozenset[str]) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(dotted(kind).rpartition(".")[2] in errors for kind in kinds)


def _typing_only(test: ast.expr) -> bool:
    return dotted(test).rpartition(".")[2] == "TYPE_CHECKING"


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
                for item in ast.walk(target):
                    if isinstance(item, ast.Name):
                        names.setdefault(item.id, Binding(item.lineno))
        elif isinstance(node, ast.If):
            only = _typing_only(node.test)
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


def _class(node: ast.ClassDef) -> Class:
    members: dict[str, int] = {}
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            members.setdefault(item.name, item.lineno)
            for inner in ast.walk(item):
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                    if dotted(inner.value) == "self":
                        members.setdefault(inner.attr, inner.lineno)
        elif isinstance(item, (ast.Assign, ast.AnnAssign)):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    members.setdefault(target.id, item.lineno)
        elif isinstance(item, ast.ClassDef):
            members.setdefault(item.name, item.lineno)
    bases = tuple(filter(None, (dotted(_unsubscripted(base)) for base in node.bases)))
    return Class(node.lineno, bases, members)


def _unsubscripted(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node


def _function(node: _Function) -> Function:
    arguments = node.args
    names = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args)]
    keywords = [arg.arg for arg in arguments.kwonlyargs]
    required = [
        arg.arg
        for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    signature = Signature(
        tuple(names),
        len(arguments.defaults),
        tuple(keywords),
        tuple(required),
        arguments.vararg is not None,
        arguments.kwarg is not None,
    )
    everything = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    annotations = {arg.arg: _annotation(arg.annotation) for arg in everything if arg.annotation}
    inner = list(ast.walk(node))
    for item in inner:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotations.setdefault(item.target.id, _annotation(item.annotation))
    guards = _guards(node)
    conditions = _conditions(node)
    calls = [_call(item, conditions) for item in inner if isinstance(item, ast.Call)]
    reads = [
        Read(item.lineno, dotted(item.value), item.attr, _guarded(item, guards, conditions))
        for item in inner
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Load) and dotted(item.value)
    ]
    returns = [
        ast.unparse(item.value)
        for item in inner
        if isinstance(item, ast.Return) and item.value is not None
    ]
    return Function(
        node.lineno,
        signature,
        annotations,
        tuple(_steps(node.body)),
        tuple(call for call in calls if call.callee),
        tuple(reads),
        tuple(returns),
    )


def _guarded(
    node: ast.Attribute,
    guards: frozenset[tuple[str, str]],
    conditions: Mapping[int, tuple[str, ...]],
) -> bool:
    """Whether the function copes with the attribute's absence, or asked about another one first."""
    owner = dotted(node.value)
    asked = (f"hasattr({owner},", f"getattr({owner},")
    tests = conditions.get(id(node), ())
    return (owner, node.attr) in guards or any(word in test for test in tests for word in asked)


def _annotation(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node) if node is not None else ""


def _call(node: ast.Call, conditions: Mapping[int, tuple[str, ...]]) -> Call:
    spread = any(isinstance(arg, ast.Starred) for arg in node.args)
    spread = spread or any(word.arg is None for word in node.keywords)
    words = tuple(word.arg for word in node.keywords if word.arg)
    tests = conditions.get(id(node), ())
    return Call(
        node.lineno, dotted(node.func), len(node.args), words, spread, _argument_names(node), tests
    )


def _argument_names(node: ast.Call) -> tuple[str, ...]:
    return tuple(arg.id if isinstance(arg, ast.Name) else "" for arg in node.args)


def _conditions(function: ast.AST) -> Mapping[int, tuple[str, ...]]:
    """The tests that must be true for each call and attribute under an if, by the node's id."""
    found: dict[int, tuple[str, ...]] = {}
    waiting: list[tuple[ast.AST, tuple[str, ...]]] = [(function, ())]
    while waiting:
        node, tests = waiting.pop()
        if isinstance(node, (ast.Call, ast.Attribute)) and tests:
            found[id(node)] = tests
        if isinstance(node, (ast.If, ast.IfExp)):
            body = node.body if isinstance(node.body, list) else [node.body]
            orelse = node.orelse if isinstance(node.orelse, list) else [node.orelse]
            inside = (*tests, ast.unparse(node.test))
            waiting.append((node.test, tests))
            waiting += [(child, inside) for child in body]
            waiting += [(child, tests) for child in orelse]
        else:
            waiting += [(child, tests) for child in ast.iter_child_nodes(node)]
    return found


def _guards(node: ast.AST) -> frozenset[tuple[str, str]]:
    """The (owner, attribute) pairs whose absence the function copes with."""
    found: set[tuple[str, str]] = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Call) and dotted(item.func) in ("hasattr", "getattr"):
            safe = dotted(item.func) == "hasattr" or len(item.args) > 2
            if safe and len(item.args) > 1 and isinstance(item.args[1], ast.Constant):
                found.add((dotted(item.args[0]), str(item.args[1].value)))
        elif isinstance(item, ast.Try) and any(
            _catches(h, _ATTRIBUTE_ERRORS) for h in item.handlers
        ):
            for inner in (i for part in item.body for i in ast.walk(part)):
                if isinstance(inner, ast.Attribute) and dotted(inner.value):
                    found.add((dotted(inner.value), inner.attr))
    return frozenset(found)
