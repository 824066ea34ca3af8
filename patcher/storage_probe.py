"""Looks at a folder for GDS, in a child process that a dead mount may hang.

Stands alone: run as a script with the folder, the mount table to read and whether to write. All it
writes is one temporary file in that folder, which it removes. Prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCK = 4096


def unescaped(text: str) -> str:
    """A path as it is, of the octal escapes that the mount table has for it."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def mounts(table: str) -> dict[str, dict[str, Any]]:
    """The mounts of a ``mountinfo`` text: the later of two at one point lies on top."""
    found: dict[str, dict[str, Any]] = {}
    for line in table.splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if not dash or len(left) < 6 or len(right) < 2:
            continue
        point = unescaped(left[4])
        options = sorted(
            set(left[5].split(",")) | set((right[2] if len(right) > 2 else "").split(","))
        )
        found[point] = {
            "point": point,
            "type": right[0],
            "source": unescaped(right[1]),
            "options": [one for one in options if one],
        }
    return found


def mount_of(path: str, table: str) -> dict[str, Any] | None:
    """The mount that a path lies on, by whole components; None where the table has none."""
    found = mounts(table)
    here = path
    while True:
        if here in found:
            return found[here]
        above = str(Path(here).parent)
        if above == here:
            return None
        here = above


def tried(work: Callable[[], object]) -> str:
    """``ok``, or why it failed."""
    try:
        work()
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, AttributeError) as error:
        return str(error)
    return "ok"


def written(folder: str) -> dict[str, str]:
    """What this user can do there, each step with its outcome."""
    steps: dict[str, str] = {}
    names: list[str] = []

    def create() -> None:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=".kvpatch-probe-")
        names.append(name)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(b"k" * BLOCK)
            stream.flush()
            steps["fsync"] = tried(lambda: os.fsync(stream.fileno()))

    def direct() -> None:
        descriptor = os.open(names[0], os.O_RDWR | os.O_DIRECT)
        try:
            with mmap.mmap(-1, BLOCK) as aligned:
                aligned.write(b"d" * BLOCK)
                os.pwritev(descriptor, [aligned], 0)
                if os.preadv(descriptor, [aligned], 0) != BLOCK:
                    raise ValueError("a direct read is short")
        finally:
            os.close(descriptor)

    def shared() -> None:
        with Path(names[0]).open("r+b") as stream, mmap.mmap(stream.fileno(), BLOCK) as region:
            region[0:1] = b"m"
            region.flush()

    def renamed() -> None:
        target = names[0] + ".renamed"
        Path(names[0]).rename(target)
        names[0] = target

    try:
        steps["write"] = tried(create)
        if steps["write"] == "ok":
            steps["O_DIRECT"] = tried(direct)
            steps["shared mmap"] = tried(shared)
            steps["rename"] = tried(renamed)
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                Path(name).unlink()
    return steps


def look(folder: str, table: str, write: bool) -> dict[str, Any]:
    """All that is told of the folder."""
    real = str(Path(folder).resolve())
    there = Path(real).is_dir()
    facts: dict[str, Any] = {"folder": folder, "real": real, "there": there}
    facts["mount"] = mount_of(real, table)
    if there:
        space = os.statvfs(real)
        facts["free_bytes"] = space.f_bavail * space.f_frsize
        facts["free_inodes"] = space.f_favail if space.f_files else None
        facts["read_only"] = bool(space.f_flag & os.ST_RDONLY)
        facts["steps"] = written(real) if write else {}
        facts["entries"] = sorted(path.name for path in Path(real).iterdir())[:2000]
    return facts


if __name__ == "__main__":
    folder_given, table_path, write_given = sys.argv[1:4]
    text = Path(table_path).read_text("utf-8", "surrogateescape")
    print(json.dumps(look(folder_given, text, write_given == "write")))
