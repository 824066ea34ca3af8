"""What the operating system refuses, in words of a user and with a next step."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from .outcome import ExitCode, KvpatchError


def environment_error(error: OSError) -> KvpatchError:
    """A failed operation in the user's words; exit 4."""
    # What a rename was to take the place of says more than what kvpatch wrote beside it.
    where = error.filename2 or error.filename or "a file"
    if error.errno == errno.ENOENT and not error.filename and not _stands_somewhere():
        return KvpatchError(
            "no-folder",
            "the working folder is gone, and a relative path was given",
            "change to a folder that is there, then run the command again",
            ExitCode.ENVIRONMENT,
        )
    if error.errno == errno.ENOMEM:
        return no_memory()
    code, what, hint = {
        errno.ENOSPC: ("no-space", "no space is left", "make room, then run the command again"),
        errno.EDQUOT: ("no-space", "the quota is used up", "make room, then run again"),
        errno.EBUSY: (
            "mounted",
            "it is in use as a mount point",
            "patch the file that is mounted there, or take the mount away",
        ),
        errno.EROFS: ("read-only", "the file system is read-only", "mount it writable first"),
        errno.EACCES: ("no-permission", "permission is denied", "run as the owner of the files"),
        errno.EPERM: (
            "no-permission",
            "it is not permitted",
            "run as the owner of the files, or lift what makes it read-only",
        ),
    }.get(
        error.errno or 0,
        ("file-error", error.strerror or str(error), "see to that error, then run again"),
    )
    return KvpatchError(code, f"{where}: {what}", hint, ExitCode.ENVIRONMENT)


def no_memory() -> KvpatchError:
    """The error for too little memory."""
    return KvpatchError(
        "no-memory",
        "there is not enough memory",
        "free some or raise the limit (`ulimit -v`), then run the command again",
        ExitCode.ENVIRONMENT,
    )


def _stands_somewhere() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - whether it is there is all that is asked
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def environment_errors() -> Iterator[None]:
    """Turn what the operating system refuses into errors with a next step."""
    try:
        yield
    except OSError as error:
        raise environment_error(error) from error
