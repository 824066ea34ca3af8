"""What killed runs left half written in the cache folder; found and removed once a day.

Only folders of kvpatch's own below the cache folder are looked at, no link is followed, and nothing
is said: where a cache can't be written, there is nothing to be removed either.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from pathlib import Path

from .workshop import sweep

PREFIX = ".new-"
"""What the name of a file begins with until it is whole."""

DAY_S = 24 * 3600.0
"""So long nothing is touched after it was last written."""

# Not those of environments, which others write.
_FOLDERS = ("directories", "files", "index", "members", "schema", "verdicts", "wheels")
_DOWNLOADS = "whole"
# What a download was in before it was a workshop; nothing holds those, so they are left for a day.
_OLD_DOWNLOADS = "tmp"
_STAMP = ".leftovers-looked-for"


def clear(cache: Path, now: float | None = None) -> None:
    """Remove the half-written files of runs that have ended, if nobody looked for a day."""
    at = time.time() if now is None else now
    if not _due(cache / _STAMP, at):
        return
    for name in _FOLDERS:
        with contextlib.suppress(OSError):
            for _, _, files, folder in os.fwalk(cache / name):
                for file in files:
                    if file.startswith(PREFIX):
                        _remove(file, folder, at)
    downloads = cache / _DOWNLOADS
    if not downloads.is_symlink():
        sweep(downloads)
        sweep(downloads, _OLD_DOWNLOADS, DAY_S)


def locked(descriptor: int, kind: int) -> bool:
    """Whether nobody holds an open file or folder otherwise; it is held then until it is closed.

    On file systems without locks nobody does, and the age of things alone protects them.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _due(stamp: Path, now: float) -> bool:
    """Whether it is time to look; notes that somebody does."""
    try:
        if 0 <= now - stamp.stat(follow_symlinks=False).st_mtime < DAY_S:
            return False
    except FileNotFoundError:
        pass
    except OSError:
        return False
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(stamp, flags, 0o666)
        try:
            os.utime(descriptor, (now, now))
        finally:
            os.close(descriptor)
        return True
    return False


def _remove(name: str, folder: int, now: float) -> None:
    """Remove a file of an open folder, if it is old and no process writes it."""
    with contextlib.suppress(OSError):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or now - found.st_mtime < DAY_S:
                return
            if locked(descriptor, fcntl.LOCK_EX):
                os.unlink(name, dir_fd=folder)
        finally:
            os.close(descriptor)
