"""Files that a verb writes beside its report: seen to before the work, put there whole after it."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from .outcome import ExitCode, KvpatchError

_NOT_BY_RENAME = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""A file may be written though its folder may not, or though it is a mount of its own."""


def ready(path: Path | None) -> None:
    """See that a file can be written, before the minutes that its content takes.

    Raises:
        KvpatchError: ``not-written``, exit 4.
    """
    if path is None:
        return
    try:
        target = path if path.exists() and not path.is_file() else path.resolve()
        if target.is_dir():
            raise not_written(path, "it is a folder")
        if not target.parent.is_dir():
            raise not_written(path, "its folder is not there")
        there = os.path.lexists(target)
    except (OSError, RuntimeError) as error:
        # Up to Python 3.12 links that go round in a circle are a RuntimeError.
        raise not_written(
            path, getattr(error, "strerror", None) or "its links lead nowhere"
        ) from None
    if there and not os.access(target, os.W_OK):
        raise not_written(path, "the file that is there may not be written")
    if not there and not os.access(target.parent, os.W_OK | os.X_OK):
        raise not_written(path, "its folder may not be written")


def put(path: Path, content: str) -> None:
    """Write a file, whole or not at all; what was there stays where that fails.

    What is no ordinary file, such as ``/dev/stdout``, is written as it stands.

    Raises:
        KvpatchError: ``not-written``, exit 4.
    """
    try:
        # Of a pipe that is /dev/stdout the links lead to no name.
        if path.exists() and not path.is_file():
            _write_now(path, content)
            return
        target = path.resolve()
        try:
            _replace(target, content)
        except OSError as error:
            if error.errno not in _NOT_BY_RENAME or not target.exists():
                raise
            target.write_text(content, encoding="utf-8")
    except OSError as error:
        unread = error.errno == errno.ENXIO
        why = "it is a pipe that nobody reads" if unread else error.strerror or str(error)
        raise not_written(path, why) from error


def _write_now(target: Path, content: str) -> None:
    """Write what is no ordinary file, without waiting for one to open the other end of a pipe."""
    descriptor = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(content)


def remove(path: Path) -> None:
    """See that no earlier run's file is there.

    Raises:
        KvpatchError: ``not-written``, exit 4.
    """
    try:
        if path.is_file():
            path.unlink()
    except OSError as error:
        raise not_written(path, f"what is there can't be removed: {error.strerror}") from error


def _replace(target: Path, content: str) -> None:
    draft = target.with_name(f".kvpatch-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        draft.open("x", encoding="utf-8").close()
        draft.write_text(content, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, new or empty; what of it was made goes again if it stays empty.

    Raises:
        KvpatchError: ``keep-not-empty`` (exit 2); ``not-written`` (exit 4).
    """
    folder = path.absolute()
    missing = [one for one in (folder, *folder.parents) if not os.path.lexists(one)]
    try:
        if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
            raise KvpatchError(
                "keep-not-empty",
                f"{folder} is there already, and not an empty folder",
                "name a new folder with --keep",
                ExitCode.USAGE,
            )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".kvpatch").mkdir()
        (folder / ".kvpatch").rmdir()
    except OSError as error:
        raise KvpatchError(
            "not-written",
            f"{folder} can't be made or written: {error.strerror}",
            "name a folder with --keep where files can be written",
            ExitCode.ENVIRONMENT,
        ) from error
    try:
        yield folder
    finally:
        for one in missing:
            with contextlib.suppress(OSError):
                one.rmdir()


def not_written(path: Path, why: str) -> KvpatchError:
    """The failure of a file."""
    return KvpatchError(
        "not-written",
        f"{path} can't be written: {why}",
        "name a file in a folder that is there and may be written",
        ExitCode.ENVIRONMENT,
    )
