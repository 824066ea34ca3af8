"""Writes an edited module by splicing the functions that changed into the text they came from.

Every other byte is the base's own, so nothing that libcst would not give back can change, and it
costs a fraction of writing the whole module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from .rewrite import Statement


class _OtherEditError(Exception):
    """The edit is not one of functions alone."""


@dataclass(frozen=True)
class _Edit:
    """A function before and after, and the indents of the classes around it."""

    before: cst.FunctionDef
    after: cst.FunctionDef
    indents: tuple[str | None, ...]


def spliced(stock: cst.Module, edited: cst.Module, base: bytes) -> bytes | None:
    """The base with the changed functions written anew, and with new statements at its end.

    Returns:
        None where the edits are of another kind, or the text of a changed function is not there
        exactly once; the whole module has to be written then.
    """
    text = base.decode(stock.encoding)
    if text.encode(stock.encoding) != base or not stock.has_trailing_newline:
        return None
    footer = "".join(map(stock.code_for_node, stock.footer))
    if not text.endswith(footer):
        return None
    if not _same_frame(stock, edited):
        return None
    count = len(stock.body)
    try:
        edits = list(_edits(stock.body, edited.body[:count], ()))
    except _OtherEditError:
        return None
    for edit in edits:
        before = _code(stock, [edit.before], edit.indents)
        if text.count(before) != 1:
            return None
        text = text.replace(before, _code(stock, [edit.after], edit.indents))
    added = edited.body[count:]
    if added:
        text = text.removesuffix(footer) + _code(stock, added, ()) + footer
    return text.encode(stock.encoding)


def _edits(
    before: Sequence[cst.CSTNode], after: Sequence[cst.CSTNode], indents: tuple[str | None, ...]
) -> Iterator[_Edit]:
    """The functions that differ between two bodies of the same statements.

    Raises:
        _OtherEditError: where something else differs.
    """
    if len(before) != len(after):
        raise _OtherEditError
    for old, new in zip(before, after, strict=True):
        if old is new:
            continue
        if isinstance(old, cst.FunctionDef) and isinstance(new, cst.FunctionDef):
            yield _Edit(old, new, indents)
        elif (
            isinstance(old, cst.ClassDef)
            and isinstance(new, cst.ClassDef)
            and isinstance(old.body, cst.IndentedBlock)
            and isinstance(new.body, cst.IndentedBlock)
            and _same_head(old, new)
        ):
            yield from _edits(old.body.body, new.body.body, (*indents, old.body.indent))
        else:
            raise _OtherEditError


def _same_frame(stock: cst.Module, edited: cst.Module) -> bool:
    """Whether two modules differ in their statements at most."""
    frame = ("header", "footer", "encoding", "default_indent", "default_newline")
    return stock.has_trailing_newline == edited.has_trailing_newline and all(
        getattr(stock, name) is getattr(edited, name) for name in frame
    )


def _same_head(old: cst.ClassDef, new: cst.ClassDef) -> bool:
    """Whether two classes differ in the statements of their bodies at most."""
    heads = ("name", "bases", "keywords", "decorators", "leading_lines", "lines_after_decorators")
    blocks = ("header", "indent", "footer")
    return all(getattr(old, name) is getattr(new, name) for name in heads) and all(
        getattr(old.body, name) is getattr(new.body, name) for name in blocks
    )


def _code(stock: cst.Module, nodes: Sequence[Statement], indents: tuple[str | None, ...]) -> str:
    """The text of statements inside classes with those indents, in the module's own conventions."""
    body: Sequence[Statement] = nodes
    for indent in reversed(indents):
        block = cst.IndentedBlock(body=body, indent=indent)
        body = [cst.ClassDef(name=cst.Name("X"), body=block)]
    module = cst.Module(
        body=body,
        encoding=stock.encoding,
        default_indent=stock.default_indent,
        default_newline=stock.default_newline,
    )
    lines = module.code.split(stock.default_newline)
    return stock.default_newline.join(lines[len(indents) :])
