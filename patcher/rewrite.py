"""Anchors found exactly once, and edits that leave every other byte of a module as it is.

Nothing here walks a whole tree: a worker module has some 1,700 lines, and a full libcst visit costs
as much as the parse. Edits rebuild only the nodes between the module and the anchor.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

import libcst as cst

from .outcome import Outcome
from .patch import Refusal

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Edit = Callable[[cst.SimpleStatementLine], Sequence[Statement] | None]
_Node = TypeVar("_Node", bound=cst.CSTNode)

_SUITES = ("body", "orelse", "handlers", "finalbody", "cases")


def parse(content: bytes) -> cst.Module:
    """Parse a file's bytes, keeping encoding, line ends and byte order mark.

    Raises:
        Refusal: ``missing``, where libcst can't parse it.
    """
    try:
        return cst.parse_module(content)
    except cst.ParserSyntaxError as error:
        where = f"line {error.raw_line}: {error.message}"
    except (UnicodeDecodeError, LookupError, SyntaxError, RecursionError) as error:
        where = str(error)
    raise Refusal(Outcome.MISSING, f"libcst can't parse the file ({where}), so no anchor is found")


def generate(module: cst.Module) -> bytes:
    """The bytes of a module in its own encoding.

    Raises:
        Refusal: ``missing``, where libcst can't write it.
    """
    try:
        return module.bytes
    except RecursionError:
        sentence = "libcst can't write the file: an expression in it is too deep"
        raise Refusal(Outcome.MISSING, sentence) from None


def require_faithful(stock: cst.Module, base: bytes, after: bytes) -> None:
    """See that libcst gives back every byte that the edits left alone.

    libcst 1.9 does not keep the indent of a line that is but a backslash, for one. Where all lines
    of the base are in the result, it did; else the base is written once more to compare.

    Raises:
        Refusal: ``conflict``, where it does not.
    """
    if not _all_kept(base, after) and generate(stock) != base:
        sentence = "libcst would not give the file back byte for byte"
        raise Refusal(Outcome.CONFLICT, sentence)


def _all_kept(base: bytes, after: bytes) -> bool:
    """Whether every line of the base is in the result, as it was or further indented."""
    before, then = Counter(base.splitlines()), Counter(after.splitlines())
    if base.count(b"\r") > after.count(b"\r") or base.count(b"\n") > after.count(b"\n"):
        return False
    gained = list((then - before).elements())
    for line in (before - then).elements():
        deeper = (new for new in gained if new.endswith(line) and new[: -len(line)].isspace())
        found = next(deeper, None)
        if found is None:
            return False
        gained.remove(found)
    return True


def statement(module: cst.Module, text: str) -> Statement:
    """Parse one statement, leading comments included, in the module's own indent and line ends."""
    unit = module.default_indent
    indented = re.sub(
        r"^(?: {4})+",
        lambda found: unit * (len(found[0]) // 4),
        text.strip("\n"),
        flags=re.MULTILINE,
    )
    lines = indented.replace("\n", module.default_newline)
    return _parsed_statement(lines, module.config_for_parsing)


@cache
def _parsed_statement(text: str, config: cst.PartialParserConfig) -> Statement:
    """Nodes are immutable, so the text of a patch is parsed once for all releases."""
    return cst.parse_statement(text, config=config)


def spaced(node: Statement, blank_lines: int) -> Statement:
    """The statement with that many blank lines above it."""
    blanks = [cst.EmptyLine(indent=False) for _ in range(blank_lines)]
    return node.with_changes(leading_lines=[*blanks, *node.leading_lines])


def calls(node: cst.CSTNode, function: str) -> cst.Call | None:
    """The call, where the statement is exactly one call of that plain name."""
    match node:
        case cst.SimpleStatementLine(
            body=[cst.Expr(value=cst.Call(func=cst.Name(value=name)) as call)]
        ):
            return call if name == function else None
    return None


def append_function(module: cst.Module, text: str) -> cst.Module:
    """Append a top-level function at the end of the module.

    Raises:
        Refusal: ``conflict``, where the module already has that name.
    """
    node = statement(module, text)
    if not isinstance(node, cst.FunctionDef):
        raise TypeError("the text is not one function")
    if defines(module, node.name.value):
        raise Refusal(Outcome.CONFLICT, f"the file already defines {node.name.value}")
    return module.with_changes(body=[*module.body, spaced(node, 2)])


def defines(module: cst.Module, function: str) -> bool:
    """Whether the module has a top-level function of that name."""
    return any(
        isinstance(item, cst.FunctionDef) and item.name.value == function for item in module.body
    )


def edit_function(
    module: cst.Module, qualified_name: str, edit: Callable[[cst.FunctionDef], cst.FunctionDef]
) -> cst.Module:
    """Rebuild the one function of that name, such as ``Worker.load_model``.

    Raises:
        Refusal: ``missing`` or ``ambiguous``, with the nearest names the module has.
    """
    return _edit_named(module, qualified_name.split("."), qualified_name, edit)


def append_statement(function: cst.FunctionDef, node: Statement) -> cst.FunctionDef:
    """The function with one more statement at the end of its base level.

    Raises:
        Refusal: ``missing``, where the body shares a line with the ``def``.
    """
    body = function.body
    if not isinstance(body, cst.IndentedBlock):
        raise Refusal(
            Outcome.MISSING, f"the body of {function.name.value} shares a line with its def"
        )
    return function.with_changes(body=body.with_changes(body=[*body.body, node]))


def replace_call(
    function: cst.FunctionDef,
    called: str,
    build: Callable[[cst.SimpleStatementLine, cst.Call], Sequence[Statement]],
) -> cst.FunctionDef:
    """Put other statements where the function's one call of that name stands as a statement.

    Raises:
        Refusal: ``missing``, with the nearest misses, or ``ambiguous``, with the number of calls.
    """
    hits = 0

    def edit(line: cst.SimpleStatementLine) -> Sequence[Statement] | None:
        nonlocal hits
        call = calls(line, called)
        if call is None:
            return None
        hits += 1
        return build(line, call)

    rebuilt = _edit_statements(function, edit)
    if hits == 0:
        raise Refusal(
            Outcome.MISSING,
            f"{function.name.value} has no statement that calls {called}; "
            f"{_near(function, called)}",
        )
    if hits > 1:
        raise Refusal(
            Outcome.AMBIGUOUS,
            f"{function.name.value} calls {called} in {hits} places, and exactly one is expected",
        )
    return rebuilt


def under(head: Statement, line: cst.SimpleStatementLine) -> Statement:
    """A compound statement with that line, and no other, as its body; comments above stay above."""
    body = cst.IndentedBlock(body=[line.with_changes(leading_lines=[])])
    return head.with_changes(leading_lines=[*line.leading_lines, *head.leading_lines], body=body)


def require_unconditional(function: cst.FunctionDef, called: str) -> None:
    """See that a call of that name, where there is one, is reached whenever the function is run.

    Raises:
        Refusal: ``missing``, where it stands under a condition or behind an early return.
    """
    returned = False
    for item in function.body.body:
        if isinstance(item, cst.SimpleStatementLine) and calls(item, called) is not None:
            if returned:
                break
            return
        returned = returned or _returns(item)
    else:
        if not _mentions(function, called):
            return
    raise Refusal(
        Outcome.MISSING,
        f"{function.name.value} calls {called} under a condition or after an early return, so "
        "it can't be deferred as it stands",
    )


def _returns(node: cst.CSTNode) -> bool:
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return False
    return isinstance(node, cst.Return) or any(map(_returns, node.children))


def _mentions(node: cst.CSTNode, name: str) -> bool:
    found = isinstance(node, cst.Name) and node.value == name
    return found or any(_mentions(child, name) for child in node.children)


def _edit_named(
    node: _Node,
    names: Sequence[str],
    qualified_name: str,
    edit: Callable[[cst.FunctionDef], cst.FunctionDef],
) -> _Node:
    block: Any = node if isinstance(node, cst.Module) else node.body  # type: ignore[attr-defined]
    wanted: type[cst.CSTNode] = cst.FunctionDef if len(names) == 1 else cst.ClassDef
    children = [item for item in block.body if isinstance(item, (cst.FunctionDef, cst.ClassDef))]
    found = [item for item in children if isinstance(item, wanted) and item.name.value == names[0]]
    if len(found) != 1:
        outcome = Outcome.AMBIGUOUS if found else Outcome.MISSING
        near = get_close_matches(names[0], [item.name.value for item in children], 3)
        misses = f"; the nearest names are {', '.join(near)}" if near and not found else ""
        raise Refusal(outcome, f"{qualified_name} is defined {len(found)} times, not once{misses}")
    target = found[0]
    rebuilt: cst.CSTNode
    if isinstance(target, cst.FunctionDef):
        rebuilt = edit(target)
    else:
        rebuilt = _edit_named(target, names[1:], qualified_name, edit)
    body = [rebuilt if item is target else item for item in block.body]
    whole = body if block is node else block.with_changes(body=body)
    return node.with_changes(body=whole)


def _edit_statements(node: _Node, edit: Edit) -> _Node:
    changes: dict[str, Any] = {}
    for name in _SUITES:
        value = getattr(node, name, None)
        if isinstance(value, cst.CSTNode):
            rebuilt: Any = _edit_statements(value, edit)
            changed = rebuilt is not value
        elif isinstance(value, Sequence) and not isinstance(value, str):
            rebuilt = [new for item in value for new in _edited(item, edit)]
            changed = len(rebuilt) != len(value) or any(
                new is not old for new, old in zip(rebuilt, value, strict=True)
            )
        else:
            continue
        if changed:
            changes[name] = rebuilt
    return node.with_changes(**changes) if changes else node


def _edited(item: cst.CSTNode, edit: Edit) -> Sequence[cst.CSTNode]:
    if isinstance(item, cst.SimpleStatementLine):
        replaced = edit(item)
        return [item] if replaced is None else replaced
    if isinstance(item, (cst.FunctionDef, cst.ClassDef)):
        return [item]
    return [_edit_statements(item, edit)]


def _near(function: cst.FunctionDef, called: str) -> str:
    lines = [line.strip() for line in cst.Module(body=[function]).code.splitlines()]
    code = [line.partition("#")[0] for line in lines]
    word = re.compile(rf"\b{re.escape(called)}\b")
    if mentions := [line for line, run in zip(lines, code, strict=True) if word.search(run)]:
        return "the nearest misses are: " + "; ".join(mentions[:3])
    if any(map(word.search, lines)):
        return "it is commented out there"
    names = set(re.findall(r"(\w+)\(", "\n".join(code))) - {function.name.value}
    near = get_close_matches(called, sorted(names), 3)
    return f"the nearest calls are {', '.join(near)}" if near else "nothing comes near"
