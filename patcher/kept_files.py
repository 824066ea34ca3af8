"""The files of the cache folder: each is there whole or not at all, whoever reads it meanwhile."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path

from .leftovers import PREFIX, locked
from .links import read_regular
from .outcome import ExitCode, KvpatchError


def write_atomically(path: Path, data: bytes) -> None:
    """Puts a file of the cache in place whole, so that other processes may read at any moment.

    Raises:
        KvpatchError: ``no-cache``, exit 4.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=PREFIX)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                # So that no other run takes it for what a killed one left.
                locked(descriptor, fcntl.LOCK_EX)
                stream.write(data)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise no_cache(path.parent, error) from None


def kept_file(path: Path) -> bytes:
    """The bytes of a file of the cache; a pipe in its place keeps nobody waiting.

    Raises:
        OSError: there is no regular file, or it can't be read.
    """
    found = read_regular(str(path))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return found


def no_cache(folder: Path, error: OSError) -> KvpatchError:
    """What to say of a cache folder that can't be written."""
    return KvpatchError(
        "no-cache",
        f"{folder} can't be written: {error.strerror}",
        "make room, or set XDG_CACHE_HOME to a folder that can be written",
        ExitCode.ENVIRONMENT,
    )
