"""What earlier runs of this very kvpatch found out, kept in the cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .descent import entered, files, opened
from .digest import sha256
from .index import kept_file, write_atomically
from .leftovers import DAY_S, is_half, locked
from .matrix import Release, Row
from .sealed import seal, unseal

if TYPE_CHECKING:
    from .series import Series

# Those of another Python's kvpatch, and of the one before an upgrade.
_KEPT_OTHERS = 3
_NAME = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r"[a-z][a-z0-9-]*-[^/-]+-[0-9a-f]{16}\.json")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES, _PAUSE_S = 50, 0.02


@dataclass(frozen=True)
class Kept:
    """Verdicts by the hashes of the two wheels.

    Of each release there are its own rows (``rows``), by the release of the other package that it
    was planned beside; of one of LMCache also its pairs, by the hash of the vLLM wheel.
    """

    folder: Path

    @classmethod
    def by(cls, series: Series, cache: Path) -> Kept:
        """Those of this series and of this checker's code."""
        texts = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
        digest = sha256(b"\0".join([series.digest.encode(), *texts]))[:16]
        return cls(cache / "verdicts" / digest)

    def of(self, release: Release) -> dict[str, Any]:
        """What is kept of one release; nothing where its bytes have no name."""
        if release.key is None:
            return {}
        try:
            found: dict[str, Any] = json.loads(unseal(kept_file(self._place(release))))
            return found
        except (OSError, ValueError):
            return {}

    def keep(self, release: Release, found: Mapping[str, Any]) -> None:
        """Put that there for the next run.

        Raises:
            KvpatchError: ``no-cache``, exit 4.
        """
        if release.key is not None:
            write_atomically(self._place(release), seal(json.dumps(found).encode()))

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """While these are read and written no other run prunes them, nor for a day afterwards."""
        descriptor = _marked(self.folder)
        try:
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def prune(self, now: float | None = None) -> None:
        """Remove the verdicts of other kvpatch but those last used, and those of the last day.

        What can't be removed stays, without a word.
        """
        at = time.time() if now is None else now
        root = self.folder.parent
        with contextlib.suppress(OSError):
            if root.is_symlink():
                return
            used = {
                Path(entry.path): entry.stat(follow_symlinks=False).st_mtime
                for entry in os.scandir(root)
                if entry.is_dir(follow_symlinks=False) and _NAME.fullmatch(entry.name)
            }
            used.pop(self.folder, None)
            for folder in sorted(used, key=lambda one: -used[one])[_KEPT_OTHERS:]:
                if at - used[folder] >= DAY_S:
                    _remove(folder, at)

    def _place(self, release: Release) -> Path:
        return self.folder / f"{release.package}-{release.version}-{str(release.key)[:16]}.json"


def _marked(folder: Path) -> int | None:
    """The folder, held and marked as used now; None where that can't be, as in a read-only cache.

    Closing it lets go.
    """
    with contextlib.suppress(OSError):
        for _ in range(_TRIES):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, _FOLDER)
            # Only who removes the folder holds it otherwise, and that for a moment.
            if locked(descriptor, fcntl.LOCK_SH) and os.fstat(descriptor).st_nlink:
                with contextlib.suppress(OSError):
                    os.utime(descriptor)
                return descriptor
            os.close(descriptor)
            time.sleep(_PAUSE_S)
    return None


def _remove(folder: Path, now: float) -> None:
    """Remove a folder of verdicts, if nothing is in it but what kvpatch wrote."""
    root = folder.parent
    with (
        contextlib.suppress(OSError),
        opened(root.parent) as cache,
        entered(root.name, cache) as place,
        entered(folder.name, place) as descriptor,
    ):
        # It may have come into use since it was found.
        free = locked(descriptor, fcntl.LOCK_EX)
        if free and now - os.fstat(descriptor).st_mtime >= DAY_S:
            found = [one for one in files(descriptor) if _FILE.fullmatch(one) or is_half(one)]
            if len(found) == len([*os.scandir(descriptor)]):
                for file in found:
                    os.unlink(file, dir_fd=descriptor)
                os.rmdir(folder.name, dir_fd=place)


def remembered(row: Row, beside: Release, memory: Mapping[str, Any]) -> dict[str, Any]:
    """The memory with a row that was planned beside that release; unchanged by one of an error."""
    if row.error is not None:
        return dict(memory)
    told = {"patches": [dict(patch) for patch in row.patches], "registered": row.registered}
    return {**memory, "rows": {**memory.get("rows", {}), str(beside.version): told}}


def recalled(release: Release, beside: Release, memory: Mapping[str, Any]) -> Row | None:
    """The row of a release beside another, as it was kept; None where none is."""
    known = memory.get("rows", {}).get(str(beside.version))
    if known is None:
        return None
    return Row(
        release.package,
        str(release.version),
        release.name,
        tuple(known["patches"]),
        registered=bool(known["registered"]),
        key=release.key,
    )
