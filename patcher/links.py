"""How a file hangs in its environment: links, owner, and whether its path can be replaced."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from io import FileIO
from pathlib import Path, PurePosixPath

from .outcome import ExitCode, KvpatchError


class LinkKind(str, Enum):
    """How a file's name leads to its content."""

    PLAIN = "plain"
    HARD = "hard link"
    SYMBOLIC = "symbolic link"


@dataclass(frozen=True)
class FileFacts:
    """What replacing a file has to know. ``mode``, ``uid`` and ``gid`` are those of the content.

    ``count`` is the number of hard links, ``target`` the text of a symbolic link. ``writable`` says
    whether the path can be replaced with mode and owner kept, ``reason`` why not.
    """

    path: Path
    link: LinkKind
    count: int
    target: str | None
    mode: int
    uid: int
    gid: int
    writable: bool
    reason: str | None


@contextmanager
def opened_regular(file: str) -> Iterator[FileIO | None]:
    """A file opened to be read, through any link; None for what is none, as a pipe or a folder.

    Nobody is kept waiting, and what was opened is asked what it is: by its name it may be another
    one a moment later. Some verbs read hundreds of files, so no Path.

    Raises:
        OSError: it can't be opened; FileNotFoundError where nothing is.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        yield FileIO(descriptor, closefd=False) if regular else None
    finally:
        os.close(descriptor)


def read_whole(opened: FileIO, file: str) -> bytes:
    """The bytes of a file that is open.

    Raises:
        OSError: it can't be read, or is larger than :data:`LARGEST`.
    """
    size = os.fstat(opened.fileno()).st_size
    if size > LARGEST:
        raise OSError(errno.EFBIG, f"{size / 1e6:.0f} MB are too much", file)
    return opened.readall()


def read_regular(file: str) -> bytes | None:
    """The bytes of a file as Python would read them, through any link; None where none is.

    Raises:
        OSError: it can't be read, or is larger than :data:`LARGEST`.
    """
    try:
        with opened_regular(file) as opened:
            if opened is None:
                return None
            return read_whole(opened, file)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return None
        raise


def content_of(file: str) -> bytes | None:
    """As :func:`read_regular`, for a file of the environment that a verb can't do without.

    Raises:
        KvpatchError: ``unreadable``, exit 4.
    """
    try:
        return read_regular(file)
    except OSError as error:
        raise KvpatchError(
            "unreadable",
            f"{file} can't be read: {error.strerror}",
            "run kvpatch as a user who may read the environment",
            ExitCode.ENVIRONMENT,
        ) from error


LARGEST = 100_000_000
"""Bytes of the largest file that is read whole; RECORD of vLLM has 1 MB, its sources less."""


def symlinked_folder(site: Path, relative: str) -> Path | None:
    """The first symbolic link among the folders between the site folder and the file.

    Raises:
        KvpatchError: ``hostile-path``, exit 3, for a path that leaves the site folder.
    """
    parts = PurePosixPath(relative).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise KvpatchError(
            "hostile-path",
            f"{relative!r} is no path below a site folder",
            "report it to whoever made that patch",
        )
    folder = site
    for part in parts[:-1]:
        folder = folder / part
        if folder.is_symlink():
            return folder
    return None


def file_facts(path: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> FileFacts:
    """Link, mode, owner of a file, and whether it can be replaced. Changes and creates nothing.

    Args:
        path: the file; a symbolic link is described itself, not followed.
        mounts: the table of mounts, in the kernel's format.

    Raises:
        KvpatchError: ``no-file`` (exit 4) where nothing is, ``not-a-file`` (exit 3) for a folder
            or anything else that is no regular file.
    """
    try:
        own = path.lstat()
    except OSError as error:
        raise KvpatchError(
            "no-file",
            f"{path} can't be looked at: {error.strerror}",
            "reinstall the distribution it belongs to",
            ExitCode.ENVIRONMENT,
        ) from None
    target = os.fspath(path.readlink()) if stat.S_ISLNK(own.st_mode) else None
    content, reason = own, None
    link = LinkKind.HARD if own.st_nlink > 1 else LinkKind.PLAIN
    if target is not None:
        link = LinkKind.SYMBOLIC
        try:
            content = path.stat()
        except OSError:
            reason = f"it is a symbolic link to {target}, which leads nowhere"
    if reason is None and not stat.S_ISREG(content.st_mode):
        raise KvpatchError(
            "not-a-file",
            f"{path} is not a file",
            "reinstall the distribution it belongs to",
            ExitCode.REFUSED,
        )
    reason = reason or _why_not_writable(path, link, content, mounts)
    return FileFacts(
        path=path,
        link=link,
        count=own.st_nlink,
        target=target,
        mode=stat.S_IMODE(content.st_mode),
        uid=content.st_uid,
        gid=content.st_gid,
        writable=reason is None,
        reason=reason,
    )


def _why_not_writable(
    path: Path, link: LinkKind, content: os.stat_result, mounts: Path
) -> str | None:
    user = os.geteuid()
    if user not in (0, content.st_uid):
        return f"it belongs to user {content.st_uid}, which a new file would not"
    if user != 0 and content.st_gid not in {os.getegid(), *os.getgroups()}:
        return f"it belongs to group {content.st_gid}, which a new file could not"
    table = mounts_of(mounts)
    if is_mounted(path, table):
        return MOUNTED
    # In a container's image layers, opening for writing already copies the file.
    if _is_layered(path.parent, table):
        return _why_unwritable_unopened(path.parent)
    # A link's content stays as it is: only the folder that holds the link has to take a new one.
    if link is not LinkKind.SYMBOLIC:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            # Its owner may replace a file whose mode forbids writing it.
            if error.errno != errno.EACCES:
                return f"it can't be opened for writing: {error.strerror}"
    return why_no_new_file(path.parent)


MOUNTED = "it is a mount point"
"""The reason for a file that was mounted over another one, as ``docker run -v`` does."""


def mounts_of(table: Path = Path("/proc/self/mountinfo")) -> tuple[bytes, ...]:
    """The lines of the table of mounts; none where there is no such table."""
    try:
        return tuple(table.read_bytes().splitlines())
    except OSError:
        return ()


def is_mounted(path: Path, mounts: Sequence[bytes]) -> bool:
    """Whether something is mounted at this very path: no other file can take its place then.

    Args:
        path: of a file or folder; a symbolic link is not followed.
        mounts: the lines of :func:`mounts_of`.
    """
    points = {line.split(b" ", 5)[4] for line in mounts if line.count(b" ") > 4}
    # Nearly no file is one, by its name alone; to resolve its folder takes many calls.
    name = b"/" + _escaped(os.fsencode(path.name))
    if not any(point.endswith(name) for point in points):
        return False
    return _escaped(os.fsencode(path.parent.resolve() / path.name)) in points


def _escaped(path: bytes) -> bytes:
    """A path as the kernel writes it into its tables (Linux, ``fs/proc_namespace.c``)."""
    for char in b"\\ \t\n":
        path = path.replace(bytes([char]), b"\\%03o" % char)
    return path


def _is_layered(folder: Path, mounts: Sequence[bytes]) -> bool:
    """Whether the folder is on a union of layers, such as overlayfs."""
    device = folder.stat().st_dev
    number = b"%d:%d" % (os.major(device), os.minor(device))
    for line in mounts:
        before, _, after = line.partition(b" - ")
        if before.split(b" ", 3)[2:3] == [number]:
            return any(word in after.split(b" ", 1)[0] for word in (b"overlay", b"union", b"aufs"))
    return False


def why_not_replaced(path: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Why no other file can take the place of one, whoever it belongs to; None where one can."""
    if is_mounted(path, mounts_of(mounts)):
        return MOUNTED
    if _flags(path) & (_IMMUTABLE | _APPEND_ONLY):
        return "it is immutable"
    above = path.parent.stat()
    sticky = above.st_mode & stat.S_ISVTX
    if sticky and os.geteuid() not in (0, above.st_uid, path.lstat().st_uid):
        return f"it belongs to user {path.lstat().st_uid}, and its folder is sticky"
    return why_no_new_file(path.parent)


def why_no_new_file(folder: Path) -> str | None:
    """Why a folder takes no new file, tried with one that has no name and is gone at once.

    None where it takes one, and then also lets one go.
    """
    if _only_grows(folder):
        return f"{folder} lets no file go: it is append-only"
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT):
            return f"{folder} takes no new file: {error.strerror}"
        return _why_unwritable_unopened(folder)
    return None


_GET_FLAGS = 0x80086601 if sys.maxsize > 2**32 else 0x80046601
_IMMUTABLE, _APPEND_ONLY = 0x10, 0x20
"""Of Linux, ``include/uapi/linux/fs.h``: FS_IOC_GETFLAGS, FS_IMMUTABLE_FL and FS_APPEND_FL."""


def _only_grows(folder: Path) -> bool:
    """Whether a folder has the attribute ``a`` of ``chattr``: names are made there, none leaves."""
    return bool(_flags(folder) & _APPEND_ONLY)


def _flags(path: Path) -> int:
    """What ``chattr`` has set; 0 where that can't be read."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        flags = fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return int.from_bytes(flags[:4], sys.byteorder)


def _why_unwritable_unopened(folder: Path) -> str | None:
    """The same by mount and mode alone, where nothing can be tried without leaving a trace."""
    if _only_grows(folder):
        return f"{folder} lets no file go: it is append-only"
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return f"{folder} takes no new file: {os.strerror(errno.EROFS)}"
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return f"{folder} takes no new file: {os.strerror(errno.EACCES)}"
    return None
