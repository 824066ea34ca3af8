"""What a patch module declares: metadata, transformers, post-condition, examples."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .outcome import Outcome

if TYPE_CHECKING:
    import libcst as cst

Transform = Callable[["cst.Module"], "cst.Module"]
"""Rewrites a module, or raises :class:`Refusal`. Imports libcst when called, not before."""


class Refusal(Exception):  # noqa: N818 - a verdict, not a fault
    """A transformer or a post-condition that will not go on.

    Args:
        outcome: ``missing``, ``ambiguous``, ``foreign`` or ``conflict``.
        reason: one sentence for the user, with the nearest misses where there are any.
    """

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True)
class Judgement:
    """What a post-condition says of a file: whether it holds, and a sentence why (not)."""

    holds: bool
    reason: str


PostCondition = Callable[[ast.Module, Version], Judgement]
"""Judges any text of the file, whoever wrote it, for that release of the distribution."""

Faithful = Callable[[ast.Module, ast.Module], Judgement]
"""Judges whether the second module is the first one wherever the patch's guard reads false."""


@dataclass(frozen=True)
class Rest:
    """What is left of a module without the edits that a patch stands for.

    ``digest`` is that of its syntax tree, whatever the Python that parsed it; ``clashes`` are the
    names that the edits bind although what is left uses them, so that it is not what it seems.
    """

    digest: str
    clashes: tuple[str, ...] = ()


TakeOut = Callable[[ast.Module], Rest]
"""Takes out of a module, whoever wrote it, what does a patch's work."""


GOAL = "H"
"""The letter of the missing registration: without its cure no pair blends."""

STATIC = "static only"
"""The proof of a patch that was planned and judged on every release, and not run."""


@dataclass(frozen=True)
class Condition:
    """A condition of the pair of installed distributions under which a patch is needed."""

    sentence: str
    holds: Callable[[Mapping[str, Version]], bool]


@dataclass(frozen=True)
class Need:
    """Another patch that must be in place too, for those releases of the patch's distribution."""

    id: str
    versions: str


@dataclass(frozen=True)
class Target:
    """A file the patch rewrites: path below the site folder, releases, transformer.

    Where a file has another path in some releases and their versions don't tell which, the targets
    for it share a word in ``file``; exactly one of them must exist.
    """

    path: str
    versions: str
    transform: Transform
    file: str = ""


class ExampleKind(str, Enum):
    """The four kinds of example a patch module gives."""

    REWRITTEN = "rewritten"
    UNTOUCHED = "untouched"
    ABSORBED = "absorbed"
    REFUSED = "refused"


@dataclass(frozen=True)
class Example:
    """One file before the patch, and what must become of it.

    ``version`` is the release the text stands for, ``path`` the file where a patch has several in
    that release, ``beside`` the release of the other distribution where the pair decides.
    ``after`` belongs to ``rewritten``; ``outcome`` and ``reason`` (a part of the sentence) to
    ``refused``.
    """

    kind: ExampleKind
    name: str
    version: str
    before: str
    after: str | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    path: str = ""
    beside: str = ""


@dataclass(frozen=True)
class Patch:
    """One change to one distribution, with its reasons and its end in sight.

    ``cures`` are letters of :mod:`.compat`; ``proved`` says on which pairs it was run with and
    without, or what else its effect was shown by.
    """

    id: str
    distribution: str
    targets: tuple[Target, ...]
    versions: str
    why: str
    how: str
    upstream: str
    retire_when: str
    post_condition: PostCondition
    faithful: Faithful
    cures: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    when: Condition | None = None
    take_out: TakeOut | None = None
    proved: str = STATIC

    def in_range(self, version: Version) -> bool:
        """Whether this release of the distribution is one the patch was made for."""
        return SpecifierSet(self.versions).contains(version, prereleases=True)

    def needed_with(self, version: Version) -> tuple[str, ...]:
        """The ids of the patches that must be in place beside this one for that release."""
        return tuple(
            need.id
            for need in self.needs
            if SpecifierSet(need.versions).contains(version, prereleases=True)
        )
