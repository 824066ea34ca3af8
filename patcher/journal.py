"""The journal of a site folder on disk: what kvpatch wrote, and the bytes to put back."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from .fsops import Disk, Lock, environment_errors, sha256
from .ledger import SCHEMA, DistributionState, Entry, Journal, Step, check_path
from .ledger_format import parse, render
from .outcome import ExitCode, KvpatchError

__all__ = [
    "SCHEMA",
    "DistributionState",
    "Entry",
    "Journal",
    "Step",
    "Store",
    "check_path",
    "new_transaction",
    "state_directory",
    "state_name",
]

JOURNAL = "journal.json"
LOCK = "lock"
BLOBS = "blobs"
ARCHIVE = "archive"
HOME = ".kvpatch"

_PYTHON = re.compile(r"python\d+\.\d+t?")


def new_transaction() -> str:
    """A name that no other transaction has: the time, and something random."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(4).hex()}"


def state_directory(site: Path, state: Path | None = None) -> Path:
    """Where the journal of a site folder lives.

    Args:
        site: the site folder, by any path that leads there.
        state: the folder of ``--state``, which takes the place of the environment's own.

    Raises:
        KvpatchError: ``state-inside-site`` where that would be among the installed packages.
    """
    real = site.resolve()
    if state is None:
        return _root(real) / HOME / state_name(real)
    home = state.resolve()
    if home == real or real in home.parents:
        raise KvpatchError(
            "state-inside-site",
            f"{state} is inside the site folder {site}, where an upgrade may remove it",
            "give --state a folder outside of it",
            ExitCode.USAGE,
        )
    return home / state_name(real)


def state_name(real: Path) -> str:
    """What the state folder of a site folder is called, by the path without symbolic links."""
    return f"{real.name}-{sha256(os.fsencode(real))[:16]}"


def _root(real: Path) -> Path:
    """The folder above the outermost ``lib*/pythonX.Y/{site,dist}-packages``, else the parent."""
    for folder in reversed((real, *real.parents)):
        if (
            folder.name in ("site-packages", "dist-packages")
            and _PYTHON.fullmatch(folder.parent.name)
            and folder.parent.parent.name.startswith("lib")
        ):
            return folder.parent.parent.parent
    return real.parent


_SOME = "the patched distributions"
_BLOB = re.compile(r"[0-9a-f]{64}(\.new)?")
"""The names of what kvpatch keeps among the originals; anything else is somebody's own."""


@dataclass(frozen=True)
class Store:
    """The state folder of one site folder.

    Where ``site`` is given, a journal of any other site folder is refused.
    """

    directory: Path
    disk: Disk
    site: Path | None = None

    @classmethod
    def of(cls, site: Path, state: Path | None, disk: Disk) -> Store:
        """The store that belongs to a site folder; see ``state_directory``.

        One that was moved, and to which a symbolic link at its old path leads, keeps what it has.
        """
        own = state_directory(site, state)
        there = (own / JOURNAL).exists()
        return cls(own if there else _kept(own.parent, site) or own, disk, site)

    def read(self) -> Journal | None:
        """The journal, None where there is none; takes no lock and creates nothing.

        Raises:
            KvpatchError: ``journal-damaged``, ``journal-newer``, ``journal-elsewhere`` or
                ``journal-hostile``, exit 3; ``no-permission`` or the like, exit 4.
        """
        with environment_errors():
            try:
                text = self.disk.read(self.directory / JOURNAL)
            except (FileNotFoundError, NotADirectoryError):
                return None
        journal = parse(text, str(self.directory))
        if self.site is not None and not _leads_to(self.site, journal.site):
            raise elsewhere(self.directory, journal.site, self.site)
        return journal

    def original(self, digest: str) -> bytes:
        """Bytes kept under their sha256.

        Raises:
            KvpatchError: ``original-damaged`` where they are gone or are not those bytes; exit 3,
                or exit 4 where the journal no longer needs them: another run has ended.
        """
        path = self._blob(digest)
        with environment_errors():
            try:
                data = self.disk.read(path)
            except (FileNotFoundError, NotADirectoryError):
                data = None
        if data is None or sha256(data) != digest:
            what = "is gone" if data is None else "is not what was saved"
            needed = self._needing(digest)
            if needed is None:
                raise KvpatchError(
                    "original-damaged",
                    f"the original kept in {path} {what}: another run of kvpatch ended meanwhile",
                    "run the command again",
                    ExitCode.ENVIRONMENT,
                )
            raise KvpatchError(
                "original-damaged",
                f"the original kept in {path} {what}",
                f"reinstall {needed}: its own file then counts as the original",
                ExitCode.REFUSED,
            )
        return data

    def _needing(self, digest: str) -> str | None:
        """The distributions for whose files the journal that is there now needs those bytes."""
        try:
            journal = self.read()
        except KvpatchError:
            return _SOME
        if journal is None or digest not in journal.blobs:
            return None
        known = [entry for entry in journal.known if digest in (entry.original, entry.after)]
        return " and ".join(sorted({entry.distribution for entry in known})) or _SOME

    def keep(self, data: bytes) -> str:
        """Save bytes under their sha256, which is returned."""
        digest = sha256(data)
        path = self._blob(digest)
        if path.is_file() and sha256(self.disk.read(path)) == digest:
            return digest
        self.disk.mkdir(path.parent)
        self.disk.write(path, data)
        return digest

    def write(self, journal: Journal) -> None:
        """Put a journal in place of the one before, at once or not at all."""
        text = render(journal)
        # What could not be read again must not be written.
        parse(text, str(self.directory))
        self.disk.write(self.directory / JOURNAL, text)

    def remove(self) -> None:
        """Take the journal away; the bytes it needed stay until ``tidy``."""
        if self.disk.discard(self.directory / JOURNAL):
            self.disk.fsync_dir(self.directory)

    def lock(self) -> Lock:
        """Take this state folder's lock, making the folder where it is not there.

        Raises:
            KvpatchError: ``locked``, or ``state-not-writable`` for a new folder; exit 4.
            OSError: for a folder that holds a journal already.
        """
        if (odd := self.obstacle()) is not None:
            raise odd
        try:
            for folder in reversed(self._folders):
                self.disk.adopt(folder)
            return self.disk.lock(self.directory / LOCK)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.fold()
            refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            # Where a journal is, another folder would only hide it.
            if not refused or (self.directory / JOURNAL).exists():
                raise
            raise KvpatchError(
                "state-not-writable",
                f"the journal's folder {self.directory} can't be written: {error.strerror}",
                "give a folder that can be with --state, the same one for every later command",
                ExitCode.ENVIRONMENT,
            ) from error

    def obstacle(self) -> KvpatchError | None:
        """What stands where the folder and the files of this store have to be; None for nothing."""
        folders = (self.directory, self.directory / BLOBS, self.directory / ARCHIVE)
        files = (self.directory / JOURNAL, self.directory / LOCK)
        for path in (*folders, *files):
            if path.is_symlink():
                return KvpatchError(
                    "state-linked",
                    f"{path} is a symbolic link, which kvpatch never makes",
                    "put the folder or file itself there, or give another one with --state",
                )
        for path in (*reversed(self.directory.parents), *folders, *files):
            kind = "file" if path in files else "folder"
            if (found := _kind(path)) is not None and found != kind:
                return KvpatchError(
                    "state-not-writable",
                    f"{path} is not a {kind}, and the journal needs one there",
                    "move it away, or give another folder with --state",
                    ExitCode.ENVIRONMENT,
                )
        return None

    def litter(self) -> tuple[Path, ...]:
        """What an interrupted run left that no journal needs; archives are never among it."""
        journal = self._alive()
        needed = journal.blobs if journal else frozenset()
        made = {f"{JOURNAL}.new", f"{ARCHIVE}.new"} | (set() if journal else {JOURNAL, LOCK})
        found = [path for path in _children(self.directory) if path.name in made]
        found += [
            path
            for path in _children(self.directory / BLOBS)
            if path.name not in needed and _BLOB.fullmatch(path.name)
        ]
        return (*found, *(path for path in self._folders if _empty(path)))

    def tidy(self) -> None:
        """Remove what no journal needs, and the folder itself where nothing is left in it.

        The caller holds the lock. An archive stays, and the folder with it.
        """
        lock = self.directory / LOCK
        for path in self.litter():
            if path != lock and path not in self._folders:
                self.clear(path)
        if self._alive() is None:
            # Only under the lock: whoever takes it next puts originals there.
            self.disk.rmdir(self.directory / BLOBS)
            self.disk.discard(lock)
            self.fold()

    def _alive(self) -> Journal | None:
        """The journal, unless it has come to an end and has no entry left."""
        journal = self.read()
        return journal if journal and (journal.unfinished or journal.entries) else None

    def fold(self) -> None:
        """Remove the folders that are empty; needs no lock, since others that want them retry."""
        for path in self._folders[1:]:
            self.disk.rmdir(path)

    @property
    def _folders(self) -> tuple[Path, ...]:
        """The folders made for this store, innermost first."""
        above = [self.home] if self.home != self.directory else []
        return (self.directory / BLOBS, self.directory, *above)

    @property
    def home(self) -> Path:
        """The outermost folder that kvpatch makes for journals."""
        above = self.directory.parent
        return above if above.name == HOME else self.directory

    def clear(self, path: Path) -> None:
        """Remove a file, or a folder with what is in it."""
        if path.is_dir() and not path.is_symlink():
            for child in _children(path):
                self.clear(child)
            self.disk.rmdir(path)
        else:
            self.disk.discard(path)

    def _blob(self, digest: str) -> Path:
        return self.directory / BLOBS / digest


def _kind(path: Path) -> str | None:
    """Whether a path is a folder or something else, a file; None where nothing is there."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    return "folder" if stat.S_ISDIR(mode) or path.is_dir() else "file"


def _empty(folder: Path) -> bool:
    return folder.is_dir() and not _children(folder)


def _children(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(folder.iterdir())
    return []


def _leads_to(site: Path, path: str) -> bool:
    """Whether a path that was noted down is, or is linked to, that very site folder."""
    return os.path.realpath(path) == os.path.realpath(site)


def _kept(home: Path, site: Path) -> Path | None:
    """The state folder in there that was made for this site folder under the path it had before.

    It goes by the name that its journal has for it, by which other site folders know it.
    """
    with contextlib.suppress(OSError):
        for path in _children(home):
            with contextlib.suppress(KvpatchError):
                journal = Store(path, Disk()).read()
                if journal is None or not _leads_to(site, journal.site):
                    continue
                for key in map(Path, journal.participants):
                    # One that did not move along may be of what was there before.
                    if _leads_to(path, str(key)) and (key != path or _wrote(journal, site)):
                        return key
    return None


def _wrote(journal: Journal, site: Path) -> bool:
    """Whether some file of a site folder is as that journal says kvpatch wrote it."""
    for entry in journal.known:
        with contextlib.suppress(OSError):
            if sha256((site / entry.path).read_bytes()) == entry.after:
                return True
    return False


def elsewhere(directory: Path, site: str, wanted: Path) -> KvpatchError:
    """The error for a journal that speaks of another site folder."""
    return KvpatchError(
        "journal-elsewhere",
        f"the journal in {directory} is that of {site}, not of {wanted}",
        f"to revert, {bring_back(site)}; here, {_SOME} can be reinstalled and that folder be moved "
        "aside",
        ExitCode.REFUSED,
    )


def bring_back(site: str) -> str:
    """What to do about a journal that came along with an environment from where it was patched."""
    return (
        f"put the environment back where it was patched, with its packages in {site}, or leave a "
        "symbolic link to it there"
    )


def strays(site: Path) -> dict[Path, str]:
    """State folders beside this site folder's own that came along, and the places they are of.

    A copied or moved environment brings the journal of the place it was made for.
    """
    own = state_directory(site)
    found = {}
    for path in _children(own.parent):
        if path == own:
            continue
        with contextlib.suppress(KvpatchError):
            journal = Store(path, Disk()).read()
            if journal is None or _leads_to(site, journal.site):
                continue
            if state_directory(Path(journal.site)) != path:
                found[path] = journal.site
    return found
