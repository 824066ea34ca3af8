"""Side effects on files: each goes through one object, so that a test can fail at every one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .attributes import give, surplus
from .digest import sha256 as sha256
from .links import opened_regular, read_whole
from .outcome import ExitCode, KvpatchError
from .system_errors import environment_error as environment_error
from .system_errors import environment_errors as environment_errors

_CHUNK = 1 << 16
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


def fresh_mtime(now: int, old: int | None) -> int:
    """A modification time for new bytes, in ns, later than the old one in whole seconds too.

    Bytecode is matched to its source by whole seconds and size alone.
    """
    second = 1_000_000_000
    if old is None or now // second > old // second:
        return now
    return (old // second + 1) * second


class Lock:
    """An exclusive lock on an open file, given up when closed or when the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Give it up."""
        os.close(self._descriptor)


class Disk:
    """Every operation that reads or changes files of a host.

    Args:
        before: called with the operation's name and the path before each operation.
    """

    def __init__(self, before: Callable[[str, Path], None] | None = None) -> None:
        self._before = before or (lambda _op, _path: None)

    def read(self, path: Path) -> bytes:
        """The bytes of a file; none of what is no file, such as a pipe that would never end.

        Raises:
            OSError: for what is not there, can't be read or is larger than ``links.LARGEST``.
        """
        self._before("read", path)
        try:
            with opened_regular(str(path)) as opened:
                if opened is None:
                    return b""
                return read_whole(opened, str(path))
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket
                return b""
            error.filename = error.filename or str(path)
            raise

    def probe(self, path: Path) -> None:
        """See that a file's file system takes writes, by opening it; nothing is written.

        Raises:
            OSError: EROFS; other refusals need not keep a rename over the file from working.
        """
        self._before("probe", path)
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError as error:
            if error.errno == errno.EROFS:
                raise

    def write_new(
        self,
        path: Path,
        data: bytes,
        *,
        mode: int = 0o644,
        owner: tuple[int, int] | None = None,
        mtime: int | None = None,
        attributes: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write a file that is not there yet, and see it onto the disk.

        Args:
            path: where; no link is followed.
            data: the bytes.
            mode: permission bits.
            owner: uid and gid, where they matter; without them what root writes is given to
                whom the folder belongs to.
            mtime: in ns, where it matters.
            attributes: its extended attributes, access control list included; None leaves those
                that the folder gives.
        """
        self._before("create", path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            for start in range(0, len(data), _CHUNK):
                self._before("write", path)
                rest = memoryview(data)[start : start + _CHUNK]
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            for name in () if attributes is None else surplus(descriptor, attributes):
                self._before("removexattr", path)
                os.removexattr(descriptor, name)
            self._before("chmod", path)
            os.fchmod(descriptor, mode)
            if attributes:
                # After the mode, which would change the mask of an access control list.
                self._before("setxattr", path)
                give(descriptor, attributes)
            if mtime is not None:
                self._before("utime", path)
                os.utime(descriptor, ns=(mtime, mtime))
            self._give(descriptor, path, owner, mode)
            self._before("fsync", path)
            os.fsync(descriptor)
        except OSError as error:
            # What is done to a descriptor fails without the file's name.
            error.filename = error.filename or str(path)
            raise
        finally:
            os.close(descriptor)

    def _give(self, descriptor: int, path: Path, owner: tuple[int, int] | None, mode: int) -> None:
        """Give a new file its owner at last: root may not be allowed to change others' files."""
        made = os.fstat(descriptor)
        if owner is None:
            self._hand_over(descriptor, path)
        elif owner != (made.st_uid, made.st_gid):
            self._before("chown", path)
            os.fchown(descriptor, *owner)
            if mode & (stat.S_ISUID | stat.S_ISGID):
                # A new owner clears them.
                os.fchmod(descriptor, mode)

    def write(self, path: Path, data: bytes, *, mode: int = 0o644) -> None:
        """Put bytes in place of whatever the path was, at once or not at all."""
        new = path.with_name(path.name + ".new")
        self.discard(new)
        self.write_new(new, data, mode=mode)
        self.replace(new, path)
        self.fsync_dir(path.parent)

    def symlink(self, text: str, path: Path) -> None:
        """Make a symbolic link with that text."""
        self._before("symlink", path)
        path.symlink_to(text)

    def replace(self, source: Path, target: Path) -> None:
        """Rename over the target as it stands; a link there is replaced, not followed."""
        self._before("replace", target)
        source.replace(target)

    def discard(self, path: Path) -> bool:
        """Remove a file or a link; False where there was none."""
        if not os.path.lexists(path):
            return False
        self._before("remove", path)
        path.unlink()
        return True

    def mkdir(self, path: Path) -> None:
        """Make a folder and those above it; root's belong to whom the folder above belongs to."""
        if path.is_dir():
            return
        if path.parent != path:
            self.mkdir(path.parent)
        self._before("mkdir", path)
        try:
            path.mkdir()
        except FileExistsError:
            if path.is_dir():  # another run made it just now
                return
            raise
        self._open_up(path)
        self.fsync_dir(path.parent)

    def adopt(self, path: Path) -> None:
        """Hand over an empty folder of root's that was made by a run which did not come to that."""
        if os.geteuid() != 0 or path.is_symlink() or not path.is_dir():
            return
        with _opened_if_empty(path) as descriptor:
            if descriptor is not None:
                self._hand_over(descriptor, path)

    def _open_up(self, path: Path) -> None:
        """Whoever may read the environment may ask what was done to it, whatever root's umask."""
        if os.geteuid() != 0:
            path.chmod(path.stat().st_mode & stat.S_ISGID | 0o755)
            return
        # Whoever owns the folder above may have put another one in its place.
        with _opened_if_empty(path) as descriptor:
            if descriptor is not None:
                os.fchmod(descriptor, os.fstat(descriptor).st_mode & stat.S_ISGID | 0o755)
                self._hand_over(descriptor, path)

    def _hand_over(self, descriptor: int, path: Path) -> None:
        """Give what root made to whom the folder belongs to, who must be able to revert.

        Where root may not, in a user namespace or on a share, it stays root's.
        """
        if os.geteuid() != 0:
            return
        above, made = path.parent.stat(), os.fstat(descriptor)
        owner = (above.st_uid, above.st_gid)
        if made.st_uid != 0 or owner == (made.st_uid, made.st_gid):
            return
        self._before("chown", path)
        with contextlib.suppress(OSError):
            os.fchown(descriptor, *owner)

    def rmdir(self, path: Path) -> bool:
        """Remove a folder; False where it is not empty or not there."""
        self._before("rmdir", path)
        try:
            path.rmdir()
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                return False
            raise
        return True

    def fsync_dir(self, path: Path) -> None:
        """See the names in a folder onto the disk, where its file system can."""
        self._before("fsync", path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_FSYNC:
                raise
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> Lock:
        """Take the lock on a file in a folder that is made where it is not there.

        Raises:
            KvpatchError: ``locked``, with the pid of the process that holds it.
            OSError: where the folder can't be made, or the file not be opened.
        """
        gone: OSError | None = None
        for _ in range(_TRIES):
            gone = None
            try:
                self.mkdir(path.parent)
                self._before("lock", path)
                descriptor = self._lock_file(path)
                try:
                    if _take(descriptor, path):
                        return Lock(descriptor)
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)
            except (FileNotFoundError, FileExistsError) as error:
                # The run before removed the file or the folder just now.
                gone = error
        raise gone or _locked("")

    def _lock_file(self, path: Path) -> int:
        """The lock's file, opened; what is there already is left as it is.

        Raises:
            KvpatchError: ``state-linked`` for what can't be a lock of kvpatch's.
        """
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            descriptor = os.open(path, flags)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                os.close(descriptor)
                raise KvpatchError(
                    "state-linked",
                    f"{path} is not a file of its own, which kvpatch makes",
                    "move it away, or give another folder with --state",
                ) from None
            return descriptor
        try:
            # A umask with the owner's bits keeps whoever made a file from opening it again.
            os.fchmod(descriptor, 0o644)
            self._hand_over(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


_TRIES = 100


@contextlib.contextmanager
def _opened_if_empty(folder: Path) -> Iterator[int | None]:
    """A folder itself and no link to one; None for one that has something in it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder, flags)
    try:
        yield None if os.listdir(descriptor) else descriptor  # noqa: PTH208 - of that very folder
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> bool:
    """Lock an open file; False where the run before removed that very file meanwhile."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        raise _locked(holder) from None
    if path.stat().st_ino != os.fstat(descriptor).st_ino:
        return False
    with contextlib.suppress(OSError):  # the pid is for the message of the other run alone
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return True


def _locked(holder: str) -> KvpatchError:
    who = f"process {holder}" if holder else "another process"
    return KvpatchError(
        "locked",
        f"{who} is changing this environment with kvpatch",
        "wait until it has ended, then run the command again",
        ExitCode.ENVIRONMENT,
    )


def now_ns() -> int:
    """The time, in ns since the epoch."""
    return time.time_ns()
