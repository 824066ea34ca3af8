"""``kvpatch validate``: the releases of the index, planned and checked, as one report."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from .catalogue import load
from .digest import sha256
from .fold import Options
from .index import Wheel, configured, connection, releases, write_atomically
from .matrix import Release, Row, Say, Workshop, summary
from .outcome import ExitCode, KvpatchError, Outcome, Report
from .remote import RemoteWheel, Traffic
from .series import Series, discover
from .tree import PACKAGES

if TYPE_CHECKING:
    import requests

FIRST = {"vllm": ">=0.8.5", "lmcache": ">=0.3.3"}
"""The releases that are looked at where none are named: those the series was begun for."""
_SCHEMA = 1


@dataclass(frozen=True)
class Request:
    """What the user asked for. A spec is one of PEP 440, empty for :data:`FIRST`."""

    specs: Mapping[str, str]
    pre: bool = False
    sources: tuple[Path, ...] = ()
    baseline: Path | None = None
    jobs: int = 8


@dataclass(frozen=True)
class Matrix:
    """What validating came to."""

    rows: tuple[Row, ...]
    pairs: tuple[Mapping[str, Any], ...]
    traffic: Traffic
    seconds: float

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
    traffic = Traffic()
    with ExitStack() as stack:
        session = stack.enter_context(connection(configured(), threads=asked.jobs))
        found = [
            release
            for name in PACKAGES
            for release in _listed(name, asked, cache, session, traffic)
        ]
        workshop = Workshop(discover(), Options(known=load(), memo={}))
        kept = Kept(cache / "verdicts" / _digest(workshop.series))
        rows, pairs = _all([*found, *local], workshop, kept, asked.jobs, say)
    return Matrix(tuple(rows), tuple(pairs), traffic, time.monotonic() - begun)


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
    _fetch(fresh, workshop, jobs, say)
    rows = [_row(release, workshop, memories[release]) for release in found]
    readable = {row.package + row.version for row in rows if row.error is None}
    pairs: list[Mapping[str, Any]] = []
    count = len(sides["lmcache"])
    for number, lmcache in enumerate(sides["lmcache"], 1):
        say(f"checking LMCache {lmcache.version} against {len(sides['vllm'])} vLLM ({number}/{count})")
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


def _row(release: Release, workshop: Workshop, memory: Mapping[str, Any]) -> Row:
    known = memory.get("row")
    if known is None:
        return workshop.row(release)
    patches = tuple(known["patches"])
    version, registered = str(release.version), bool(known["registered"])
    return Row(release.package, version, release.name, patches, registered=registered)


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


def _fetch(found: Sequence[Release], workshop: Workshop, jobs: int, say: Say) -> None:
    """Fetch ahead what the newest and the oldest releases turned out to need."""
    remote = {
        name: [r for r in found if r.package == name and isinstance(r.holder, RemoteWheel)]
        for name in PACKAGES
    }
    count = sum(map(len, remote.values()))
    if not count:
        return
    say(f"reading {count} wheels by ranges")
    wanted: dict[str, dict[str, None]] = {name: {} for name in PACKAGES}
    for end in (-1, 0):
        pair = {name: side[end] for name, side in remote.items() if side}
        # What fails here fails again where it is read in earnest, and is reported there.
        with contextlib.suppress(KvpatchError):
            small = pair["lmcache"].holder if "lmcache" in pair else None
            if isinstance(small, RemoteWheel):
                # Two hundred of its files are needed, one after the other: all at once is quicker.
                small.prefetch(path for path in small.entries if path.endswith(".py"))
            if len(pair) == len(PACKAGES):
                workshop.pair(pair["vllm"], pair["lmcache"])
            for release in pair.values():
                workshop.row(release)
        for name, release in pair.items():
            if isinstance(release.holder, RemoteWheel):
                wanted[name].update(dict.fromkeys(release.holder.read_paths))

    def fetch(release: Release) -> None:
        if isinstance(release.holder, RemoteWheel):
            with contextlib.suppress(KvpatchError):
                release.holder.prefetch(wanted[release.package])

    with ThreadPoolExecutor(jobs) as pool:
        for number, _ in enumerate(pool.map(fetch, [*remote["vllm"], *remote["lmcache"]]), 1):
            if number % 10 == 0:
                say(f"read {number} of {count} wheels")


def _listed(
    name: str, asked: Request, cache: Path, session: requests.Session, traffic: Traffic
) -> Iterator[Release]:
    spec = asked.specs.get(name) or FIRST[name]
    for wheel in releases(name, spec, pre=asked.pre, cache=cache):
        if not wheel.yanked:
            yield _release(wheel, RemoteWheel(wheel, session, cache, traffic))


def _release(wheel: Wheel, holder: RemoteWheel) -> Release:
    return Release(wheel.distribution, wheel.version, holder, wheel.filename, wheel.sha256)


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


def report(asked: Request, cache: Path, say: Say) -> Report:
    """What ``kvpatch validate`` says: counts, then what is red, then the outcome."""
    matrix = validate(asked, cache, say)
    errors = [*failures(matrix), *regressions(matrix, asked.baseline)]
    code = ExitCode.NO if errors else ExitCode.DONE
    return Report("validate", text(matrix), matrix.data, code, tuple(errors))


def text(matrix: Matrix) -> str:
    """The summary in lines."""
    told = matrix.data["summary"]
    rows = {name: [r for r in matrix.rows if r.package == name] for name in PACKAGES}
    lines = [
        f"{len(rows['vllm'])} releases of vLLM, {len(rows['lmcache'])} of LMCache, "
        f"{told['pairs']} pairs, in {told['seconds']} s "
        f"({told['requests']} requests, {told['bytes'] / 1e6:.1f} MB)",
        "",
        f"blend as released            {told['green_as_released']:5}",
        f"by registration alone        {told['green_by_registration_alone']:5}",
        f"after `kvpatch apply`        {told['green_after']:5}, "
        f"{told['green_after_with_settings']} of them with launch settings",
    ]
    without = told["vllm_without_a_green_pair"]
    if without:
        lines.append(f"vLLM that no LMCache blends with after apply: {', '.join(without)}")
    for row in matrix.rows:
        if row.error is not None:
            lines.append(f"not read: {row.package} {row.version}: {row.error.message}")
        elif not row.ok:
            refused = [f"{p['id']} {p['outcome']}: {p['reason']}" for p in _refused(row)]
            reason = "; ".join(refused) or "no patch registers its model"
            lines.append(f"can't be patched: {row.package} {row.version}: {reason}")
    return "\n".join(lines)


def failures(matrix: Matrix) -> Iterator[KvpatchError]:
    """The newest release of each package that can't be patched."""
    for name in PACKAGES:
        rows = [row for row in matrix.rows if row.package == name]
        newest = max(rows, key=lambda row: Version(row.version))
        if newest.error is not None:
            yield newest.error
        elif not newest.ok:
            reasons = "; ".join(f"{p['id']} is {p['outcome']}" for p in _refused(newest))
            yield KvpatchError(
                "newest-unpatched",
                f"{name} {newest.version} can't be patched: {reasons or 'no patch registers it'}",
                "the series needs a change for this release",
                ExitCode.NO,
            )


def regressions(matrix: Matrix, baseline: Path | None) -> Iterator[KvpatchError]:
    """The pairs that an earlier report had green and this one has not.

    Raises:
        KvpatchError: ``bad-baseline``; exit 2.
    """
    if baseline is None:
        return
    try:
        data = json.loads(baseline.read_bytes())
        pairs = data.get("data", data)["pairs"]
        was = {(pair["vllm"], pair["lmcache"]) for pair in pairs if pair["ok"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise KvpatchError(
            "bad-baseline",
            f"{baseline} is no report of `kvpatch validate --json` ({type(error).__name__})",
            "write one with `kvpatch validate --json > FILE`",
            ExitCode.USAGE,
        ) from None
    for pair in matrix.pairs:
        if (pair["vllm"], pair["lmcache"]) in was and not pair["ok"]:
            yield KvpatchError(
                "regression",
                f"vLLM {pair['vllm']} with LMCache {pair['lmcache']} was green and is "
                f"{' '.join(pair['after'])}",
                "see its findings in `kvpatch validate --json`",
                ExitCode.NO,
            )


def _refused(row: Row) -> list[Mapping[str, Any]]:
    return [patch for patch in row.patches if Outcome(patch["outcome"]).refused]
