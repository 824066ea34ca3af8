"""One file's way from what it is to what it shall be: staged beside it, then switched."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import bytecode
from .fsops import Disk, fresh_mtime, now_ns, sha256
from .journal import Journal, Store
from .ledger import temporary
from .outcome import ExitCode, KvpatchError
from .owners import Owners
from .target_file import Found, Shape, look


@dataclass(frozen=True)
class SiteState:
    """A site folder, by the path it was given as, and the store of its journal.

    ``located`` says whose its files are as an interpreter has it; else the folder itself does.
    """

    site: Path
    store: Store
    located: Owners | None = None

    @cached_property
    def owners(self) -> Owners:
        """Whose the files of the site folder are now."""
        return self.located or Owners(self.site)

    @property
    def real(self) -> Path:
        """The site folder without symbolic links on the way."""
        return self.site.resolve()

    @property
    def given(self) -> Path:
        """The site folder as given, made absolute."""
        return Path(os.path.abspath(self.site))  # noqa: PTH100 - `..` must not stay in it

    @property
    def key(self) -> str:
        """What a journal calls this participant: its state folder."""
        return str(self.store.directory)

    def journal(self) -> Journal | None:
        """The journal, which must be that of this site folder."""
        return Store(self.store.directory, self.store.disk, self.site).read()


def stage(
    disk: Disk,
    place: SiteState,
    path: str,
    shape: Shape,
    transaction: str,
    content: Callable[[str], bytes] | None = None,
) -> None:
    """Write beside a target what shall take its place, with the mode, owner and attributes it
    shall have.

    A link is made where its target has the bytes that it had, else a plain file of those bytes.

    Args:
        disk: does it.
        place: the site folder.
        path: the target below it.
        shape: what the target shall be.
        transaction: in whose name.
        content: gives the bytes of a digest; by default the store's.

    Raises:
        OSError: where mode, owner or attributes can't be kept, or there is no room.
        KvpatchError: ``original-damaged``.
    """
    target = place.real / path
    new = target.with_name(temporary(path, transaction))
    disk.discard(new)
    if shape.link is not None and leads_to(disk, target.parent / shape.link, shape.digest):
        disk.symlink(shape.link, new)
        return
    data = (content or place.store.original)(shape.digest)
    found = look(disk, place.real, path)
    if found is None:
        parent = target.parent.stat()
        owner, old, attributes = (parent.st_uid, parent.st_gid), None, None
    else:
        owner, old, attributes = found.owner, found.mtime, found.attributes
    mtime = fresh_mtime(now_ns(), old)
    disk.write_new(new, data, mode=shape.mode, owner=owner, mtime=mtime, attributes=attributes)


def switch(disk: Disk, place: SiteState, path: str, was: Shape | None, transaction: str) -> None:
    """Put the staged file in place, if the target is still what it was.

    Raises:
        KvpatchError: ``changed-meanwhile``; the target is left alone.
    """
    found = look(disk, place.real, path)
    if (found.shape.digest if found else None) != (was.digest if was else None):
        raise changed_meanwhile(place.real / path)
    target = place.real / path
    disk.replace(target.with_name(temporary(path, transaction)), target)


def settle_names(
    disk: Disk,
    place: SiteState,
    paths: Sequence[str],
    prefixes: Sequence[str],
    *,
    strict: bool = True,
) -> None:
    """See the new names onto the disk and drop the bytecode of the old ones.

    Where a run is rolled back (not ``strict``), bytecode that can't go is that of the file that
    comes back, and must not keep it from coming.
    """
    for folder in sorted({(place.real / path).parent for path in paths}):
        if folder.is_dir():
            disk.fsync_dir(folder)
    for path in paths:
        with contextlib.nullcontext() if strict else contextlib.suppress(OSError):
            bytecode.drop(disk, dict.fromkeys((place.real, place.given)), path, prefixes)


def unstage(disk: Disk, place: SiteState, path: str, transaction: str) -> None:
    """Remove what was staged and never switched."""
    disk.discard((place.real / path).with_name(temporary(path, transaction)))


def leads_to(disk: Disk, path: Path, digest: str) -> bool:
    """Whether a path is a regular file with bytes of that digest, links followed."""
    try:
        return path.is_file() and sha256(disk.read(path)) == digest
    except FileNotFoundError:
        return False


def check_owner(place: SiteState, path: str, found: Found) -> None:
    """See that this process may give a new file the old one's owner.

    Raises:
        KvpatchError: ``owner``; exit 4.
    """
    uid, gid = found.owner
    if os.geteuid() == 0 or (uid == os.geteuid() and gid in {os.getegid(), *os.getgroups()}):
        return
    raise KvpatchError(
        "owner",
        f"{place.real / path} belongs to user {uid} and group {gid}, which can't be kept",
        "run kvpatch as that user, or as root",
        ExitCode.ENVIRONMENT,
    )


def changed_meanwhile(target: Path) -> KvpatchError:
    """The error for a file that is not what it was when the run began."""
    return KvpatchError(
        "changed-meanwhile",
        f"{target} was changed by someone else in this moment",
        "let the other tool end, then run the command again",
        ExitCode.REFUSED,
    )
