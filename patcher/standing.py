"""What became of a file that kvpatch wrote, as the verbs tell it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .ledger import Journal
from .owners import Owners
from .staleness import CARRIED, CHANGED, MISSING, OURS, REINSTALLED, STALE


@dataclass(frozen=True)
class Standing:
    """What became of one file that kvpatch wrote: a word of :mod:`kvpatch.staleness`."""

    path: str
    state: str
    basis: str = "pristine"
    plain: bool = True
    gone: bool = False
    """Whether it is not there because its distribution is not, or is another one."""

    @property
    def comes_back(self) -> bool:
        """Whether a revert writes its original."""
        return self.state == OURS or (self.state == MISSING and not self.gone)

    @property
    def remains(self) -> bool:
        """Whether it is still the installation that kvpatch wrote into."""
        return self.state in (OURS, CHANGED, MISSING) and not self.gone

    @property
    def ours(self) -> bool:
        """Whether the file is as kvpatch wrote it."""
        return self.state == OURS

    @property
    def sentence(self) -> str:
        """What is the matter with it, to follow its path."""
        if not self.plain and self.state in (CHANGED, STALE):
            return "is no plain file any more: move it away, then revert, or reinstall"
        return _SENTENCES[self.state]


_SENTENCES = {
    OURS: "is as kvpatch wrote it",
    CARRIED: "came with the wheel that is installed now; revert leaves it as it is",
    REINSTALLED: "was reinstalled and is pristine again",
    STALE: (
        "is stale: its distribution was installed anew since, or has other sources; "
        "`kvpatch apply` plans it anew, and `kvpatch revert` leaves it as it is"
    ),
    CHANGED: "was changed since kvpatch wrote it; `kvpatch revert --force` keeps a copy of that",
    MISSING: "is not there any more; revert puts the original back",
}


def standing_of(site: Path, journal: Journal, path: str, state: str, owners: Owners) -> Standing:
    """What a verb knows of a file of a journal whose state is known."""
    entry = journal.of(path)[0]
    file = site / path
    # As a revert has it, which makes no folder for a file.
    gone = owners.replaced(journal, entry) or not file.parent.is_dir()
    return Standing(path, state, entry.basis, file.is_file(), gone)
