"""What became of the files kvpatch wrote, judged per distribution and then per file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from .fsops import Disk, environment_errors, look, sha256
from .ledger import DistributionState, Entry, Journal, temporary
from .outcome import ExitCode, KvpatchError
from .record import Record

OURS = "ours"
REINSTALLED = "reinstalled"
STALE = "stale"
CHANGED = "changed"
MISSING = "missing"
CARRIED = "carried"

PUT_BACK = "put-back"
"""What a revert makes of a file that it brings back."""

Reader = Callable[[str], "str | None"]
"""Gives the sha256 of a file below the site folder, None where it is not there."""


def staleness(
    journal: Journal,
    current: Mapping[str, DistributionState],
    reader: Reader | Disk | None = None,
) -> dict[str, str]:
    """Judge every file of a journal.

    ``ours``: as kvpatch wrote it, and revertible whatever happened elsewhere. ``carried``: the same
    bytes, but of a wheel of another version that came with them, a fork. ``reinstalled``: the
    original is back, or an apply that was interrupted never came to it, so there is nothing of
    kvpatch in it. ``stale``: anything else where the
    distribution was installed anew; its original may be of another version. ``changed``: neither,
    although the distribution is the same. ``missing``: not there.

    Args:
        journal: of the site folder, in any phase.
        current: the distributions as they are installed now.
        reader: where to look; by default the journal's site folder.
    """
    look_up = reader if callable(reader) else digests(Path(journal.site), reader or Disk())
    states: dict[str, str] = {}
    for entry in journal.known:
        if entry.path not in states:
            states[entry.path] = _judge(journal, entry, look_up(entry.path), current)
            if states[entry.path] == CHANGED and never_written(journal, entry.path):
                states[entry.path] = REINSTALLED
    return states


def never_written(journal: Journal, path: str) -> bool:
    """Whether what an interrupted apply staged for a file still lies beside it, unused."""
    before = journal.former.entries if journal.former else {}
    if journal.phase != "applying" or path in before:
        return False
    target = Path(journal.site, path)
    return os.path.lexists(target.with_name(temporary(path, journal.transaction)))


def replaced(journal: Journal, name: str, current: Mapping[str, DistributionState]) -> bool:
    """Whether a distribution is another installation than the one that was patched, or gone."""
    then = journal.patched.get(name)
    return then is None or not then.same(current.get(name))


def carried(
    journal: Journal, entry: Entry, digest: str, current: Mapping[str, DistributionState]
) -> bool:
    """Whether a file belongs to a wheel of another version, which came with these very bytes."""
    then, now = journal.patched.get(entry.distribution), current.get(entry.distribution)
    if then is None or now is None or then.version == now.version:
        return False
    return now.carries(entry.path, digest)


def digests(site: Path, disk: Disk) -> Reader:
    """A reader of a site folder; a path that is no file reads as bytes that nobody wrote."""

    def reader(path: str) -> str | None:
        try:
            with environment_errors():
                found = look(disk, site, path)
        except KvpatchError as error:
            if error.exit_code is not ExitCode.REFUSED:
                raise
            return error.code
        return found.shape.digest if found else None

    return reader


def _judge(
    journal: Journal, entry: Entry, digest: str | None, current: Mapping[str, DistributionState]
) -> str:
    if digest is None:
        return MISSING
    if journal.ours(entry.path, digest):
        return CARRIED if carried(journal, entry, digest, current) else OURS
    if any(digest == other.original for other in journal.of(entry.path)):
        return REINSTALLED
    return STALE if replaced(journal, entry.distribution, current) else CHANGED


def installed(site: Path, names: frozenset[str]) -> dict[str, DistributionState]:
    """The state of distributions by their ``.dist-info`` folders in the site folder itself."""
    wanted = {_normal(name): name for name in names}
    found: dict[str, DistributionState] = {}
    with environment_errors():
        folders = sorted(site.glob("*.dist-info"))
        for folder in folders:
            stem, _, version = folder.name[: -len(".dist-info")].rpartition("-")
            name = wanted.get(_normal(stem))
            if name is not None:
                record = folder / "RECORD"
                found[name] = DistributionState(version, "")
                if record.is_file():
                    content = record.read_bytes()
                    read = Record.parse(content.decode("utf-8-sig", "surrogateescape"))
                    found[name] = DistributionState(version, sha256(content), read)
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
