"""Which names a module surely binds, and which a function reads although nothing binds them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence

from .walk import children, walk

_ALWAYS = frozenset(dir(builtins)) | {"__file__", "__class__", "__builtins__"}
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def type_checking_only(test: ast.expr) -> bool:
    """Whether a condition is true for type checkers alone."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
    return False


def surely_bound(body: Sequence[ast.stmt]) -> frozenset[str] | None:
    """The names bound after a module's statements ran; None where a star import hides them.

    Of a condition only what both branches bind counts. Of a ``try`` its body counts: what a handler
    does instead is for the case in which an import failed.
    """
    found: set[str] = set()
    for node in body:
        match node:
            case ast.If(test=test, body=inner, orelse=orelse):
                ways = [surely_bound(inner), surely_bound(orelse)]
                taken = ways[1:] if type_checking_only(test) else ways
                if any(way is None for way in taken):
                    return None
                found |= frozenset.intersection(*(way for way in taken if way is not None))
            case ast.Try() | ast.With():
                parts = [*node.body, *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
                within = surely_bound(parts)
                if within is None:
                    return None
                found |= within
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return None
            case ast.For() | ast.While() | ast.AsyncFor():
                continue
        found |= set(_bound_by(node))
    return frozenset(found)


def unbound_names(
    function: ast.FunctionDef, module_names: frozenset[str] | None
) -> tuple[str, ...]:
    """The names a function reads that neither it, its module nor Python binds, in order of use.

    A name counts as bound wherever in the function it is bound, before or after.

    Args:
        function: the function.
        module_names: what :func:`surely_bound` says of its module.
    """
    if module_names is None:
        return ()
    bound, read = set[str](), dict[str, None]()
    for node in _evaluated(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read[node.id] = None
        else:
            bound |= set(_bound_by(node, deeply=False))
    known = bound | module_names | _ALWAYS
    return tuple(name for name in read if name not in known)


def local_names(function: ast.FunctionDef) -> frozenset[str]:
    """The names that are a function's own, because it binds them somewhere."""
    found, shared = set[str](), set[str]()
    pending: list[ast.AST] = [*function.body, *_arguments(function)]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            shared |= set(node.names)
            continue
        found |= set(_bound_by(node, deeply=False))
        if not isinstance(node, (*_DEFINED, ast.Lambda)):
            pending.extend(children(node))
    return frozenset(found - shared)


def _arguments(function: ast.FunctionDef) -> Iterator[ast.AST]:
    return (node for node in walk(function.args) if isinstance(node, ast.arg))


def _evaluated(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """All nodes of a function but its decorators and annotations."""
    pending: list[ast.AST] = [*reversed(function.body), function.args]
    while pending:
        node = pending.pop()
        yield node
        inner: Iterable[ast.AST] = children(node)
        if isinstance(node, ast.arg):
            inner = ()
        elif isinstance(node, ast.AnnAssign):
            inner = [node.target, *([node.value] if node.value is not None else [])]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = [node.args, *node.body, *node.decorator_list]
        elif isinstance(node, ast.If) and type_checking_only(node.test):
            inner = node.orelse
        pending.extend(reversed(list(inner)))


def _bound_by(node: ast.AST, *, deeply: bool = True) -> Iterator[str]:
    """The names one node binds; ``deeply`` also those in the targets it holds."""
    match node:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            for alias in names:
                yield alias.asname or alias.name.partition(".")[0]
        case ast.arg(arg=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            yield from names
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
    if isinstance(node, _DEFINED):
        yield node.name
    elif deeply and isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)):
        if not (isinstance(node, ast.AnnAssign) and node.value is None):
            for inner in walk(node):
                yield from _bound_by(inner, deeply=False)
    elif deeply and isinstance(node, ast.With):
        for item in node.items:
            for inner in walk(item):
                yield from _bound_by(inner, deeply=False)
