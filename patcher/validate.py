"""``kvpatch validate``: the releases of the index, planned and checked, as one report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from packaging.version import Version

from .ahead import Reads, reads_of
from .catalogue import load
from .checking import Checker
from .connection import connection
from .fold import Memo, Options
from .index_config import configured
from .leftovers import clear
from .matrix import Release, Row, Say, Workshop, summary
from .outcome import ExitCode, KvpatchError
from .remote import RemoteWheel, Traffic
from .series import discover
from .sources import local_release
from .supply import Request, by_version, offered, specifiers
from .sweep import Sweep
from .verdicts import Kept


@dataclass(frozen=True)
class Matrix:
    """What validating came to.

    ``reads`` are the files that were read for it, ``unread`` the pairs that could not be checked;
    ``lost`` says which places could not be read that may have more releases.
    """

    rows: tuple[Row, ...]
    pairs: tuple[Mapping[str, Any], ...]
    traffic: Traffic
    seconds: float
    reads: Reads = field(default_factory=dict)
    unread: tuple[Mapping[str, str], ...] = ()
    lost: tuple[KvpatchError, ...] = ()

    @property
    def data(self) -> dict[str, Any]:
        """``data`` of the report."""
        return {
            "summary": {
                **summary(self.pairs, self.rows, self.unread),
                "seconds": round(self.seconds, 1),
                "requests": self.traffic.requests,
                "bytes": self.traffic.bytes,
            },
            "releases": [row.data for row in self.rows],
            "pairs": list(self.pairs),
            "unread": list(self.unread),
        }


def validate(asked: Request, cache: Path, say: Say) -> Matrix:
    """Read, plan and check all pairs that were asked for.

    A release that can't be read is a row with its error, and an index that can't be read is named;
    the rest goes on.

    Raises:
        KvpatchError: ``bad-spec`` and ``same-source`` (exit 2); ``no-network``, ``no-releases``,
            ``bad-source`` and others (exit 4), where nothing can be checked at all.
    """
    begun = time.monotonic()
    for spec in asked.specs.values():
        specifiers(spec)
    local = [local_release(path) for path in asked.sources]
    _told_apart(local)
    index = configured()
    traffic = Traffic()
    with ExitStack() as stack:
        session = stack.enter_context(connection(index, threads=asked.jobs))
        most = asked.max_download * 1_000_000
        remote = partial(
            RemoteWheel,
            session=session,
            cache=cache,
            traffic=traffic,
            max_download=most,
            held={},
        )
        offer = offered(asked, cache, remote, local)
        found = offer.releases
        workshop = Workshop(discover(), Options(known=load(), memo=Memo()))
        sides = by_version(found)
        newest = {name: side[-1] for name, side in sides.items()}
        kept = Kept.by(workshop.series, cache)
        stack.enter_context(kept.in_use())
        checker = Checker(workshop, kept, newest)
        sweep = Sweep(checker, sides, cache, traffic, asked.jobs, say)
        rows, checked = sweep.all(found, frozenset(local))
        reads = reads_of(found)
        kept.prune()
    clear(cache)
    pairs = tuple(pair for one in checked for pair in one.pairs)
    unread = tuple(pair for one in checked for pair in one.unread)
    seconds = time.monotonic() - begun
    return Matrix(tuple(rows), pairs, traffic, seconds, reads, unread, offer.lost)


def _told_apart(given: Sequence[Release]) -> None:
    """See that a report can tell what was given apart, which it does by release.

    Raises:
        KvpatchError: ``same-source``, exit 2.
    """
    seen: dict[tuple[str, Version], Release] = {}
    for release in given:
        other = seen.setdefault((release.package, release.version), release)
        if other is not release:
            raise KvpatchError(
                "same-source",
                f"{other.name} and {release.name} are both {release.package} {release.version}",
                "give one with --source, and the other in a run of its own",
                ExitCode.USAGE,
            )
