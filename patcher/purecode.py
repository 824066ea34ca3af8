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
    if not _is_pure(node, list(ast.walk(node.body)), set(functions)):
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
    nodes = [one for part in node.body for one in ast.walk(part)]
    needed = {one.id for one in nodes if isinstance(one, ast.Name)} & set(defined)
    inside = {*pending, node.name}
    if not _is_pure(node, nodes, needed):
        return False
    if not all(_bring(defined[name], defined, scope, inside) for name in needed):
        return False
    code = ast.Module([bare(node)], [])
    exec(compile(ast.fix_missing_locations(code), f"<{node.name}>", "exec"), scope)  # noqa: S102
    return True


def bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """The function without annotations, whose names need not exist here, and without a docstring.

    An assertion without words says what it asked for.
    """
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    plain = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(one.arg) for one in arguments],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=node.args.defaults,
    )
    body = [
        one for one in node.body if not (isinstance(one, ast.Expr) and _is_text(one.value))
    ] or [ast.Pass()]
    made: ast.FunctionDef = ast.parse("def name(): pass").body[0]  # type: ignore[assignment]
    made.name, made.args, made.body = node.name, plain, body
    for one in ast.walk(made):
        if isinstance(one, ast.Assert) and one.msg is None:
            # Without it nobody could say which of them failed.
            one.msg = ast.Constant(f"not {ast.unparse(one.test)}")
    return made


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_pure(function: Function, nodes: Sequence[ast.AST], known: set[str]) -> bool:
    """Whether all ``nodes`` of its body are on the list."""
    if isinstance(function, ast.FunctionDef) and (
        function.decorator_list or function.args.vararg or function.args.kwarg
    ):
        return False
    own = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    own |= {
        one.id for one in nodes if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)
    }
    own |= {one.name for one in nodes if isinstance(one, ast.ExceptHandler) and one.name}
    own |= {one.name for one in nodes if isinstance(one, ast.MatchAs) and one.name}
    own |= {one.arg for one in nodes if isinstance(one, ast.arg)}
    allowed = own | known | set(_BUILTINS)
    annotations = {
        id(part)
        for one in nodes
        if isinstance(one, ast.AnnAssign)
        for part in ast.walk(one.annotation)
    }
    return all(_is_allowed(one, allowed) for one in nodes if id(one) not in annotations)


def _is_allowed(node: ast.AST, names: set[str]) -> bool:
    if not isinstance(node, _NODES):
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
