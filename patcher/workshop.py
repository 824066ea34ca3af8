"""A folder for files in the making, beside their place; what a killed run left is swept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .descent import RANDOM, entered, files, folders, opened

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
    with contextlib.suppress(OSError), opened(beside) as place:
        sweep(place)
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


def sweep(beside: int, prefix: str = PREFIX, young_s: float = _YOUNG_S) -> None:
    """Remove the folders in an open folder that begin so, are older, and no living process holds.

    Those alone that are such as kvpatch leaves: their names end as tempfile ends them, and nothing
    is in them but files.
    """
    with contextlib.suppress(OSError):
        for name in folders(beside, re.escape(prefix) + RANDOM):
            with contextlib.suppress(OSError):
                _sweep(name, beside, young_s)


def _sweep(name: str, beside: int, young_s: float) -> None:
    with entered(name, beside) as lock:
        # One that was made just now may not be locked yet.
        if time.time() - os.fstat(lock).st_mtime < young_s:
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = files(lock)
        if len(found) == len([*os.scandir(lock)]):
            for file in found:
                os.unlink(file, dir_fd=lock)
            os.rmdir(name, dir_fd=beside)
