"""What became of the files kvpatch wrote, judged per distribution and then per file."""

from __future__ import annotations

import os
from pathlib import Path

from .fsops import Disk, environment_errors
from .ledger import MARK, Entry, Journal, temporary
from .outcome import ExitCode, KvpatchError
from .owners import Owners
from .target_file import look

OURS = "ours"
REINSTALLED = "reinstalled"
STALE = "stale"
CHANGED = "changed"
MISSING = "missing"
CARRIED = "carried"

PUT_BACK = "put-back"
"""What a revert makes of a file that it brings back."""


def staleness(journal: Journal, owners: Owners, disk: Disk | None = None) -> dict[str, str]:
    """Judge every file of a journal.

    ``ours``: as kvpatch wrote it, and revertible whatever happened elsewhere. ``carried``: the same
    bytes, but by RECORD the package's owner came with them, a fork. ``reinstalled``: the
    original is back, or an apply that was interrupted never came to it, so there is nothing of
    kvpatch in it. ``stale``: what an owner came with, or anything else where the
    distribution was installed anew, whose original may be of another version; and where no RECORD
    speaks of the file, one in which nothing of kvpatch is left. ``changed``: none of these.
    ``missing``: not there.

    Args:
        journal: of the site folder, in any phase.
        owners: whose its files are now.
        disk: reads them.
    """
    entries = {entry.path: entry for entry in reversed(journal.known)}
    return {path: _judge(journal, entry, owners, disk or Disk()) for path, entry in entries.items()}


def never_written(journal: Journal, path: str) -> bool:
    """Whether what an interrupted apply staged for a file still lies beside it, unused."""
    before = journal.former.entries if journal.former else {}
    if journal.phase != "applying" or path in before:
        return False
    target = Path(journal.site, path)
    return os.path.lexists(target.with_name(temporary(path, journal.transaction)))


def _judge(journal: Journal, entry: Entry, owners: Owners, disk: Disk) -> str:
    path = entry.path
    try:
        with environment_errors():
            found = look(disk, Path(journal.site), path)
    except KvpatchError as error:
        # No plain file, so nobody's bytes.
        if error.exit_code is not ExitCode.REFUSED:
            raise
        return STALE if owners.replaced(journal, entry) else _changed(journal, path)
    if found is None:
        return MISSING
    digest, vouched = found.shape.digest, owners.vouch(path, found.content)
    if journal.ours(path, digest):
        return CARRIED if vouched else OURS
    if any(digest == other.original for other in journal.of(path)):
        return REINSTALLED
    if vouched or owners.replaced(journal, entry):
        return STALE
    if vouched is None and MARK not in found.content:
        return REINSTALLED if never_written(journal, path) else STALE
    return _changed(journal, path)


def _changed(journal: Journal, path: str) -> str:
    return REINSTALLED if never_written(journal, path) else CHANGED
