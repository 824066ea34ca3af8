"""Applying a plan to a host and taking it back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .fsops import Disk, environment_errors
from .host import (
    Choice,
    Host,
    View,
    Where,
    bytecode_prefixes,
    open_host,
    open_site,
    reread,
    unfit_bytecode,
    unfit_of,
    view,
)
from .outcome import KvpatchError
from .plan import as_applied
from .refusals import (
    check_journals,
    check_replaceable,
    check_target,
    orphaned,
    refuse,
    refuse_running,
)
from .staleness import PUT_BACK
from .steps import changed_meanwhile

if TYPE_CHECKING:
    from .outlook import Outlook
    from .processes import Running
    from .transaction import FileReport, Recovered, SiteChanges


_TRIES = 5
"""So often a plan is made anew where another run was faster each time."""


@dataclass(frozen=True)
class Reverted:
    """What ``revert`` came to, file by file, and what was kept.

    ``copies`` are those of the archives that hold files as somebody had changed them; the others
    hold a journal that fits no longer, with its originals. ``swept`` is bytecode of other sources
    that Python would have run in the place of files that were left as they are. ``left`` names a
    file whose code of kvpatch no journal here takes out.
    """

    host: Host
    files: tuple[FileReport, ...]
    archives: tuple[Path, ...]
    written: bool
    copies: tuple[Path, ...] = ()
    swept: tuple[Path, ...] = ()
    cleaned_up: bool = False
    left: KvpatchError | None = None


@dataclass(frozen=True)
class Applied:
    """What ``apply`` came to: the plan as it now stands, and whether anything was written.

    ``outlook`` has the letters of the pair, where LMCache is there and something was to be changed.
    ``swept`` is bytecode of other sources that Python would have run; a dry run leaves it there.
    """

    view: View
    written: bool
    refusal: KvpatchError | None = None
    outlook: Outlook | None = None
    swept: tuple[Path, ...] = ()


def apply(
    host: Host, choice: Choice, disk: Disk, *, while_running: bool = False, dry_run: bool = False
) -> Applied:
    """Put the chosen patches in, all or nothing; a dry run does all but write.

    Raises:
        KvpatchError: where nothing could be planned at all. What keeps a plan from being applied
            comes back as the refusal; nothing is changed then.
    """
    if host.interrupted and not dry_run:
        _recover(host, disk, while_running=while_running)
        host = open_host(host.where, disk)
    for _ in range(_TRIES):
        done = _apply(host, choice, disk, while_running=while_running, dry_run=dry_run)
        if done.written or done.refusal or dry_run or not done.view.plan.changes:
            return done
        # Another run has written since this one planned, the same or something else.
        host = open_host(host.where, disk)
    change = done.view.plan.changes[0]
    site = host.environment.packages[change.package].site
    return replace(done, refusal=changed_meanwhile(site / change.path))


def _apply(
    host: Host, choice: Choice, disk: Disk, *, while_running: bool, dry_run: bool
) -> Applied:
    """The same, once: nothing is written where another run was faster, and changes are left."""
    from .transaction import commit

    seen = view(host, choice)
    found = None
    try:
        refuse(seen)
        if seen.plan.changes and not while_running:
            seen = replace(seen, running=running_in(host))
            refuse_running(seen.running)
        found = outlook_on(seen)
        if found is not None and not choice.only:
            found.refuse()
        check_target(host, seen.plan.changes)
        if dry_run or not seen.plan.changes:
            swept = _swept(seen, disk, dry_run=dry_run) if not seen.plan.changes else ()
            return Applied(seen, written=False, outlook=found, swept=swept)
        prefixes = bytecode_prefixes(host.environment)
        done = commit(
            _site_changes(host, seen),
            disk=disk,
            pycache_prefixes=prefixes,
            planned_from={str(s.store.directory): s.journal for s in seen.host.sites.values()},
        )
    except KvpatchError as error:
        return Applied(seen, written=False, refusal=error, outlook=found)
    if done.transaction is None:
        return Applied(seen, written=False, outlook=found)
    applied = replace(seen, host=reread(host), plan=as_applied(seen.plan))
    result = Applied(applied, written=True, outlook=found)
    with contextlib.suppress(KvpatchError):
        # What was written stands all the same, and verify tells what is left.
        result = replace(result, swept=_swept(applied, disk))
    return result


def _swept(seen: View, disk: Disk, *, dry_run: bool = False) -> tuple[Path, ...]:
    """Bytecode that Python would have run instead, which goes."""
    return _discard(tuple(unfit_bytecode(seen)), disk, dry_run=dry_run)


def _discard(found: tuple[Path, ...], disk: Disk, *, dry_run: bool) -> tuple[Path, ...]:
    with environment_errors():
        for file in () if dry_run else found:
            disk.discard(file)
    return found


def _unfit_beside(host: Host, files: Iterable[FileReport]) -> tuple[Path, ...]:
    """The bytecode that Python would run in the place of files that a revert leaves as they are."""
    given = {str(place.real): place.given for place in host.places}
    journals = [site.journal for site in host.sites.values() if site.journal is not None]
    noted = [prefix for journal in journals for prefix in journal.prefixes]
    prefixes = tuple(dict.fromkeys((*noted, *bytecode_prefixes(host.environment))))
    left = [file for file in files if file.state != PUT_BACK]
    found = (unfit_of(given.get(f.site, Path(f.site)), f.path, prefixes) for f in left)
    return tuple(path for paths in found for path in paths)


def outlook_on(seen: View) -> Outlook | None:
    """The letters of the pair, where there are two packages and something is to be changed."""
    if "lmcache" not in seen.host.environment.packages or not seen.plan.changes:
        return None
    from .outlook import outlook

    return outlook(seen)


def revert(
    where: Where, disk: Disk, *, dry_run: bool, force: bool, while_running: bool
) -> Reverted:
    """Put every original back, by the journals alone.

    Raises:
        KvpatchError: where a file was changed since, or the environment does not let it happen.
    """
    from .archive import has_copy
    from .transaction import revert as put_back

    host = _open_to_revert(where, disk)
    recovered: tuple[Recovered, ...] = ()
    if host.interrupted and not dry_run:
        recovered = _recover(host, disk, while_running=while_running)
        host = _open_to_revert(where, disk)
    put = partial(
        put_back,
        host.places,
        disk=disk,
        force=force,
        pycache_prefixes=bytecode_prefixes(host.environment),
    )
    try:
        ahead = put(dry_run=True)
    except KvpatchError as error:
        if any(one.moved for one in recovered):
            error.message += "; what else a stopped run left was put right"
        raise
    if ahead.files and not while_running:
        refuse_running(running_in(host))
    for file in ahead.files:
        if file.state == PUT_BACK and file.before is not None:
            check_replaceable(Path(file.site), file.path)
    check_journals(site.store for site in host.sites.values() if ahead.files and site.journal)
    swept = _discard(_unfit_beside(host, ahead.files), disk, dry_run=dry_run)
    done = ahead if dry_run else put()
    recovered += done.recovered
    kept = tuple(path for one in recovered for path in one.archives)
    left = orphaned(host if dry_run else reread(host))
    if left is not None and not done.files:
        raise left
    # What a crash left is put right first, and often that is all of it.
    files = {(file.site, file.path): file for one in recovered for file in one.moved}
    written = bool(files) or done.transaction is not None
    files |= {(file.site, file.path): file for file in done.files}
    archives = (*kept, *done.archives)
    copies = tuple(folder for folder in archives if has_copy(folder))
    return Reverted(
        host, tuple(files.values()), archives, written, copies, swept, bool(recovered), left
    )


def _recover(host: Host, disk: Disk, *, while_running: bool) -> tuple[Recovered, ...]:
    """Put right what a run that was stopped left, but not below a running engine."""
    from .transaction import recover

    if not while_running:
        refuse_running(running_in(host))
    return recover(host.places, disk=disk)


def _open_to_revert(where: Where, disk: Disk) -> Host:
    """The host, with what is left of it; where that can't be told, the site folder given alone."""
    try:
        return open_host(where, disk, needs=None if where.site else "vllm")
    except KvpatchError as error:
        if error.code == "no-vllm":
            # What was patched beside a vLLM that is gone is still to be put back.
            left = open_host(where, disk, needs=None)
            if any(site.journal is not None for site in left.sites.values()):
                return left
        elif error.code != "two-distributions":
            raise
        if where.site is None:
            error.hint += "; `kvpatch revert --site DIR` needs nothing but the journal"
            raise
        return open_site(where, disk)


def running_in(host: Host) -> tuple[Running, ...]:
    """The vLLM processes of the host's environment, as far as they can be seen."""
    from .processes import running

    return running(host.environment)


def _site_changes(host: Host, seen: View) -> list[SiteChanges]:
    from .transaction import Change, SiteChanges

    result = []
    for site in host.sites.values():
        here = [
            file
            for file in seen.plan.changes
            if host.environment.packages[file.package].site == site.path
        ]
        drops = tuple(file.path for file in here if file.after == file.original)
        changes = tuple(
            Change(
                path=file.path,
                distribution=file.distribution,
                original=file.original,
                after=file.after,
                patches=dict(file.patches),
                basis=file.basis,
            )
            for file in here
            if file.after is not None and file.path not in drops
        )
        if here:
            owners = host.tree.owners(site.path)
            result.append(SiteChanges(site.path, site.store, owners, changes, drops))
    return result
