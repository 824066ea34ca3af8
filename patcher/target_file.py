"""A file that patches change, as it stands below its site folder."""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .attributes import attributes_of
from .digest import sha256
from .outcome import ExitCode, KvpatchError

if TYPE_CHECKING:
    from .fsops import Disk


@dataclass(frozen=True)
class Shape:
    """What a path is, as far as kvpatch can put it back.

    ``digest`` and ``mode`` are those of the bytes read through the path, ``link`` is the text of
    the symbolic link where the path is one.
    """

    digest: str
    mode: int
    link: str | None = None


@dataclass(frozen=True)
class Found:
    """A target as it stands; ``owner`` is uid and gid, ``mtime`` in ns, all of the bytes read."""

    shape: Shape
    content: bytes
    owner: tuple[int, int]
    mtime: int
    attributes: Mapping[str, bytes]


def look(disk: Disk, root: Path, path: str) -> Found | None:
    """A target below the site folder as it stands; None where nothing is there.

    Raises:
        KvpatchError: ``linked-folder``, ``target-folder``, ``dangling-link`` or ``target-odd``.
        OSError: where it can't be read.
    """
    *folders, name = path.split("/")
    folder = root
    for part in folders:
        folder = folder / part
        try:
            mode = folder.lstat().st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(mode):
            raise _odd(
                "linked-folder",
                f"{folder} is a symbolic link, so {path} may belong to another environment",
                "replace the link by a real folder, or reinstall the distribution",
            )
        if not stat.S_ISDIR(mode):
            raise _odd("target-odd", f"{folder} is not a folder", _REINSTALL)
    target = folder / name
    try:
        link = str(target.readlink()) if stat.S_ISLNK(target.lstat().st_mode) else None
    except FileNotFoundError:
        return None
    try:
        status = target.stat()
    except OSError as error:
        if link is None or error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
            raise
        raise _odd("dangling-link", f"{target} is a symbolic link to nothing", _REINSTALL) from None
    if stat.S_ISDIR(status.st_mode):
        raise _odd("target-folder", f"{target} is a folder, not a file", _REINSTALL)
    if not stat.S_ISREG(status.st_mode):
        raise _odd("target-odd", f"{target} is not a regular file", _REINSTALL)
    content = disk.read(target)
    shape = Shape(sha256(content), stat.S_IMODE(status.st_mode), link)
    owner = (status.st_uid, status.st_gid)
    return Found(shape, content, owner, status.st_mtime_ns, attributes_of(target))


_REINSTALL = "reinstall the distribution, then run the command again"


def _odd(code: str, message: str, hint: str) -> KvpatchError:
    return KvpatchError(code, message, hint, ExitCode.REFUSED)
