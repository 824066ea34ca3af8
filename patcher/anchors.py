"""Anchors that are written as the code they stand for, and the edits of what they find.

An anchor such as ``self.rope = get_fused_rope(*___)`` is compared by syntax tree, so that quotes,
line breaks and comments do not matter and everything else does: ``___`` stands for any expression,
``*___`` for all arguments that are left.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any

import libcst as cst

from . import rewrite
from .matching import matches
from .outcome import Outcome
from .patch import Refusal
from .rewrite import Statement

_BLANK = cst.Module(body=[])
_SUITES = ("body", "orelse", "handlers", "finalbody")
_LIBCST_NAMES = {"Delete": "Del", "AsyncFor": "For", "AsyncWith": "With"}


def replace(
    module: cst.Module,
    function: str,
    anchor: str,
    build: Callable[[Statement], Sequence[Statement]],
    *,
    times: int = 1,
) -> cst.Module:
    """Put other statements where the anchor stands in that function, exactly that many times.

    Args:
        module: the module.
        function: qualified name, such as ``LMCBlender.__init__``; empty for the module level.
        anchor: one statement.
        build: the statements for the one that was found.
        times: how often the anchor is expected.

    Raises:
        Refusal: ``missing``, with the nearest lines, or ``ambiguous``.
    """
    wanted = _statement(anchor)
    hits = 0

    def put(item: Statement) -> Sequence[Statement]:
        nonlocal hits
        if not _is_of_kind(item, wanted) or not matches(wanted, _parsed(item)):
            return [item]
        hits += 1
        return build(item)

    def edit(found: Any) -> Any:
        rebuilt = _inside(found, put)
        _expect(found, function, anchor, hits, times)
        return rebuilt

    if not function:
        return edit(module)  # type: ignore[no-any-return]
    return rewrite.edit_function(module, function, edit)


def replace_expression(
    module: cst.Module,
    function: str,
    anchor: str,
    build: Callable[[Any], str | cst.BaseExpression],
    *,
    times: int = 1,
) -> cst.Module:
    """Put another expression where the anchor stands in that function, exactly that many times.

    Raises:
        Refusal: ``missing``, with the nearest lines, or ``ambiguous``.
    """
    wanted = ast.parse(anchor, mode="eval").body
    hits = 0

    class Replacing(cst.CSTTransformer):
        def on_leave(self, original_node: Any, updated_node: Any) -> Any:
            nonlocal hits
            if not isinstance(original_node, cst.BaseExpression):
                return updated_node
            if _class_name(original_node) != type(wanted).__name__:
                return updated_node
            if not matches(wanted, _expression(original_node)):
                return updated_node
            hits += 1
            built = build(updated_node)
            if isinstance(built, cst.BaseExpression):
                return built
            return cst.parse_expression(built, config=module.config_for_parsing)

    def edit(found: cst.FunctionDef) -> cst.FunctionDef:
        rebuilt = found.with_changes(body=found.body.visit(Replacing()))
        _expect(found, function, anchor, hits, times)
        return rebuilt

    return rewrite.edit_function(module, function, edit)


def append_method(module: cst.Module, owner: str, text: str) -> cst.Module:
    """Append a method to the one class of that name.

    Raises:
        Refusal: ``missing`` or ``ambiguous``; ``conflict`` where the class has that method.
    """
    node = rewrite.spaced(rewrite.statement(module, text), 1)
    assert isinstance(node, cst.FunctionDef)
    found = [c for c in module.body if isinstance(c, cst.ClassDef) and c.name.value == owner]
    if len(found) != 1:
        outcome = Outcome.AMBIGUOUS if found else Outcome.MISSING
        raise Refusal(outcome, f"the class {owner} is defined {len(found)} times, not once")
    body = found[0].body
    methods = [c.name.value for c in body.body if isinstance(c, cst.FunctionDef)]
    if node.name.value in methods:
        raise Refusal(Outcome.CONFLICT, f"{owner} already defines {node.name.value}")
    rebuilt = found[0].with_changes(body=body.with_changes(body=[*body.body, node]))
    return module.with_changes(body=[rebuilt if c is found[0] else c for c in module.body])


def like(old: Statement, module: cst.Module, *texts: str) -> list[Statement]:
    """New statements in the place of an old one; comments above it stay above the first."""
    first, *rest = [rewrite.statement(module, text) for text in texts]
    return [first.with_changes(leading_lines=[*old.leading_lines, *first.leading_lines]), *rest]


def _inside(node: Any, put: Callable[[Statement], Sequence[Statement]]) -> Any:
    """The node with its statements, at any depth but in no inner function, put anew."""
    changes: dict[str, Any] = {}
    for name in _SUITES:
        value = getattr(node, name, None)
        if isinstance(value, (cst.IndentedBlock, cst.Else, cst.Finally, cst.If)):
            rebuilt = _inside(value, put)
            if rebuilt is not value:
                changes[name] = rebuilt
        elif isinstance(value, Sequence) and not isinstance(value, str):
            items = [new for item in value for new in _put(item, put)]
            if len(items) != len(value) or any(a is not b for a, b in zip(items, value)):  # noqa: B905
                changes[name] = items
    return node.with_changes(**changes) if changes else node


def _put(item: Any, put: Callable[[Statement], Sequence[Statement]]) -> Sequence[Any]:
    if isinstance(item, (cst.FunctionDef, cst.ClassDef)):
        return [item]
    if isinstance(item, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
        new = put(item)
        if len(new) != 1 or new[0] is not item:
            return new
    return [_inside(item, put)] if not isinstance(item, cst.SimpleStatementLine) else [item]


def _expect(found: cst.CSTNode, where: str, anchor: str, hits: int, times: int) -> None:
    if hits == times:
        return
    place = where or "the module"
    if hits > times:
        sentence = f"{place} has `{_short(anchor)}` in {hits} places, and {times} is expected"
        raise Refusal(Outcome.AMBIGUOUS, sentence)
    body = [found] if isinstance(found, cst.FunctionDef) else getattr(found, "body", [])
    lines = [line.strip() for line in cst.Module(body=body).code.splitlines()]
    near = get_close_matches(_short(anchor), [line for line in lines if line], 2, 0.5)
    misses = f"the nearest lines are: {'; '.join(near)}" if near else "nothing comes near"
    count = f"{hits} times, not {times}" if hits else "nowhere"
    raise Refusal(Outcome.MISSING, f"{place} has `{_short(anchor)}` {count}; {misses}")


def _short(anchor: str) -> str:
    return textwrap.dedent(anchor).strip().splitlines()[0].replace("*___", "...")


@cache
def _statement(text: str) -> ast.stmt:
    (only,) = ast.parse(textwrap.dedent(text)).body
    return only


def _is_of_kind(item: Statement, wanted: ast.stmt) -> bool:
    """Whether a statement may be the wanted one; most are not, and need not be written to tell."""
    first = item.body[0] if isinstance(item, cst.SimpleStatementLine) else item
    name = type(wanted).__name__
    return type(first).__name__ == _LIBCST_NAMES.get(name, name)


def _parsed(item: Statement) -> ast.stmt | None:
    try:
        (only,) = ast.parse(_BLANK.code_for_node(item.with_changes(leading_lines=[]))).body
    except (SyntaxError, ValueError):
        return None
    return only


def _expression(node: cst.CSTNode) -> ast.expr | None:
    try:
        return ast.parse(f"({_BLANK.code_for_node(node)})", mode="eval").body
    except SyntaxError:
        return None


def _class_name(node: cst.CSTNode) -> str:
    name = type(node).__name__
    return {"Comparison": "Compare"}.get(name, name)


def add_parameter(module: cst.Module, function: str, text: str) -> cst.Module:
    """Add a last parameter with a default, such as ``positions=None``.

    Raises:
        Refusal: ``missing`` or ``ambiguous``; ``conflict`` where it has a parameter of that name.
    """
    name, _, default = text.partition("=")

    def edit(found: cst.FunctionDef) -> cst.FunctionDef:
        params = found.params
        if name in [param.name.value for param in (*params.params, *params.kwonly_params)]:
            raise Refusal(Outcome.CONFLICT, f"{function} already has a parameter {name}")
        *others, last = params.params
        new = last.with_changes(
            name=cst.Name(name),
            annotation=None,
            default=cst.parse_expression(default),
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        comma = last.comma
        between = params.params[-2].comma if others else _comma()
        rebuilt = [*others, last.with_changes(comma=between), new.with_changes(comma=comma)]
        return found.with_changes(params=params.with_changes(params=rebuilt))

    return rewrite.edit_function(module, function, edit)


def argument(call: cst.Call, place: int, text: str) -> cst.Call:
    """The call with another argument in that place, or one more at the end."""
    args = list(call.args)
    value = cst.parse_expression(text)
    if place < len(args):
        args[place] = args[place].with_changes(value=value)
        return call.with_changes(args=args)
    last = args[-1]
    between = args[-2].comma if len(args) > 1 else _comma()
    return call.with_changes(
        args=[*args[:-1], last.with_changes(comma=between), last.with_changes(value=value)]
    )


def _comma() -> cst.Comma:
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
