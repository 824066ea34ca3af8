"""Commit and revert: all files of all site folders, or none, whatever happens on the way."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import archive
from .aftermath import finish
from .draft import Change, Draft, FileReport, SiteChanges, draft_commit, draft_revert, refuse
from .fsops import Disk, environment_error, environment_errors
from .journal import Journal, elsewhere, new_transaction, state_directory, strays
from .outcome import KvpatchError
from .recovery import Recovered, explain, holding, partners, recover, resolve
from .staleness import staleness
from .steps import SiteState, changed_meanwhile, settle_names, stage, switch
from .target_file import look

__all__ = [
    "Change",
    "FileReport",
    "Recovered",
    "Report",
    "SiteChanges",
    "SiteState",
    "commit",
    "recover",
    "revert",
    "staleness",
]


@dataclass(frozen=True)
class Report:
    """What a commit or a revert did; ``transaction`` is None where nothing was to be done."""

    transaction: str | None
    files: tuple[FileReport, ...] = ()
    archives: tuple[Path, ...] = ()
    recovered: tuple[Recovered, ...] = ()


def commit(
    sites: Sequence[SiteChanges],
    *,
    disk: Disk,
    pycache_prefixes: Sequence[str] = (),
    planned_from: Mapping[str, Journal | None] | None = None,
) -> Report:
    """Put changes in, in every site folder or in none, under one transaction id.

    Args:
        sites: what is wanted of each site folder.
        disk: does it.
        pycache_prefixes: values of PYTHONPYCACHEPREFIX under which bytecode is dropped as well.
        planned_from: the journals that the changes were planned from, by the sites' keys. Where
            another run has written one of them since, nothing is done.

    Raises:
        KvpatchError: exit 3 where a file is not what the plan was made from, or is out of bounds;
            exit 4 where the environment doesn't let it happen. Nothing is changed then.
    """
    if len({site.key for site in sites}) < len(sites):
        raise ValueError("a site folder is given twice")
    with environment_errors():
        wanted = [site for site in sites if _wants(site, disk)]
        if not wanted:
            return Report(None)
        with holding(wanted, disk) as (_, recovered):
            if planned_from is not None and any(
                site.journal() != planned_from[site.key] for site in wanted
            ):
                return Report(None, recovered=recovered)
            drafts = [draft_commit(site, disk) for site in wanted]
            return _run(drafts, "applying", disk, pycache_prefixes, recovered)


def _wants(site: SiteChanges, disk: Disk) -> bool:
    """Whether there is work, found out and refused where it must be before anything is created."""
    journal = site.journal()
    try:
        return bool(journal and journal.unfinished) or draft_commit(site, disk).work
    except KvpatchError:
        if site.journal() == journal:
            raise
        # Another run wrote meanwhile: under the lock it shows what there is to do.
        return True


def revert(
    sites: Sequence[SiteState],
    *,
    disk: Disk,
    force: bool = False,
    dry_run: bool = False,
    pycache_prefixes: Sequence[str] = (),
) -> Report:
    """Put the originals back, in every site folder of the transaction or in none.

    Args:
        sites: the site folders; those that were patched in the same transaction come along.
        disk: does it.
        force: also replace files that others changed since (a copy is kept in the archive), and
            let go of a journal whose files are of another release.
        dry_run: only say what would be done; no lock, nothing created.
        pycache_prefixes: as for ``commit``; those of the journal count in any case.

    Raises:
        KvpatchError: ``changed-since`` or ``stale``, exit 3; exit 4 for the environment. Nothing
            is changed then.
    """
    recovered = () if dry_run else recover(sites, disk=disk)
    with environment_errors():
        group, drafts = _foreseen(sites, disk, force=force)
        if not drafts:
            _look_for_strays(sites)
            return Report(None, recovered=recovered)
        if dry_run:
            return Report(None, tuple(file for draft in drafts for file in draft.files))
        with holding(group, disk) as (_, more):
            drafts = [draft_revert(place, disk, force=force) for place in group]
            drafts = [draft for draft in drafts if draft.former]
            refuse(drafts, force=force)
            return _run(drafts, "reverting", disk, pycache_prefixes, recovered + more)


def _foreseen(
    sites: Sequence[SiteState], disk: Disk, *, force: bool
) -> tuple[list[SiteState], list[Draft]]:
    """The site folders of a revert and what it would do there, found out without their locks.

    Journals and files are read one after the other: where another run writes meanwhile they do not
    fit each other, and are read once more.

    Raises:
        KvpatchError: ``changed-since`` or ``stale``, or what keeps them from being read.
    """
    for last in (*[False] * _LOOKS, True):
        group = _transaction_group(sites)
        places = group or sites
        journals = [place.journal() for place in places]
        try:
            drafts = [draft_revert(place, disk, force=force) for place in group]
            refuse(drafts, force=force)
        except KvpatchError:
            if last or [place.journal() for place in places] == journals:
                raise
            continue
        if last or [place.journal() for place in places] == journals:
            break
    return group, drafts


_LOOKS = 5


def _look_for_strays(sites: Sequence[SiteState]) -> None:
    """Don't say that there is nothing to revert where the journal came along from elsewhere."""
    for place in sites:
        if place.store.directory == state_directory(place.site):
            for directory, site in strays(place.site).items():
                raise elsewhere(directory, site, place.site)


def _transaction_group(sites: Sequence[SiteState]) -> list[SiteState]:
    group: dict[str, SiteState] = {}
    for place in sites:
        journal = place.journal()
        if journal is not None:
            group[place.key] = place
            for key, other in partners(place, journal).items():
                theirs = other.journal()
                if theirs is not None and theirs.transaction == journal.transaction:
                    group.setdefault(key, other)
    return [group[key] for key in sorted(group)]


def _run(
    drafts: Sequence[Draft],
    phase: str,
    disk: Disk,
    prefixes: Sequence[str],
    recovered: tuple[Recovered, ...],
) -> Report:
    """Carry drafts out under the locks of their site folders."""
    drafts = sorted((d for d in drafts if d.work), key=lambda draft: draft.place.key)
    if not drafts:
        return Report(None, recovered=recovered)
    transaction = new_transaction()
    participants = tuple(draft.place.key for draft in drafts)
    journals = [_journal(draft, phase, transaction, participants, prefixes) for draft in drafts]
    pairs = list(zip(drafts, journals, strict=True))
    archives = []
    try:
        for draft in drafts:
            if draft.former and (draft.superseded or draft.found):
                archives.append(archive.keep(draft.place.store, draft.former, draft.found))
            _save(draft)
        # Reverting is decided by the coordinator's journal, which therefore comes last.
        for draft, journal in pairs if phase == "applying" else reversed(pairs):
            draft.place.store.write(journal)
        _carry_out(pairs, disk)
        for draft, journal in pairs if phase == "applying" else reversed(pairs):
            finish(draft.place, journal, forward=True)
    except (OSError, KvpatchError, KeyboardInterrupt) as error:
        if not _undo(pairs, disk, error):
            raise
    files = tuple(file for draft in drafts for file in draft.files)
    return Report(transaction, files, tuple(archives), recovered)


def _journal(
    draft: Draft,
    phase: str,
    transaction: str,
    participants: tuple[str, ...],
    prefixes: Sequence[str],
) -> Journal:
    place, former = draft.place, draft.former
    named = {entry.distribution for entry in draft.entries.values()}
    known = dict(former.distributions) if former else {}
    for path in draft.entries:
        known.update(place.owners.of(path))
    before = former.prefixes if former else ()
    absolute = [os.path.abspath(prefix) for prefix in prefixes if prefix]  # noqa: PTH100
    return Journal(
        # A folder that was moved keeps the name by which its state folder is called.
        site=former.site if former else str(place.real),
        site_as_given=str(place.given),
        transaction=transaction,
        phase=phase,
        participants=participants,
        distributions={name: known[name] for name in sorted(named) if name in known},
        entries=draft.entries,
        prefixes=tuple(dict.fromkeys((*before, *absolute))),
        steps=draft.steps,
        former=former,
    )


def _save(draft: Draft) -> None:
    """Save originals, and what the files are now, before any of them is replaced."""
    needed = {entry.original for entry in draft.entries.values()}
    needed.update(step.before.digest for step in draft.steps.values() if step.before)
    for digest in sorted(needed & set(draft.contents)):
        draft.place.store.keep(draft.contents[digest])


def _carry_out(pairs: Sequence[tuple[Draft, Journal]], disk: Disk) -> None:
    """Stage every file, switch every file, drop the bytecode, read every file again."""
    for draft, journal in pairs:
        for path, step in draft.steps.items():
            stage(disk, draft.place, path, step.after, journal.transaction, draft.content)
    for draft, journal in pairs:
        for path, step in draft.steps.items():
            switch(disk, draft.place, path, step.before, journal.transaction)
    for draft, journal in pairs:
        settle_names(disk, draft.place, tuple(draft.steps), journal.prefixes)
    for draft, _ in pairs:
        for path, step in draft.steps.items():
            found = look(disk, draft.place.real, path)
            if found is None or found.shape.digest != step.after.digest:
                raise changed_meanwhile(draft.place.real / path)


def _undo(pairs: Sequence[tuple[Draft, Journal]], disk: Disk, error: BaseException) -> bool:
    """After a failure: roll back, unless the transaction was decided; whether it is in.

    Raises:
        KvpatchError: ``interrupted`` where that fails too; the next run makes good.
    """
    sample = pairs[0][1]
    places = [draft.place for draft, _ in pairs]
    try:
        now = [place.journal() for place in places]
        if sample.phase == "applying":
            lead = now[0]
            decided = bool(lead and lead.transaction == sample.transaction and not lead.unfinished)
        else:
            # Once a journal of a revert is gone, what it needs to be undone is gone.
            former = [draft.former.transaction if draft.former else None for draft, _ in pairs]
            seen = [journal.transaction if journal else None for journal in now]
            decided = any(
                mine not in (sample.transaction, before)
                for mine, before in zip(seen, former, strict=True)
            )
        resolve(places, sample, disk, forward=decided)
    except (OSError, KvpatchError) as again:
        raise explain(environment_error(again) if isinstance(again, OSError) else again) from error
    if isinstance(error, OSError) and not decided:
        raise environment_error(error) from error
    return decided and not isinstance(error, KeyboardInterrupt)
