"""What a journal holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from . import __version__
from .record import Record
from .target_file import Shape
from .target_probe import UNKNOWN_VERSION

SCHEMA = 1
PHASES = ("applied", "applying", "reverting")
BASES = ("pristine", "foreign", "unverified")

MARK = b"# kvpatch KV"
"""What every file that kvpatch rewrote holds: each patch says in a comment what it inserted."""


@dataclass(frozen=True)
class DistributionState:
    """An installed distribution: its version and the sha256 of its RECORD, empty where none.

    ``record`` is that RECORD, where the distribution is looked at as it is installed now.
    """

    version: str
    record_sha256: str
    record: Record | None = field(default=None, compare=False, repr=False)

    def same(self, other: DistributionState) -> bool:
        """Whether both are one and the same installation."""
        if self.record_sha256 or other.record_sha256:
            return self.record_sha256 == other.record_sha256
        return self.version == other.version or UNKNOWN_VERSION in (self.version, other.version)


@dataclass(frozen=True)
class Entry:
    """One file that kvpatch wrote.

    ``path`` is relative to the site folder; ``original`` and ``after`` are sha256 of what revert
    puts back and of what kvpatch wrote; ``mode`` and ``link`` are those of the original;
    ``patches`` maps the id of each patch that made ``after`` to its digest; ``basis`` says why
    the original counts as one: ``pristine``, ``foreign`` or ``unverified``.
    """

    path: str
    distribution: str
    original: str
    after: str
    mode: int
    link: str | None
    patches: Mapping[str, str]
    basis: str = "pristine"

    @property
    def first(self) -> Shape:
        """The original, as revert puts it back."""
        return Shape(self.original, self.mode, self.link)


@dataclass(frozen=True)
class Step:
    """One file's way through a transaction; None stands for a file that is not there."""

    before: Shape | None
    after: Shape


@dataclass(frozen=True)
class Journal:
    """What kvpatch did to one site folder, or is about to do.

    ``phase`` is ``applied``, ``applying`` or ``reverting``; while it is one of the latter two,
    ``steps`` say what happens to which file and ``former`` is the journal before it.
    ``participants`` are the state folders of the transaction, the coordinator's first.
    """

    site: str
    site_as_given: str
    transaction: str
    phase: str
    participants: tuple[str, ...]
    distributions: Mapping[str, DistributionState]
    entries: Mapping[str, Entry]
    prefixes: tuple[str, ...] = ()
    steps: Mapping[str, Step] = field(default_factory=dict)
    former: Journal | None = None
    kvpatch: str = __version__
    schema: int = SCHEMA

    @property
    def unfinished(self) -> bool:
        """Whether a run was interrupted, or is under way."""
        return self.phase != "applied"

    @cached_property
    def known(self) -> tuple[Entry, ...]:
        """Every entry, those of the journal before an unfinished run last."""
        return (*self.entries.values(), *(self.former.known if self.former else ()))

    @property
    def patched(self) -> dict[str, DistributionState]:
        """The distributions as they were patched, with those before an unfinished run."""
        return {**(self.former.patched if self.former else {}), **self.distributions}

    def ours(self, path: str, digest: str) -> Entry | None:
        """The entry that says kvpatch wrote bytes of this digest there."""
        return next((entry for entry in self.of(path) if entry.after == digest), None)

    def of(self, path: str) -> tuple[Entry, ...]:
        """The entries of one file, in the order of ``known``."""
        return self._by_path.get(path, ())

    @cached_property
    def _by_path(self) -> dict[str, tuple[Entry, ...]]:
        found: dict[str, tuple[Entry, ...]] = {}
        for entry in self.known:
            found[entry.path] = (*found.get(entry.path, ()), entry)
        return found

    @property
    def blobs(self) -> frozenset[str]:
        """The digests whose bytes this journal needs."""
        needed = {entry.original for entry in self.known}
        for step in self.steps.values():
            needed.update(shape.digest for shape in (step.before,) if shape is not None)
        return frozenset(needed)


def temporary(path: str, transaction: str) -> str:
    """The name, beside the target, of the file that takes its place in that transaction."""
    return f".{path.rpartition('/')[2]}.{transaction}.kvpatch"


def check_path(text: str) -> str:
    """A path below the site folder, as patches and journals may name it.

    Raises:
        ValueError: for an absolute path, ``..``, an empty part, a backslash or a control character.
    """
    if not text or "\\" in text or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ValueError(f"{text!r} is not a plain relative path")
    if any(part in ("", ".", "..") for part in text.split("/")):
        raise ValueError(f"{text!r} does not stay below the site folder")
    return text
