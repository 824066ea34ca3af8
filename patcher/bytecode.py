"""Where Python keeps the bytecode of a source file, and its removal.

Bytecode with an unchecked hash runs whatever its source says, so it must go when the source
changes; with a time stamp it would be rewritten anyway.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .fsops import Disk


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


def drop(disk: Disk, sites: Iterable[Path], path: str, prefixes: Sequence[str] = ()) -> int:
    """Remove the bytecode of a source file, for every interpreter and optimisation level.

    Returns:
        how many files were removed.

    Raises:
        OSError: where one can't be removed.
    """
    stem = Path(path).stem + "."
    removed = 0
    for folder in folders(sites, path, prefixes):
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            if name.startswith(stem) and name.endswith(".pyc"):
                removed += disk.discard(folder / name)
    return removed
