"""A folder for files in the making, beside their place; what a killed run left is swept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = ".kvpatch-making-"
_YOUNG_S = 60.0


@contextlib.contextmanager
def workshop(beside: Path) -> Iterator[Path]:
    """A new folder within ``beside``, gone afterwards whatever happens.

    Folders of that kind that no living process holds are removed first.

    Raises:
        OSError: it can't be made.
    """
    beside.mkdir(parents=True, exist_ok=True)
    sweep(beside)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=beside))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # On file systems without locks the folder's age alone protects it.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep(beside: Path, prefix: str = PREFIX, young_s: float = _YOUNG_S) -> None:
    """Remove the folders in ``beside`` that begin so, are older, and no living process holds."""
    for old in beside.glob(f"{prefix}*"):
        _sweep(old, young_s)


def _sweep(folder: Path, young_s: float) -> None:
    with contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # One that was made just now may not be locked yet.
            if time.time() - os.fstat(lock).st_mtime < young_s:
                return
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
