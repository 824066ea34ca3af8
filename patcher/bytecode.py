"""Where Python keeps the bytecode of a source file, and its removal.

Bytecode with an unchecked hash runs whatever its source says, so it must go when the source
changes; with a time stamp it would be rewritten anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .fsops import Disk
from .source_hash import source_hash

_HEADER = 16
_HASHED, _HASHED_AND_CHECKED = 0b01, 0b11


def folders(sites: Iterable[Path], path: str, prefixes: Sequence[str] = ()) -> tuple[Path, ...]:
    """The folders in which an interpreter may look for the bytecode of a source file.

    Args:
        sites: the site folder, by each absolute path that an interpreter may know it by.
        path: the source file below the site folder.
        prefixes: values of PYTHONPYCACHEPREFIX in use.
    """
    found: dict[Path, None] = {}
    for site in sites:
        folder = (site / path).parent
        found[folder / "__pycache__"] = None
        for prefix in prefixes:
            found[Path(prefix).absolute() / str(folder).lstrip("/")] = None
    return tuple(found)


def files(sites: Iterable[Path], path: str, prefixes: Sequence[str] = ()) -> Iterator[Path]:
    """The bytecode of a source file, for every interpreter and optimisation level.

    Raises:
        OSError: where a folder can't be read.
    """
    stem = Path(path).stem + "."
    for folder in folders(sites, path, prefixes):
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            if name.startswith(stem) and name.endswith(".pyc"):
                yield folder / name


def unchecked(
    sites: Iterable[Path], path: str, prefixes: Sequence[str] = ()
) -> Iterator[tuple[Path, bytes]]:
    """The bytecode that Python runs whatever the source says, with its header (PEP 552).

    With a time stamp, and with a hash that is checked, Python finds out by itself what is old.
    """
    for file in files(sites, path, prefixes):
        try:
            with file.open("rb") as stream:
                header = stream.read(_HEADER)
        except OSError:
            continue
        flags = int.from_bytes(header[4:8], "little")
        if len(header) == _HEADER and flags & _HASHED_AND_CHECKED == _HASHED:
            yield file, header


def is_unfit(header: bytes, source: bytes) -> bool:
    """Whether unchecked bytecode with that header was made of another source."""
    return header[8:] != source_hash(header[:4], source)


def drop(disk: Disk, sites: Iterable[Path], path: str, prefixes: Sequence[str] = ()) -> int:
    """Remove the bytecode of a source file.

    Returns:
        how many files were removed.

    Raises:
        OSError: where one can't be removed.
    """
    return sum(disk.discard(file) for file in files(sites, path, prefixes))
