"""Whose the files of a site folder are now, and whether that is the installation of a journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .ledger import DistributionState, Entry, Journal
from .record import Record
from .target_probe import claims, holds, name_and_version, path_lines, version_in_sources

States = Mapping[str, DistributionState]
"""Installed distributions by name."""


@dataclass(frozen=True)
class Owners:
    """The distributions that the packages of one site folder belong to now.

    A package that several claim, and whose files do not tell whose it is, is of all of them.
    ``found`` are those that are known, by package; the folder is asked for any other one when it is
    wanted, so that a package which is hidden from an interpreter has its owner too.
    """

    site: Path
    found: dict[str, States] = field(default_factory=dict, compare=False)

    def of(self, path: str) -> States:
        """Who a file's package belongs to; nothing where the package is not there."""
        package = path.partition("/")[0]
        if package not in self.found:
            self.found[package] = _claimed(self.site, package)
        return self.found[package]

    def replaced(self, journal: Journal, entry: Entry) -> bool:
        """Whether a file is no longer of the installation that was patched."""
        then = journal.patched.get(entry.distribution)
        return then is None or not any(then.same(now) for now in self.of(entry.path).values())

    def vouch(self, path: str, content: bytes) -> bool | None:
        """Whether a file came with an installation in this form; None where no hash can tell."""
        records = [state.record for state in self.of(path).values() if state.record is not None]
        told = [record.fits(path, content) for record in records]
        known = [fits for fits in told if fits is not None]
        return any(known) if known else None


def state_of(version: str, record: Record) -> DistributionState:
    """An installed distribution as a journal knows it."""
    return DistributionState(version, record.digest or "", record)


def _claimed(site: Path, package: str) -> States:
    """The owners of a package by what lies in the folder, as an interpreter would find them."""
    folder = str(site)
    folders, _ = claims(package, folder, [folder, *path_lines(folder)])
    found = {}
    for claim in map(Path, folders):
        name, version = name_and_version(str(claim))
        # That of an editable install says nothing of the sources.
        record = Record.load(claim) if claim.parent == site else Record()
        found[name] = state_of(version, record)
    if not found and holds(folder, package):
        found[package] = state_of(version_in_sources(f"{folder}/{package}"), Record())
    return found
