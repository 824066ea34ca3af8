"""Small pure functions of another project's source, made callable without importing that source.

Only a function that is seen to be pure is compiled: its constructs, the names it reads and the
attributes it takes are on a list. It can compute, raise, log to a collector and change its own
arguments; it can't import, open, or reach anything else.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

Function = ast.FunctionDef | ast.Lambda

_NODES: tuple[type[ast.AST], ...] = (
    ast.arguments,
    ast.arg,
    ast.expr_context,
    ast.boolop,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.keyword,
    ast.comprehension,
    ast.ExceptHandler,
    ast.match_case,
    ast.pattern,
    ast.BoolOp,
    ast.BinOp,
    ast.UnaryOp,
    ast.Lambda,
    ast.IfExp,
    ast.Dict,
    ast.Set,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.Compare,
    ast.Call,
    ast.FormattedValue,
    ast.JoinedStr,
    ast.Constant,
    ast.Attribute,
    ast.Subscript,
    ast.Starred,
    ast.Name,
    ast.List,
    ast.Tuple,
    ast.Slice,
    ast.FunctionDef,
    ast.Return,
    ast.Delete,
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.For,
    ast.If,
    ast.Raise,
    ast.Try,
    ast.Assert,
    ast.Expr,
    ast.Pass,
    ast.Break,
    ast.Continue,
    ast.Match,
)
# The kinds of those that stand for several, such as operators, too.
_KINDS = frozenset(kind for one in _NODES for kind in (one, *one.__subclasses__()))
_BUILTINS: Mapping[str, Any] = {
    value.__name__: value
    for value in (
        *(int, float, str, bool, list, dict, set, tuple, len, isinstance, getattr, hasattr),
        *(any, all, repr, min, max, sorted, zip, enumerate),
        *(Exception, ValueError, TypeError, KeyError, SyntaxError, AssertionError),
    )
}
_MODULES: Mapping[str, tuple[str, ...]] = {
    "json": ("loads", "JSONDecodeError"),
    "ast": ("literal_eval",),
    "re": ("match",),
    "logger": ("debug", "info", "warning", "error"),
}
_REAL = {"json": json, "ast": ast, "re": re}


@dataclass(frozen=True)
class Logged:
    """What a function logged at warning level or above, in order."""

    messages: list[str]

    def warning(self, message: object, *args: object) -> None:
        """Keep a message."""
        self.messages.append(str(message) % args if args else str(message))

    error = warning

    def info(self, *_: object) -> None:
        """Drop a message."""

    debug = info


def pure_functions(
    module: ast.Module, names: Iterable[str], logged: Logged | None = None
) -> Mapping[str, Callable[..., Any]]:
    """The named functions of a module's top level, those alone that are seen to be pure.

    Args:
        module: the parsed source.
        names: of functions to make callable; what they call is taken along.
        logged: collects what they log; None drops it.
    """
    defined = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    scope = _scope(logged)
    made: dict[str, Callable[..., Any]] = {}
    for name in names:
        node = defined.get(name)
        if node is not None and _bring(node, defined, scope, set()):
            made[name] = scope[name]
    return made


def pure_expression(
    text: str, functions: Mapping[str, Callable[..., Any]]
) -> Callable[..., Any] | None:
    """A converter written as an expression, such as a lambda or a name; None unless pure."""
    node = ast.parse(text, mode="eval").body
    if isinstance(node, ast.Name):
        return functions.get(node.id) or _BUILTINS.get(node.id)
    if not isinstance(node, ast.Lambda):
        return None
    if not _is_pure(node, _inside(node.body), set(functions)):
        return None
    scope = {**_scope(None), **functions}
    made: Callable[..., Any] = eval(compile(ast.Expression(node), "<lambda>", "eval"), scope)  # noqa: S307
    return made


def _scope(logged: Logged | None) -> dict[str, Any]:
    modules: dict[str, Any] = {
        name: SimpleNamespace(**{part: getattr(real, part) for part in _MODULES[name]})
        for name, real in _REAL.items()
    }
    return {
        "__builtins__": {},
        **_BUILTINS,
        **modules,
        "logger": Logged([]) if logged is None else logged,
    }


def _bring(
    node: ast.FunctionDef,
    defined: Mapping[str, ast.FunctionDef],
    scope: dict[str, Any],
    pending: set[str],
) -> bool:
    """Compile a function into the scope, and what it calls before it."""
    if node.name in scope or node.name in pending:
        return True
    nodes = _inside(*node.body)
    needed = {one.id for one in nodes if isinstance(one, ast.Name)} & set(defined)
    inside = {*pending, node.name}
    if not _is_pure(node, nodes, needed):
        return False
    if not all(_bring(defined[name], defined, scope, inside) for name in needed):
        return False
    code = ast.Module([bare(node)], [])
    exec(compile(code, f"<{node.name}>", "exec"), scope)  # noqa: S102
    return True


def _inside(*roots: ast.AST) -> list[ast.AST]:
    """The nodes and all below them, as ``ast.walk`` gives them and quicker."""
    found = list(roots)
    for one in found:
        for value in vars(one).values():
            if isinstance(value, ast.AST):
                found.append(value)
            elif isinstance(value, list):
                found += [part for part in value if isinstance(part, ast.AST)]
    return found


def bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """The function without annotations, whose names need not exist here, and without a docstring.

    An assertion without words says what it asked for.
    """
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    plain = ast.arguments(
        posonlyargs=[],
        args=[ast.copy_location(ast.arg(one.arg), one) for one in arguments],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=node.args.defaults,
    )
    body = [
        one for one in node.body if not (isinstance(one, ast.Expr) and _is_text(one.value))
    ] or [ast.copy_location(ast.Pass(), node)]
    made: ast.FunctionDef = ast.parse("def name(): pass").body[0]  # type: ignore[assignment]
    made.name, made.args, made.body = node.name, plain, body
    for one in _inside(*body):
        if isinstance(one, ast.Assert) and one.msg is None:
            # Without it nobody could say which of them failed.
            one.msg = ast.copy_location(ast.Constant(f"not {ast.unparse(one.test)}"), one)
    return made


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_pure(function: Function, nodes: Sequence[ast.AST], known: set[str]) -> bool:
    """Whether all ``nodes`` of its body are on the list."""
    if isinstance(function, ast.FunctionDef) and (
        function.decorator_list or function.args.vararg or function.args.kwarg
    ):
        return False
    own: set[str] = set()
    annotations: set[int] = set()
    for one in (*_inside(function.args), *nodes):
        if isinstance(one, ast.Name):
            if not isinstance(one.ctx, ast.Load):
                own.add(one.id)
        elif isinstance(one, ast.arg):
            own.add(one.arg)
        elif isinstance(one, ast.ExceptHandler | ast.MatchAs):
            own |= {one.name} if one.name else set()
        elif isinstance(one, ast.AnnAssign):
            annotations |= {id(part) for part in _inside(one.annotation)}
    allowed = own | known | set(_BUILTINS)
    return all(_is_allowed(one, allowed) for one in nodes if id(one) not in annotations)


def _is_allowed(node: ast.AST, names: set[str]) -> bool:
    if type(node) not in _KINDS:
        return False
    if isinstance(node, ast.Attribute):
        if node.attr.startswith("_"):
            return False
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id in _MODULES and owner.id not in names:
            return node.attr in _MODULES[owner.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        named = node.args[1] if len(node.args) > 1 else None
        return isinstance(named, ast.Constant) and not str(named.value).startswith("__")
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id in names or node.id in _MODULES
    return True
