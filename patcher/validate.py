"""``kvpatch validate``: the releases of the index, planned and checked, as one report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from .ahead import Reads, fetching, reads_of
from .ahead import load as likely_reads
from .catalogue import load
from .digest import sha256
from .fold import Memo, Options
from .index import Wheel, configured, connection, releases, write_atomically
from .index_config import extras
from .matrix import Release, Row, Say, Workshop, summary
from .outcome import ExitCode, KvpatchError
from .remote import RemoteWheel, Traffic
from .series import Series, discover
from .tree import PACKAGES

if TYPE_CHECKING:
    import requests

FIRST = {"vllm": ">=0.8.5", "lmcache": ">=0.3.3"}
"""The releases that are looked at where none are named: those the series was begun for."""


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
    """What validating came to; ``reads`` are the files that were read for it."""

    rows: tuple[Row, ...]
    pairs: tuple[Mapping[str, Any], ...]
    traffic: Traffic
    seconds: float
    reads: Reads = field(default_factory=dict)

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
        found = [
            release
            for name in PACKAGES
            for release in _listed(name, asked, cache, session, traffic)
        ]
        found += _linked(extras(index).folders, asked, found)
        workshop = Workshop(discover(), Options(known=load(), memo=Memo()))
        kept = Kept(cache / "verdicts" / _digest(workshop.series))
        rows, pairs = _all([*found, *local], workshop, kept, asked.jobs, say)
        reads = reads_of(found)
    return Matrix(tuple(rows), tuple(pairs), traffic, time.monotonic() - begun, reads)


@dataclass(frozen=True)
class Kept:
    """Verdicts of earlier runs of this very kvpatch, by the hashes of the two wheels."""

    folder: Path

    def of(self, release: Release) -> dict[str, Any]:
        """What is kept for one LMCache release: by the vLLM wheel's hash, and its own row."""
        if release.key is None:
            return {}
        try:
            data = json.loads(self._place(release).read_bytes())
            return data if isinstance(data, dict) else {}
        except (OSError, ValueError):
            return {}

    def keep(self, release: Release, found: Mapping[str, Any]) -> None:
        """Put that there for the next run."""
        if release.key is not None:
            write_atomically(self._place(release), json.dumps(found).encode())

    def _place(self, release: Release) -> Path:
        return self.folder / f"{release.package}-{release.version}-{str(release.key)[:16]}.json"


def _all(
    found: Sequence[Release], workshop: Workshop, kept: Kept, jobs: int, say: Say
) -> tuple[list[Row], list[Mapping[str, Any]]]:
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
    memories = {release: kept.of(release) for release in found}
    fresh = [r for r in found if not _complete(r, memories[r], sides)]
    newest = {name: side[-1] for name, side in sides.items()}
    rows = []
    with fetching(fresh, likely_reads(), jobs, say) as ready:
        for release in found:
            ready(release)
            rows.append(_row(release, newest, workshop, memories[release]))
    readable = {row.package + row.version for row in rows if row.error is None}
    pairs: list[Mapping[str, Any]] = []
    count = len(sides["lmcache"])
    for number, lmcache in enumerate(sides["lmcache"], 1):
        against = len(sides["vllm"])
        say(f"checking LMCache {lmcache.version} against {against} vLLM ({number}/{count})")
        memory = memories[lmcache]
        changed = "row" not in memory or memory["row"] != _row_memory(rows, lmcache)
        for vllm in sides["vllm"]:
            if not {f"vllm{vllm.version}", f"lmcache{lmcache.version}"} <= readable:
                continue
            known = memory.get(str(vllm.key)) if vllm.key else None
            if known is None:
                try:
                    known = workshop.pair(vllm, lmcache)
                except KvpatchError as error:
                    say(f"{error.message}; {error.hint}")
                    continue
                changed = True
                if vllm.key:
                    memory[str(vllm.key)] = known
            pairs.append(known)
        if changed:
            memory["row"] = _row_memory(rows, lmcache)
            kept.keep(lmcache, memory)
        workshop.forget(lmcache)
    for vllm in sides["vllm"]:
        if "row" not in memories[vllm]:
            kept.keep(vllm, {"row": _row_memory(rows, vllm)})
    return rows, pairs


def _row(
    release: Release,
    newest: Mapping[str, Release],
    workshop: Workshop,
    memory: Mapping[str, Any],
) -> Row:
    known = memory.get("row")
    if known is None:
        other = PACKAGES[1 - PACKAGES.index(release.package)]
        return workshop.row(release, newest[other])
    patches = tuple(known["patches"])
    version, registered = str(release.version), bool(known["registered"])
    name, key = release.name, release.key
    return Row(release.package, version, name, patches, registered=registered, key=key)


def _row_memory(rows: Sequence[Row], release: Release) -> dict[str, Any] | None:
    for row in rows:
        if (row.package, row.version, row.name) == _identity(release) and row.error is None:
            return {"patches": [dict(p) for p in row.patches], "registered": row.registered}
    return None


def _identity(release: Release) -> tuple[str, str, str]:
    return release.package, str(release.version), release.name


def _complete(
    release: Release, memory: Mapping[str, Any], sides: Mapping[str, Sequence[Release]]
) -> bool:
    """Whether nothing of that release has to be read."""
    if not memory.get("row"):
        return False
    if release.package == "vllm":
        return True
    return all(vllm.key is not None and vllm.key in memory for vllm in sides["vllm"])


def _listed(
    name: str, asked: Request, cache: Path, session: requests.Session, traffic: Traffic
) -> Iterator[Release]:
    spec = asked.specs.get(name) or FIRST[name]
    for wheel in releases(name, spec, pre=asked.pre, cache=cache, sdists=True):
        if wheel.sdist and not wheel.yanked:
            yield Release(wheel.distribution, wheel.version, NoWheel(wheel), wheel.filename)
        elif not wheel.yanked:
            most = asked.max_download * 1_000_000
            yield _release(wheel, RemoteWheel(wheel, session, cache, traffic, most))


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


def _release(wheel: Wheel, holder: RemoteWheel) -> Release:
    return Release(wheel.distribution, wheel.version, holder, wheel.filename, wheel.sha256)


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


def _digest(series: Series) -> str:
    """Names what the verdicts depend on beside the wheels: the series, and the checker's code."""
    folder = Path(__file__).parent
    texts = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    return sha256(b"\0".join([series.digest.encode(), *texts]))[:16]
