"""The way down into folders that is taken to remove something: by no link, and into no mount."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

RANDOM = "[a-z0-9_]{8}"
"""What tempfile puts into a name, as a regular expression."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOUNT = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[int]:
    """A folder to go down from, open.

    Raises:
        OSError: it can't be opened.
    """
    descriptor = os.open(folder, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def entered(name: str, above: int) -> Iterator[int]:
    """The folder of that name in an open one, open.

    Raises:
        OSError: it can't be opened, is a link, or what is mounted there is of somewhere else.
    """
    descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=above)
    try:
        if _mount(descriptor) != _mount(above):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
        yield descriptor
    finally:
        os.close(descriptor)


def files(folder: int) -> list[str]:
    """The names of an open folder that are regular files."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]


def folders(folder: int, shape: str) -> list[str]:
    """The names of an open folder that are folders and have a shape, a regular expression."""
    with os.scandir(folder) as entries:
        return [
            entry.name
            for entry in entries
            if re.fullmatch(shape, entry.name) and entry.is_dir(follow_symlinks=False)
        ]


def _mount(descriptor: int) -> tuple[int, str]:
    """What tells apart where an open folder is mounted: a bind mount has the device of its source.

    Without /proc it is the device alone.
    """
    mount = ""
    with contextlib.suppress(OSError):
        found = _MOUNT.search(Path(f"/proc/self/fdinfo/{descriptor}").read_text("ascii"))
        mount = found.group(1) if found else ""
    return os.fstat(descriptor).st_dev, mount
