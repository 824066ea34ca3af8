"""The installed environment as a tree: each file's provenance by RECORD and by the journals."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import InvalidVersion, Version

from .digest import sha256
from .journal import Store
from .ledger import DistributionState, Entry, Journal
from .links import content_of
from .locate import Environment, Installed, symlinked_folder
from .outcome import ExitCode, KvpatchError, Outcome
from .owners import Owners, state_of
from .patch import Refusal
from .record import Record
from .tree import Package, Provenance, Source


@dataclass(frozen=True)
class Site:
    """A site folder with its journal; ``journal`` is None where nothing was ever applied."""

    path: Path
    store: Store
    journal: Journal | None


@dataclass(frozen=True)
class InstalledTree:
    """The files of the located packages. Reading takes no lock and creates nothing."""

    environment: Environment
    sites: Mapping[Path, Site]
    records: dict[str, Record] = field(default_factory=dict)
    known_owners: dict[Path, Owners] = field(default_factory=dict)

    def package(self, name: str) -> Package | None:
        """The distribution that carries the package.

        Raises:
            KvpatchError: ``bad-version``, where its version is not one of PEP 440.
        """
        installed = self.environment.packages.get(name)
        if installed is None:
            return None
        try:
            return Package(installed.distribution, Version(installed.version))
        except InvalidVersion as error:
            raise KvpatchError(
                "bad-version",
                f"{installed.distribution} says its version is {installed.version!r}, "
                "which is not a version",
                f"reinstall {installed.distribution}",
                ExitCode.ENVIRONMENT,
            ) from error

    def owned(self, name: str) -> tuple[str, ...]:
        """The paths that the journal of the package's site folder has for its distribution."""
        installed = self.environment.packages.get(name)
        if installed is None:
            return ()
        journal = self.sites[installed.site].journal
        if journal is None:
            return ()
        prefix = f"{name}/"
        return tuple(path for path in journal.entries if path.startswith(prefix))

    def source(self, name: str, path: str) -> Source | None:
        """The file and where its bytes come from.

        Raises:
            Refusal: ``conflict``, where the path is no plain file or lies behind a linked folder.
            KvpatchError: ``unreadable``.
        """
        installed = self.environment.packages[name]
        if not _is_file(installed.site, path):
            return None
        content = self.content(name, path)
        if content is None:
            return None
        site = self.sites[installed.site]
        found = sha256(content)
        entry = site.journal.ours(path, found) if site.journal is not None else None
        fits = self.record(name).fits(path, content)
        if entry is not None and not fits:
            original = site.store.original(entry.original)
            return Source(path, content, Provenance.OURS, original, entry.basis, entry.patches)
        if installed.editable:
            where = installed.editable_location or str(installed.site)
            why = f"{installed.distribution} is an editable install of {where}"
            return Source(path, content, Provenance.UNKNOWN, why=why)
        if fits:
            return Source(path, content, Provenance.PRISTINE)
        if fits is None:
            problem = self.record(name).problem
            why = problem or f"the RECORD of {installed.distribution} has no hash of {path}"
            return Source(path, content, Provenance.UNKNOWN, why=why)
        why = f"it differs from {installed.distribution} {installed.version} as released"
        if (changed := self._changed(installed, path)) is not None:
            why = "it was changed after kvpatch wrote it"
            kept = site.store.original(changed.original)
            wrote = changed.patches
            return Source(path, content, Provenance.OTHER, kept, written=wrote, why=why)
        return Source(path, content, Provenance.OTHER, why=why)

    def opaque(self, name: str, module: str) -> bool:
        """Whether the site folder has an extension of that module, or a folder of that name."""
        site = self.environment.packages[name].site
        base = site.joinpath(*module.split("."))
        return base.is_dir() or any(base.parent.glob(f"{base.name}.*.so"))

    def content(self, name: str, path: str) -> bytes | None:
        """The bytes of a file of that package as Python would read them, through any link.

        Raises:
            KvpatchError: ``unreadable``.
        """
        return content_of(f"{self.environment.packages[name].site}/{path}")

    def record(self, name: str) -> Record:
        """The RECORD of the distribution that carries the package, read once."""
        if name not in self.records:
            self.records[name] = self.environment.packages[name].record()
        return self.records[name]

    def owners(self, folder: Path) -> Owners:
        """Whose the packages in a site folder are; those that lie there as the interpreter has it.

        A package that is imported from another folder is looked for in this one.
        """
        if folder not in self.known_owners:
            here: dict[str, Mapping[str, DistributionState]] = {
                name: {installed.distribution: state_of(installed.version, self.record(name))}
                for name, installed in self.environment.packages.items()
                if installed.site.resolve() == folder.resolve()
            }
            self.known_owners[folder] = Owners(folder, here)
        return self.known_owners[folder]

    def _changed(self, installed: Installed, path: str) -> Entry | None:
        """The entry of a file that is not as kvpatch wrote it, though nothing was reinstalled."""
        journal = self.sites[installed.site].journal
        entry = journal.entries.get(path) if journal is not None else None
        if journal is None or entry is None:
            return None
        return None if self.owners(installed.site).replaced(journal, entry) else entry


def _is_file(site: Path, path: str) -> bool:
    """Whether a file stands at that path; a refusal where something else does."""
    folder = symlinked_folder(site, path)
    if folder is not None:
        raise Refusal(
            Outcome.CONFLICT,
            f"{folder} is a symbolic link to a folder, and writing through it would change "
            "files that other environments may share",
        )
    file = site / path
    try:
        mode = os.lstat(file).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISLNK(mode) and not file.exists():
        raise Refusal(Outcome.CONFLICT, f"{path} is a symbolic link to nothing")
    if stat.S_ISDIR(mode) or not file.is_file():
        raise Refusal(Outcome.CONFLICT, f"{path} is not a file")
    return True
