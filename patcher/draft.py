"""What a commit or a revert would do in one site folder, worked out without touching it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .fsops import Disk, sha256
from .journal import Entry, Journal, Step, check_path
from .outcome import ExitCode, KvpatchError
from .staleness import (
    CARRIED,
    CHANGED,
    MISSING,
    OURS,
    PUT_BACK,
    REINSTALLED,
    STALE,
    staleness,
)
from .steps import SiteState, changed_meanwhile, check_owner
from .target_file import look


@dataclass(frozen=True)
class Change:
    """What apply wants of one file: the original it was planned from, and the new bytes."""

    path: str
    distribution: str
    original: bytes
    after: bytes
    patches: Mapping[str, str]
    basis: str = "pristine"


@dataclass(frozen=True)
class SiteChanges(SiteState):
    """What apply wants of one site folder.

    ``drops`` are the paths of journal entries that are no longer wanted and get their originals
    back.
    """

    changes: tuple[Change, ...] = ()
    drops: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileReport:
    """What became of one file; digests are sha256, None where there is no file.

    ``state`` is ``written``, ``put-back``, ``kept`` or what ``staleness`` says of a file that was
    left alone.
    """

    site: str
    path: str
    distribution: str
    state: str
    before: str | None
    after: str | None


@dataclass
class Draft:
    """What shall happen in one site folder, worked out without touching it."""

    place: SiteState
    former: Journal | None
    entries: dict[str, Entry] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    files: list[FileReport] = field(default_factory=list)
    superseded: bool = False
    found: dict[str, bytes] = field(default_factory=dict)

    @property
    def work(self) -> bool:
        """Whether anything would change."""
        former = self.former.entries if self.former else {}
        return bool(self.steps) or self.entries != former

    def tell(self, entry: Entry, state: str, before: str | None, after: str | None) -> None:
        """Add to the report."""
        site = str(self.place.real)
        self.files.append(FileReport(site, entry.path, entry.distribution, state, before, after))

    def content(self, digest: str) -> bytes:
        """The bytes of a digest, at hand or out of the store."""
        data = self.contents.get(digest)
        return self.place.store.original(digest) if data is None else data

    def put_back(self, disk: Disk, entry: Entry) -> None:
        """Plan to give a file its original back; an original that is damaged is found out here."""
        found = look(disk, self.place.real, entry.path)
        if found is not None:
            check_owner(self.place, entry.path, found)
            self.contents[found.shape.digest] = found.content
        self.contents[entry.original] = self.place.store.original(entry.original)
        self.steps[entry.path] = Step(found.shape if found else None, entry.first)
        self.tell(entry, PUT_BACK, found.shape.digest if found else None, entry.original)


def draft_commit(site: SiteChanges, disk: Disk) -> Draft:
    """Work out a commit.

    Raises:
        KvpatchError: for a file that is not what the plan was made from, or can't be replaced.
    """
    former = site.journal()
    changes = {c.path: c for c in site.changes if c.original != c.after}
    unchanged = {c.path for c in site.changes if c.original == c.after}
    drops = {*site.drops, *unchanged}
    draft = Draft(site, former)
    if former is not None:
        for path, state in staleness(former, site.owners).items():
            if path not in changes and path in former.entries:
                _carry(draft, former, path, state, disk, drop=path in drops)
    for change in changes.values():
        _draft_change(draft, change, disk)
    return draft


def _carry(draft: Draft, former: Journal, path: str, state: str, disk: Disk, *, drop: bool) -> None:
    """An entry that this commit doesn't write: kept, put back, or let go."""
    entry = former.entries[path]
    if state in (REINSTALLED, CARRIED):
        stands = entry.original if state == REINSTALLED else entry.after
        draft.superseded = draft.superseded or state == CARRIED
        draft.tell(entry, state, stands, stands)
    elif state == STALE or (state == MISSING and draft.place.owners.replaced(former, entry)):
        draft.superseded = True
        draft.tell(entry, state, None, None)
    elif not drop:
        draft.entries[path] = entry
    elif state == CHANGED:
        raise _changed([str(draft.place.real / path)])
    else:
        draft.put_back(disk, entry)


def _draft_change(draft: Draft, change: Change, disk: Disk) -> None:
    place, former = draft.place, draft.former
    found = look(disk, place.real, _checked(change.path))
    target = place.real / change.path
    if found is None:
        raise KvpatchError(
            "target-missing",
            f"{target} is not there",
            "reinstall the distribution, then run kvpatch apply",
            ExitCode.REFUSED,
        )
    old = former.entries.get(change.path) if former else None
    original, after = sha256(change.original), sha256(change.after)
    shape = found.shape
    if old is not None and shape.digest == old.after and original == old.original:
        shape = old.first
    elif shape.digest != original:
        raise changed_meanwhile(target)
    elif old is not None and old.original != original:
        draft.superseded = True
    entry = Entry(
        path=change.path,
        distribution=change.distribution,
        original=original,
        after=after,
        mode=shape.mode,
        link=shape.link,
        patches=dict(change.patches),
        basis=change.basis,
    )
    draft.entries[change.path] = entry
    draft.contents[original] = change.original
    if found.shape.digest == after:
        draft.tell(entry, "kept", after, after)
        return
    check_owner(place, change.path, found)
    if found.shape.link is None:
        disk.probe(target)
    draft.contents.update({original: change.original, found.shape.digest: found.content})
    draft.contents[after] = change.after
    draft.steps[change.path] = Step(found.shape, replace(found.shape, digest=after, link=None))
    draft.tell(entry, "written", found.shape.digest, after)


def _checked(path: str) -> str:
    try:
        return check_path(path)
    except ValueError as error:
        raise KvpatchError(
            "path-hostile",
            f"a patch names a target that is not allowed: {error}",
            "take that patch out of the series and report it",
            ExitCode.REFUSED,
        ) from None


def draft_revert(place: SiteState, disk: Disk, *, force: bool = False) -> Draft:
    """Work out a revert."""
    former = place.journal()
    draft = Draft(place, former)
    if former is None:
        return draft
    for path, state in staleness(former, place.owners).items():
        entry = former.of(path)[0]
        gone = state == MISSING and place.owners.replaced(former, entry)
        if state == OURS or (state == MISSING and not gone and _has_folder(place, path)):
            draft.put_back(disk, entry)
        elif state == CHANGED and force:
            found = look(disk, place.real, path)
            draft.put_back(disk, entry)
            if found is not None:
                draft.found[path] = found.content
        else:
            draft.superseded = draft.superseded or state != REINSTALLED
            draft.tell(entry, state, None, None)
    return draft


def _has_folder(place: SiteState, path: str) -> bool:
    return (place.real / path).parent.is_dir()


def refuse(drafts: Sequence[Draft], *, force: bool) -> None:
    """Refuse a revert that would overwrite someone's change, or has nothing but stale files.

    Raises:
        KvpatchError: ``changed-since`` or ``stale``.
    """
    files = [file for draft in drafts for file in draft.files]
    changed = [f"{file.site}/{file.path}" for file in files if file.state == CHANGED]
    if changed and not force:
        raise _changed(changed)
    stale = [file for file in files if file.state == STALE]
    if stale and not force and not any(draft.steps for draft in drafts):
        names = ", ".join(sorted({file.distribution for file in stale}))
        raise KvpatchError(
            "stale",
            f"{names} was installed anew since kvpatch apply, or has other sources, so its "
            "originals fit no longer",
            "run kvpatch apply for what is there now; revert --force only archives the journal",
            ExitCode.REFUSED,
        )


def _changed(paths: Sequence[str]) -> KvpatchError:
    odd = [path for path in paths if not Path(path).is_file()]
    if odd:
        return KvpatchError(
            "changed-since",
            f"no plain file any more since kvpatch apply: {', '.join(odd)}",
            "move it away and revert again, or reinstall the distribution",
            ExitCode.REFUSED,
        )
    return KvpatchError(
        "changed-since",
        f"changed by someone else since kvpatch apply: {', '.join(paths)}",
        "take that change out or reinstall the distribution; revert --force puts the original back"
        " and keeps a copy of the file as found",
        ExitCode.REFUSED,
    )
