"""Checks the releases of a validate run: each by itself, then each LMCache against every vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .matrix import Release, Row, Say, UnreadError, Workshop
from .outcome import KvpatchError
from .supply import Unreadable
from .tree import other_than
from .verdicts import Kept, recalled, remembered


@dataclass(frozen=True)
class Checked:
    """What checking one LMCache came to: its row, and its pairs as ``data.pairs`` has them.

    ``vllm`` is the release that each pair is with; ``unread`` are the pairs that could not be
    checked, as ``data.unread`` has them.
    """

    row: Row
    pairs: tuple[Mapping[str, Any], ...] = ()
    vllm: tuple[Release, ...] = field(default=(), compare=False)
    unread: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class Checker:
    """Checks releases beside the newest of the other package, and keeps what it finds."""

    workshop: Workshop
    kept: Kept
    newest: Mapping[str, Release]
    _told: set[str] = field(default_factory=set)

    def row(self, release: Release, memory: Mapping[str, Any]) -> Row:
        """What planning the patches on one release came to, from memory where it is there."""
        if isinstance(release.holder, Unreadable):
            # A plan in which no patch is for it would read nothing, and take it for sound.
            version = str(release.version)
            return Row(release.package, version, release.name, error=release.holder.error)
        beside = self.beside(release)
        return recalled(release, beside, memory) or self.workshop.row(release, beside)

    def beside(self, release: Release) -> Release:
        """The release that a row is planned beside: whether it needs a patch can depend on that."""
        return self.newest[other_than(release.package)]

    def complete(self, release: Release, vllm: Sequence[Release]) -> bool:
        """Whether all is kept: its row, and of an LMCache its pairs with all of ``vllm``."""
        memory = self.kept.of(release)
        if recalled(release, self.beside(release), memory) is None:
            return False
        if release.package == "vllm":
            return True
        return all(one.key is not None and one.key in memory for one in vllm)

    def vllm(self, release: Release) -> Row:
        """The row of one vLLM, kept."""
        memory = self.kept.of(release)
        row = self.row(release, memory)
        told = remembered(row, self.beside(release), memory)
        if told != memory:
            self.kept.keep(release, told)
        return row

    def lmcache(self, release: Release, vllm: Sequence[Release], say: Say) -> Checked:
        """The row of one LMCache, and its pairs with every vLLM that can be read, kept.

        A file that its row needs and can't be read is not needed for every pair: a patch may be
        for newer vLLM only.
        """
        memory = self.kept.of(release)
        row = self.row(release, memory)
        if isinstance(release.holder, Unreadable):
            return Checked(row)
        pairs: list[Mapping[str, Any]] = []
        beside: list[Release] = []
        unread: list[Mapping[str, str]] = []
        before = memory
        memory = remembered(row, self.beside(release), memory)
        for one in vllm:
            known = memory.get(str(one.key)) if one.key else None
            if known is None:
                try:
                    known = self.workshop.pair(one, release)
                except KvpatchError as error:
                    unread.append(_unread(one, release, error))
                    # One file that can't be read can be in the way of every pair, and of the row.
                    known_by_row = row.error is not None and row.error.message == error.message
                    if not known_by_row and error.message not in self._told:
                        self._told.add(error.message)
                        say(f"{error.message}; {error.hint}")
                    continue
                if one.key:
                    memory[one.key] = known
            pairs.append(known)
            beside.append(one)
        if memory != before:
            self.kept.keep(release, memory)
        self.workshop.forget(release)
        if row.error is not None and not pairs:
            # The row says it all.
            return Checked(row)
        return Checked(row, tuple(pairs), tuple(beside), tuple(unread))


def _unread(vllm: Release, lmcache: Release, error: KvpatchError) -> dict[str, str]:
    whose = {"distribution": error.package} if isinstance(error, UnreadError) else {}
    return {
        "vllm": str(vllm.version),
        "lmcache": str(lmcache.version),
        **whose,
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
    }
