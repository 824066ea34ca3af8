"""``kvpatch validate``: the releases of the index, planned and checked, as one report."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from .ahead import Reads, fetching, reads_of
from .ahead import load as likely_reads
from .catalogue import load
from .checking import Checked, Checker
from .companion import Work, affordable, companion
from .fold import Memo, Options
from .index import Wheel, configured, connection, releases
from .index_config import extras
from .matrix import Release, Row, Say, Workshop, summary
from .outcome import ExitCode, KvpatchError
from .remote import RemoteWheel, Traffic
from .series import discover
from .tree import PACKAGES
from .verdicts import Kept

FIRST = {"vllm": ">=0.8.5", "lmcache": ">=0.3.3"}
"""The releases that are looked at where none are named: those the series was begun for."""

_MANY = 300
"""So many pairs are worth the start of a second process."""

_PATIENCE_S = 60.0
"""So long the second process may take for its last release before it is done here instead."""

Sides = Mapping[str, Sequence[Release]]
"""The releases of each package, the oldest first."""


@dataclass(frozen=True)
class Request:
    """What the user asked for. A spec is one of PEP 440, empty for :data:`FIRST`.

    ``max_download`` is the size in MB up to which a wheel is read whole where its server answers no
    ranges.
    """

    specs: Mapping[str, str]
    pre: bool = False
    sources: tuple[Path, ...] = ()
    jobs: int = 8
    max_download: int = 0


@dataclass(frozen=True)
class Matrix:
    """What validating came to.

    ``reads`` are the files that were read for it, ``unread`` the pairs that could not be checked.
    """

    rows: tuple[Row, ...]
    pairs: tuple[Mapping[str, Any], ...]
    traffic: Traffic
    seconds: float
    reads: Reads = field(default_factory=dict)
    unread: tuple[Mapping[str, str], ...] = ()

    @property
    def data(self) -> dict[str, Any]:
        """``data`` of the report."""
        return {
            "summary": {
                **summary(self.pairs, self.rows),
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

    A release that can't be read is a row with its error; the rest goes on.

    Raises:
        KvpatchError: ``bad-spec`` (exit 2); ``no-network``, ``no-releases``, ``bad-source`` and
            others (exit 4), where nothing can be checked at all.
    """
    begun = time.monotonic()
    for spec in asked.specs.values():
        _specifiers(spec)
    local = [_local(path) for path in asked.sources]
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
        found = [release for name in PACKAGES for release in _listed(name, asked, cache, remote)]
        found += _linked(extras(index).folders, asked, found)
        workshop = Workshop(discover(), Options(known=load(), memo=Memo()))
        found += local
        sides = _sides(found)
        newest = {name: side[-1] for name, side in sides.items()}
        checker = Checker(workshop, Kept.by(workshop.series, cache), newest)
        run = _Run(checker, sides, cache, traffic, asked.jobs, say)
        rows, checked = run.all(found, frozenset(local))
        reads = reads_of(found)
    pairs = tuple(pair for one in checked for pair in one.pairs)
    unread = tuple(pair for one in checked for pair in one.unread)
    return Matrix(tuple(rows), pairs, traffic, time.monotonic() - begun, reads, unread)


@dataclass(frozen=True)
class _Run:
    """One run over all releases that were found."""

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
        memories = {release: self.checker.kept.of(release) for release in found}
        fresh = [r for r in found if not _complete(r, memories[r], self.sides)]
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
            placed = _placed(lmcache, readable, checked[lmcache].pairs)
            pairs = (_with_sources(pair, [r for r in two if r in given]) for pair, two in placed)
            lmcaches.append(replace(checked[lmcache], pairs=tuple(pairs)))
        return [rows[release] for release in found], lmcaches

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


def _placed(
    lmcache: Release, vllm: Sequence[Release], pairs: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], tuple[Release, ...]]]:
    """The pairs of one LMCache, each with its two releases; a vLLM that could not be read lacks."""
    left = iter(vllm)
    for pair in pairs:
        one = next((release for release in left if str(release.version) == pair["vllm"]), None)
        yield pair, (lmcache,) if one is None else (one, lmcache)


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


def _sides(found: Sequence[Release]) -> Sides:
    """The releases of each package, by version."""
    sides = {
        name: sorted((r for r in found if r.package == name), key=lambda r: r.version)
        for name in PACKAGES
    }
    for name, side in sides.items():
        if not side:
            raise KvpatchError(
                "no-releases",
                f"no release of {name} is in what was asked for",
                "widen --vllm or --lmcache, or give --pre",
                ExitCode.ENVIRONMENT,
            )
    return sides


def _complete(release: Release, memory: Mapping[str, Any], sides: Sides) -> bool:
    """Whether nothing of that release has to be read."""
    if not memory.get("row"):
        return False
    if release.package == "vllm":
        return True
    return all(vllm.key is not None and vllm.key in memory for vllm in sides["vllm"])


def _listed(
    name: str, asked: Request, cache: Path, remote: Callable[[Wheel], RemoteWheel]
) -> Iterator[Release]:
    spec = asked.specs.get(name) or FIRST[name]
    for wheel in releases(name, spec, pre=asked.pre, cache=cache, sdists=True):
        if wheel.sdist and not wheel.yanked:
            yield Release(wheel.distribution, wheel.version, NoWheel(wheel), wheel.filename)
        elif not wheel.yanked:
            holder = remote(wheel)
            yield Release(wheel.distribution, wheel.version, holder, wheel.filename, wheel.sha256)


def _linked(folders: Sequence[Path], asked: Request, found: Sequence[Release]) -> Iterator[Release]:
    """The wheels of find-links folders, of releases that the index lacks."""
    there = {(release.package, release.version) for release in found}
    for path in sorted(path for folder in folders for path in folder.glob("*.whl")):
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if name not in PACKAGES or (name, version) in there:
            continue
        spec = _specifiers(asked.specs.get(name) or FIRST[name])
        if spec.contains(version, prereleases=True) and (asked.pre or not version.is_prerelease):
            there.add((name, version))
            yield _local(path)


@dataclass(frozen=True)
class NoWheel:
    """A release that has but a source distribution: a row that says so."""

    sdist: Wheel

    def read(self, path: str) -> bytes | None:  # noqa: ARG002
        """Nothing can be read of it.

        Raises:
            KvpatchError: ``only-sdist``, exit 4.
        """
        raise KvpatchError(
            "only-sdist",
            f"{self.sdist.filename} is all that the index has of this release, and no wheel",
            "build a wheel, and give it with --source",
            ExitCode.ENVIRONMENT,
        )

    def opaque(self, module: str) -> bool:
        """As :meth:`read`."""
        return self.read(module) is not None

    def metadata(self) -> bytes | None:
        """As :meth:`read`."""
        return self.read("METADATA")

    def forget(self) -> None:
        """Nothing is held."""


def _local(path: Path) -> Release:
    from .sources import local_release

    return local_release(path)


def _specifiers(spec: str) -> SpecifierSet:
    try:
        return SpecifierSet(spec)
    except InvalidSpecifier:
        raise KvpatchError(
            "bad-spec",
            f"{spec!r} does not say which releases",
            "write it as pip does, such as '>=0.26' or '==0.32.0'",
            ExitCode.USAGE,
        ) from None
