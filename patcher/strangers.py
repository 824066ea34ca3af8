"""Texts that are neither pristine nor ours: what was changed in them beside the patches' work."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .digest import sha256
from .functions import differing, function_hashes
from .judgements import parsed
from .tree import Package, Provenance, Source

if TYPE_CHECKING:
    from .catalogue import Catalogue
    from .patch import TakeOut

_MOST_NAMED = 8


@dataclass(frozen=True)
class Stranger:
    """A text that is neither pristine nor ours, and what it can be compared with.

    ``name`` is that of its package, ``known`` the catalogue, where one is to be asked.
    """

    name: str
    package: Package
    source: Source
    known: Catalogue | None = None


def besides(stranger: Stranger, module: ast.Module, take_out: TakeOut | None) -> str:
    """Why a text that does the work can't be taken as it is; empty where it can.

    It must be the release's, or what kvpatch wrote, but for what does the work.

    Args:
        stranger: the text.
        module: the same, parsed.
        take_out: takes out of it what does the work; None where no patch of the file can.
    """
    source, package, known = stranger.source, stranger.package, stranger.known
    if source.original is None and known is None:
        return ""
    if take_out is None:
        same = known is not None and known.writes(sha256(source.content))
        return "" if same else "what else was changed can't be told from the patch"
    rest = take_out(module)
    if source.original is not None:
        original = parsed(source.original)
        expected = None if isinstance(original, str) else take_out(original).digest
    else:
        assert known is not None
        expected = known.rest_of(stranger.name, package.version, source.path)
    if expected is None:
        return f"this kvpatch has not read {package.distribution} {package.version}"
    if rest.digest != expected:
        return "the model is registered, but more was changed"
    if rest.clashes:
        return f"the edit binds {', '.join(rest.clashes)}, which the rest of the file uses"
    return ""


def differences(stranger: Stranger, ours: bytes | None) -> str:
    """Names the functions in which a strange text differs from the release, or from ours.

    Empty for a text that does not parse.

    Args:
        stranger: the text.
        ours: what kvpatch would write over the journal's original; None where it has none.
    """
    source, known = stranger.source, stranger.known
    if isinstance(parsed(source.content), str):
        # None of its functions can be told, so none can be said to differ.
        return ""
    expected: Mapping[str, str] | None = None
    if ours is not None:
        expected = function_hashes(ours)
    elif known is not None:
        expected = known.functions_of(stranger.name, stranger.package.version, source.path)
    if expected is None:
        return ""
    names = differing(expected, function_hashes(source.content))
    if source.provenance is Provenance.UNKNOWN:
        return f"; it differs from the release in {_listed(names)}" if names else ""
    if not names and stranger.package.version.local:
        # A build of somebody's own: what is known is the release that it was made of.
        return ""
    return f", in {_listed(names)}" if names else ", in blank lines or line ends alone"


def _listed(names: Sequence[str]) -> str:
    shown = names if len(names) <= _MOST_NAMED else names[: _MOST_NAMED - 1]
    rest = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return f"{', '.join(shown)}{rest}"
