"""What killed runs left half written in the cache folder; found and removed once a day.

Only folders of kvpatch's own below the cache folder are looked at, and names that it gives itself;
no link is followed, no mount entered, and nothing is said: where a cache can't be written, there is
nothing to be removed either.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import time
from pathlib import Path

from .descent import RANDOM, entered, files, folders, opened
from .workshop import sweep

PREFIX = ".new-"
"""What the name of a file begins with until it is whole."""

DAY_S = 24 * 3600.0
"""So long nothing is touched after it was last written."""

# By the names of the folders in them, if there are any. Not those of environments, which others
# write.
_FOLDERS = {
    "directories": None,
    "files": "[0-9a-f]{2}",
    "index": "[0-9a-f]{12}",
    "members": "[0-9a-f]{2}",
    "schema": None,
    "verdicts": "[0-9a-f]{16}",
    "wheels": None,
}
_DOWNLOADS = "whole"
# What a download was in before it was a workshop; nothing holds those, so they are left for a day.
_OLD_DOWNLOADS = "tmp"
_HALF = re.compile(re.escape(PREFIX) + RANDOM)
_STAMP = ".leftovers-looked-for"


def clear(cache: Path, now: float | None = None) -> None:
    """Remove the half-written files of runs that have ended, if nobody looked for a day."""
    at = time.time() if now is None else now
    if not _due(cache / _STAMP, at):
        return
    with contextlib.suppress(OSError), opened(cache) as top:
        for name, below in _FOLDERS.items():
            with contextlib.suppress(OSError), entered(name, top) as place:
                if below is None:
                    _clear(place, at)
                    continue
                for inner in folders(place, below):
                    with contextlib.suppress(OSError), entered(inner, place) as one:
                        _clear(one, at)
        with contextlib.suppress(OSError), entered(_DOWNLOADS, top) as downloads:
            sweep(downloads)
            sweep(downloads, _OLD_DOWNLOADS, DAY_S)


def is_half(name: str) -> bool:
    """Whether a file has the name of one that is not whole yet."""
    return _HALF.fullmatch(name) is not None


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


def _clear(folder: int, now: float) -> None:
    for file in files(folder):
        if is_half(file):
            _remove(file, folder, now)


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
