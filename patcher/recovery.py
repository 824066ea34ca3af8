"""Finishing or rolling back what an interrupted run left, over all its site folders.

A transaction over several site folders is decided by its coordinator's journal alone. Applying is
decided once that says ``applied``, which is written when every file of every participant is in
place, before the other journals say so. Reverting is decided once the coordinator's journal says
``reverting``, which is written after the other journals and taken away after them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import archive
from .aftermath import changed, finish
from .draft import FileReport
from .fsops import Disk, environment_errors
from .journal import Entry, Journal, Store, state_name
from .outcome import ExitCode, KvpatchError
from .staleness import MISSING, PUT_BACK, never_written
from .steps import SiteState, settle_names, stage, switch, unstage
from .target_file import Shape, look

FINISHED = "finished"
ROLLED_BACK = "rolled-back"


@dataclass(frozen=True)
class Recovered:
    """What was done about one unfinished transaction.

    ``files`` are where they shall be; ``moved`` says what was written of them now. ``conflicts``
    are the files that someone else changed meanwhile; they were left alone. A journal goes on
    speaking of them, so that a revert can put the originals back; for those of a distribution that
    was installed anew the journal with its originals is in ``archives``.
    """

    transaction: str
    what: str
    files: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    archives: tuple[Path, ...] = ()
    moved: tuple[FileReport, ...] = ()


def recover(sites: Sequence[SiteState], *, disk: Disk) -> tuple[Recovered, ...]:
    """Finish or roll back whatever an interrupted run left in these site folders.

    Takes no lock and creates nothing where nothing was left. Call it before planning a write.

    Raises:
        KvpatchError: ``locked``, or what keeps the files from being put right; exit 4.
    """
    with environment_errors():
        tied = [place for place in sites if _tied(place)]
        littered = [place for place in sites if place.store.litter()]
        if not tied and not littered:
            return ()
        try:
            with holding([*tied, *littered], disk) as (_, recovered):
                return recovered
        except (OSError, KvpatchError):
            # Litter does no harm where it can't be removed.
            if tied:
                raise
            return ()


def _tied(place: SiteState) -> bool:
    """Whether a run that was interrupted left something to finish or to roll back."""
    journal = place.journal()
    return bool(journal and journal.unfinished) or bool(_partners(place))


@contextlib.contextmanager
def holding(
    sites: Sequence[SiteState], disk: Disk
) -> Iterator[tuple[tuple[SiteState, ...], tuple[Recovered, ...]]]:
    """Hold the locks of site folders, with nothing unfinished left in them.

    Gives the site folders, with those that an unfinished transaction ties to them, and what was
    recovered. Tidies at the end.
    """
    group = sorted({place.key: place for place in sites}.values(), key=lambda place: place.key)
    with contextlib.ExitStack() as stack:
        held: dict[str, SiteState] = {}
        try:
            while len(held) < len(group):
                for place in group:
                    if place.key not in held:
                        stack.callback(place.store.lock().close)
                        held[place.key] = place
                found = {place.key: place for place in group}
                for other in (other for place in group for other in _partners(place)):
                    # What was given knows whose its files are.
                    found.setdefault(other.key, other)
                group = list(found.values())
            yield tuple(group), settle(group, disk)
        finally:
            with contextlib.suppress(OSError, KvpatchError):
                # A coordinator's journal is needed until the others are at their end, too.
                if not any(_unfinished(place) for place in held.values()):
                    for place in held.values():
                        place.store.tidy()


def partners(place: SiteState, journal: Journal) -> dict[str, SiteState]:
    """The other participants of a journal's transaction that still name this one as theirs."""
    found: dict[str, SiteState] = {}
    for key in journal.participants:
        if key == place.key:
            continue
        store = Store(Path(key), place.store.disk)
        with contextlib.suppress(KvpatchError):
            other = store.read()
            if other is None or place.key not in other.participants:
                continue
            site, given = Path(other.site), Path(other.site_as_given)
            # Only a state folder made for that very site folder may speak for it.
            if state_name(site) == store.directory.name:
                site = given if given.resolve() == site.resolve() else site
                found[key] = SiteState(site, replace(store, site=site))
    return found


def _partners(place: SiteState) -> list[SiteState]:
    """Those that an unfinished transaction ties to this site folder."""
    journal = place.journal()
    if journal is None:
        return []
    return [
        other
        for other in partners(place, journal).values()
        if journal.unfinished or _unfinished(other)
    ]


def _unfinished(place: SiteState) -> bool:
    journal = place.store.read()
    return journal is not None and journal.unfinished


def settle(group: Sequence[SiteState], disk: Disk) -> tuple[Recovered, ...]:
    """Bring every unfinished transaction of locked site folders to its end."""
    journals = {place.key: journal for place in group if (journal := place.journal())}
    open_ones = {j.transaction: j for j in journals.values() if j.unfinished}
    return tuple(
        resolve(group, sample, disk, forward=_decide(group, journals, sample, disk))
        for _, sample in sorted(open_ones.items())
    )


def _decide(
    group: Sequence[SiteState], journals: Mapping[str, Journal], sample: Journal, disk: Disk
) -> bool:
    """Whether an unfinished transaction goes forward."""
    lead = journals.get(sample.participants[0]) if sample.participants else None
    if lead is not None and lead.transaction != sample.transaction:
        lead = None
    if sample.phase == "reverting":
        return lead is not None
    if lead is not None and not lead.unfinished:
        return True
    members = {key for key, j in journals.items() if j.transaction == sample.transaction}
    return members == set(sample.participants) and all(
        _in_place(disk, place, path, step.after.digest)
        for place in group
        if place.key in members
        for path, step in journals[place.key].steps.items()
    )


def resolve(group: Sequence[SiteState], sample: Journal, disk: Disk, *, forward: bool) -> Recovered:
    """Bring one transaction to an end in every participant: files first, then the journals.

    Raises:
        OSError, KvpatchError: the first one that kept a file from getting there. Every other file
            is there; the journals still speak of all of them.
    """
    members = {
        place.key: (place, journal)
        for place in group
        if (journal := place.journal())
        and journal.transaction == sample.transaction
        and journal.unfinished
    }
    touched: list[str] = []
    conflicts: list[str] = []
    archives: list[Path] = []
    moved: list[FileReport] = []
    held: dict[str, dict[str, Entry]] = {}
    failures: list[Exception] = []
    for key, (place, journal) in members.items():
        settled, clashing, written = _bring(disk, place, journal, failures, forward=forward)
        if failures:
            continue
        touched += [str(place.real / path) for path in settled]
        moved += written
        conflicts += [str(place.real / path) for path in clashing]
        held[key] = changed(disk, place, journal, clashing)
        if set(clashing) - set(held[key]):
            archives.append(archive.keep(place.store, journal))
    if failures:
        raise failures[0]
    lead = sample.participants[:1]
    coordinator_last = forward and sample.phase == "reverting"
    for key in sorted(members, key=lambda key: (key in lead) == coordinator_last):
        place, journal = members[key]
        finish(place, journal, forward=forward, changed=held[key])
    return Recovered(
        sample.transaction,
        FINISHED if forward else ROLLED_BACK,
        tuple(touched),
        tuple(conflicts),
        tuple(archives),
        tuple(moved),
    )


def _bring(
    disk: Disk, place: SiteState, journal: Journal, failures: list[Exception], *, forward: bool
) -> tuple[list[str], list[str], list[FileReport]]:
    """Bring the files of one site folder where they shall be, but none that others changed.

    Args:
        disk: does it.
        place: the site folder.
        journal: its unfinished journal.
        failures: takes what keeps a file from getting there; the others go on.
        forward: whether the transaction is finished, not rolled back.

    Returns:
        the paths that are there, those left alone, and what was written.
    """
    touched: list[str] = []
    conflicts: list[str] = []
    moved: list[FileReport] = []
    for path in journal.steps:
        try:
            there, written = _bring_one(disk, place, journal, path, forward=forward)
        except (OSError, KvpatchError) as error:
            failures.append(error)
            continue
        if there is not None:
            (touched if there else conflicts).append(path)
        moved += written
    try:
        settle_names(disk, place, touched, journal.prefixes, strict=forward)
    except OSError as error:
        failures.append(error)
    return touched, conflicts, moved


def _bring_one(
    disk: Disk, place: SiteState, journal: Journal, path: str, *, forward: bool
) -> tuple[bool | None, list[FileReport]]:
    """Bring one file where it shall be.

    Returns:
        whether it is there, None where it needs nothing, and what was written.
    """
    step, name = journal.steps[path], journal.transaction
    source, goal = (step.before, step.after) if forward else (step.after, step.before)
    untouched = never_written(journal, path)
    try:
        now = _now(disk, place, path)
    except KvpatchError as error:
        if error.exit_code is not ExitCode.REFUSED:
            raise
        if error.code != "linked-folder":
            unstage(disk, place, path, name)
        return (None if untouched else False), []
    unstage(disk, place, path, name)
    if now == (goal.digest if goal else None):
        return True, []
    lost = now is None and _lost(place, journal, path)
    if not lost and now != (source.digest if source else None):
        return (None if untouched else False), []
    if forward and journal.phase == "applying":
        # It was in place: someone put the former bytes back since, or took it away. In the latter
        # case the next revert does as any does.
        return None, []
    source = None if lost else source
    _put(disk, place, path, source, goal, name)
    return True, [_told(place, journal, path, source, goal)]


def _lost(place: SiteState, journal: Journal, path: str) -> bool:
    """Whether somebody took away a file of the installation that was patched."""
    there = (place.real / path).parent.is_dir()
    return there and not place.owners.replaced(journal, journal.of(path)[0])


def _told(
    place: SiteState, journal: Journal, path: str, source: Shape | None, goal: Shape | None
) -> FileReport:
    entries = journal.of(path)
    before, after = (shape.digest if shape else None for shape in (source, goal))
    state = PUT_BACK if after in {entry.original for entry in entries} else "written"
    state = state if goal else MISSING
    return FileReport(str(place.real), path, entries[0].distribution, state, before, after)


def _put(
    disk: Disk,
    place: SiteState,
    path: str,
    source: Shape | None,
    goal: Shape | None,
    transaction: str,
) -> None:
    if goal is None:
        disk.discard(place.real / path)
        return
    stage(disk, place, path, goal, transaction)
    switch(disk, place, path, source, transaction)


def _now(disk: Disk, place: SiteState, path: str) -> str | None:
    found = look(disk, place.real, path)
    return found.shape.digest if found else None


def _in_place(disk: Disk, place: SiteState, path: str, digest: str) -> bool:
    with contextlib.suppress(KvpatchError):
        return _now(disk, place, path) == digest
    return False


def explain(error: Exception) -> KvpatchError:
    """The error where a run failed and could not be rolled back either."""
    return KvpatchError(
        "interrupted",
        f"the run failed and could not be rolled back yet: {error}",
        "see to that error, then run the command again: it first finishes or rolls back this run",
        ExitCode.ENVIRONMENT,
    )
