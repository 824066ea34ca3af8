"""One sweep over the releases: each planned, each pair checked, by one process or two."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .ahead import fetching
from .ahead import load as likely_reads
from .checking import Checked, Checker
from .companion import Work, affordable, companion
from .matrix import Release, Row, Say
from .remote import Traffic
from .supply import Sides

_MANY = 300
"""So many pairs are worth the start of a second process."""

_PATIENCE_S = 60.0
"""So long the second process may take for its last release before it is done here instead."""


@dataclass(frozen=True)
class Sweep:
    """What one sweep over ``sides`` needs."""

    checker: Checker
    sides: Sides
    cache: Path
    traffic: Traffic
    jobs: int
    say: Say

    def all(
        self, found: Sequence[Release], given: Collection[Release] = ()
    ) -> tuple[list[Row], list[Checked]]:
        """The row of every release, and what came of each LMCache.

        Pairs of releases that were ``given`` say so.
        """
        fresh = [r for r in found if not self.checker.complete(r, self.sides["vllm"])]
        waiting = deque(lmcache for lmcache in self.sides["lmcache"] if lmcache in fresh)
        every = self.sides["vllm"]
        rows, checked = {}, {}
        with ExitStack() as stack:
            helper = None
            if len(waiting) * len(every) >= _MANY and self.jobs > 1 and affordable():
                helper = stack.enter_context(companion(self.traffic))
            order = _order([r for r in fresh if r.package == "vllm"], waiting)
            ready = stack.enter_context(fetching([*order], likely_reads(), self.jobs, self.say))
            taken = self._telling(waiting, ready)
            if helper:
                work = partial(Work.of, self.cache, every, self.checker.newest, ready)
                helper.begin(work, waiting, taken)
            for vllm in every:
                ready(vllm)
                rows[vllm] = self.checker.vllm(vllm)
            readable = [vllm for vllm, row in rows.items() if row.error is None]
            for lmcache in _taking(waiting):
                taken(lmcache)
                checked[lmcache] = self.checker.lmcache(lmcache, readable, self.say)
            if helper:
                helper.wait(_PATIENCE_S)
        for lmcache in self.sides["lmcache"]:
            if lmcache not in checked:
                checked[lmcache] = self.checker.lmcache(lmcache, readable, self.say)
            rows[lmcache] = checked[lmcache].row
        lmcaches = []
        for lmcache in self.sides["lmcache"]:
            one = checked[lmcache]
            pairs = [
                _with_sources(pair, [r for r in (vllm, lmcache) if r in given])
                for pair, vllm in zip(one.pairs, one.vllm, strict=True)
            ]
            lmcaches.append(replace(one, pairs=tuple(pairs)))
        return [replace(rows[r], given=r in given) for r in found], lmcaches

    def _telling(
        self, waiting: Collection[Release], ready: Callable[[Release], bool]
    ) -> Callable[[Release], bool]:
        """What waits for an LMCache that was taken to be checked, and tells of it.

        It says whether the release could be fetched.
        """
        count, against = len(waiting), len(self.sides["vllm"])

        def taken(lmcache: Release) -> bool:
            sound = ready(lmcache)
            number = count - len(waiting)
            self.say(
                f"checking LMCache {lmcache.version} against {against} vLLM ({number}/{count})"
            )
            return sound

        return taken


def _with_sources(pair: Mapping[str, Any], given: Sequence[Release]) -> Mapping[str, Any]:
    """The pair with the names of those of its releases that were given with ``--source``."""
    if not given:
        return pair
    return {**pair, "sources": {release.package: release.name for release in given}}


def _order(vllm: Sequence[Release], lmcache: Iterable[Release]) -> Iterator[Release]:
    """In the order in which two need them who take LMCache releases from both ends."""
    left = deque(lmcache)
    if left:
        yield left.pop()
    yield from vllm
    while left:
        yield left.popleft()
        if left:
            yield left.pop()


def _taking(waiting: deque[Release]) -> Iterator[Release]:
    """Those that wait, while another thread takes from their other end."""
    with contextlib.suppress(IndexError):
        while waiting:
            release = waiting.popleft()
            yield release
