"""Paths as a running process has them: below its own root, and from its own folder.

The kernel takes the target of an absolute link for one in the root of who asks. In a container that
is another file, so links are followed here.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from .outcome import ExitCode, KvpatchError
from .rules import printable

_CLOCK_S = 2.0
"""By so much the clock of processes may be off."""
_MOST_LINKS = 40
"""As many as the kernel follows."""


@dataclass(frozen=True)
class Found:
    """Where a path leads.

    Attributes:
        path: of the file, below ``/proc``, with no link in it.
        changed: when the newest of the links on the way to it, or itself, was changed, in seconds
            of the epoch; its content, its name or its owner may be what was.
    """

    path: str
    changed: float


def found(name: str, root: str, folder: str = "") -> Found:
    """Follow a path with all links.

    Args:
        name: of the file; a relative one begins at ``folder``.
        root: of the process, such as ``/proc/7/root``.
        folder: where the process is, such as ``/proc/7/cwd``.

    Raises:
        OSError: as the kernel has it, also for links without end.
        ValueError: the name holds a null byte.
    """
    here = root if name.startswith("/") else folder
    parts = name.split("/")[::-1]
    changed = 0.0
    links = 0
    while parts:
        part = parts.pop()
        if part in ("", "."):
            continue
        if part == "..":
            here = _above(here, root)
            continue
        seen = os.lstat(f"{here}/{part}")
        if not stat.S_ISLNK(seen.st_mode):
            here = f"{here}/{part}"
            if parts and not stat.S_ISDIR(seen.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            if not parts:
                changed = max(changed, seen.st_mtime, seen.st_ctime)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        changed = max(changed, seen.st_mtime, seen.st_ctime)
        target = os.readlink(f"{here}/{part}")  # noqa: PTH115
        here = root if target.startswith("/") else here
        parts += target.split("/")[::-1]
    return Found(here, changed)


def started(process: Path) -> float | None:
    """When a process was started, in seconds of the epoch; None where that can't be told.

    ``process`` is its folder, such as ``/proc/7``, which has ticks since the machine was started.
    """
    try:
        fields = (process / "stat").read_bytes().rpartition(b")")[2].split()
        booted = re.search(rb"^btime (\d+)$", (process.parent / "stat").read_bytes(), re.MULTILINE)
        ticks = int(fields[19])
    except (OSError, IndexError, ValueError):
        return None
    return int(booted[1]) + ticks / os.sysconf("SC_CLK_TCK") if booted else None


def is_newer(changed: float, since: float | None) -> bool:
    """Whether that was changed after a process was started; False where its start is not known."""
    return since is not None and changed > since + _CLOCK_S


def changed_since(pid: int, name: str, proc: Path = Path("/proc")) -> bool:
    """Whether the file that a process has under that name was changed after its start."""
    own = proc / str(pid)
    try:
        changed = found(name, str(own / "root"), str(own / "cwd")).changed
    except (OSError, ValueError):
        return False
    return is_newer(changed, started(own))


def config_of(pid: int, name: str, proc: Path = Path("/proc")) -> tuple[Path, str]:
    """The file that a process has under that name, and how it is shown.

    Raises:
        KvpatchError: ``unreadable``, exit 4.
    """
    own = proc / str(pid)
    told = printable(shown(name, str(own / "cwd")))
    try:
        return Path(found(name, str(own / "root"), str(own / "cwd")).path), told
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name holds a null byte"
        raise KvpatchError(
            "unreadable",
            f"{told}, which LMCACHE_CONFIG_FILE of process {pid} names, can't be read: {why}",
            "run kvpatch where the process runs, as root or its user, or name the file",
            ExitCode.ENVIRONMENT,
        ) from None


def compared(pid: int, name: str, proc: Path = Path("/proc")) -> str:
    """The same for a comparison: as its name says where it is not there, or not to be seen."""
    try:
        return str(config_of(pid, name, proc)[0])
    except KvpatchError:
        return shown(name, str(proc / str(pid) / "cwd"))


def shown(name: str, folder: str) -> str:
    """An absolute name for a file of a process, as its own root has it."""
    if name.startswith("/"):
        return name
    try:
        return os.path.normpath(Path(folder).readlink() / name)
    except OSError:
        return f"{folder}/{name}"


def _above(here: str, root: str) -> str:
    if here == root:
        return here
    if here.startswith(f"{root}/"):
        return here.rpartition("/")[0]
    return f"{here}/.."
