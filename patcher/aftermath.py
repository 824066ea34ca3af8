"""What a journal says when an unfinished transaction has come to its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from .fsops import Disk
from .journal import Entry, Journal, new_transaction
from .staleness import CHANGED, staleness
from .steps import SiteState


def finish(
    place: SiteState,
    journal: Journal,
    *,
    forward: bool,
    changed: Mapping[str, Entry] | None = None,
) -> None:
    """Write what the journal is after an unfinished transaction.

    Args:
        place: the site folder.
        journal: the unfinished one.
        forward: whether the transaction was finished, not rolled back.
        changed: the files that somebody changed meanwhile, and that it did not touch.
    """
    final = replace(journal, phase="applied", steps={}, former=None) if forward else journal.former
    if final is not None and journal.phase == "reverting" and not final.entries:
        final = None
    lost = {
        path: entry
        for path, entry in (changed or {}).items()
        if final is None or path not in final.entries
    }
    if lost:
        final = _with(final, journal, place, lost)
    if final is None:
        place.store.remove()
    else:
        place.store.write(final)


def changed(
    disk: Disk, place: SiteState, journal: Journal, paths: Iterable[str]
) -> dict[str, Entry]:
    """The entries of those files that somebody changed, of the installation that was patched."""
    states = staleness(journal, place.owners, disk)
    entries = {entry.path: entry for entry in reversed(journal.known)}
    return {path: entries[path] for path in paths if states.get(path) == CHANGED}


def _with(
    final: Journal | None, journal: Journal, place: SiteState, lost: Mapping[str, Entry]
) -> Journal:
    """The journal that speaks of those files, too."""
    if final is None:
        # Another name than the transaction's: the others in it must not take it for decided.
        name = new_transaction()
        final = replace(journal, transaction=name, participants=(place.key,), phase="applied")
        final = replace(final, distributions={}, entries={}, steps={}, former=None)
    known = journal.patched
    named = {entry.distribution for entry in lost.values()}
    return replace(
        final,
        distributions={
            **{name: known[name] for name in sorted(named) if name in known},
            **final.distributions,
        },
        entries={**final.entries, **lost},
    )
