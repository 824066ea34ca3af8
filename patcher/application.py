"""Applying a plan to a host and taking it back: what must hold first, and what then happens."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import bytecode
from .fsops import Disk
from .host import Choice, Host, View, Where, open_host, open_site, view
from .journal import BLOBS, JOURNAL, Store
from .links import why_no_new_file
from .locate import Environment, compile_for_target, file_facts
from .outcome import ExitCode, KvpatchError, Outcome
from .plan import FilePlan, Options, PatchPlan, as_applied, plan
from .series import discover
from .staleness import PUT_BACK
from .target_probe import UNKNOWN_VERSION

if TYPE_CHECKING:
    from .outlook import Outlook
    from .processes import Running
    from .transaction import FileReport, SiteChanges


@dataclass(frozen=True)
class Reverted:
    """What ``revert`` came to, file by file, and where copies were kept."""

    host: Host
    files: tuple[FileReport, ...]
    archives: tuple[Path, ...]
    written: bool


@dataclass(frozen=True)
class Applied:
    """What ``apply`` came to: the plan as it now stands, and whether anything was written.

    ``outlook`` has the letters of the pair, where LMCache is there and something was to be changed.
    """

    view: View
    written: bool
    refusal: KvpatchError | None = None
    outlook: Outlook | None = None


def apply(
    host: Host, choice: Choice, disk: Disk, *, while_running: bool = False, dry_run: bool = False
) -> Applied:
    """Put the chosen patches in, all or nothing; a dry run does all but write.

    Raises:
        KvpatchError: where nothing could be planned at all. What keeps a plan from being applied
            comes back as the refusal; nothing is changed then.
    """
    from .transaction import commit, recover

    if host.interrupted and not dry_run:
        recover(host.places, disk=disk)
        host = open_host(host.where, disk)
    try:
        seen = view(host, choice)
    except KvpatchError as error:
        if error.code != "original-damaged":
            raise
        # Another run may have taken the journal away since it was read.
        host = open_host(host.where, disk)
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
            return Applied(seen, written=False, outlook=found)
        prefixes = bytecode_prefixes(host.environment)
        done = commit(_site_changes(host, seen), disk=disk, pycache_prefixes=prefixes)
    except KvpatchError as error:
        return Applied(seen, written=False, refusal=error, outlook=found)
    if done.transaction is None:
        # Another run has put the same in since this one planned.
        return Applied(view(open_host(host.where, disk), choice), written=False)
    applied = View(_reread(host), seen.selection, as_applied(seen.plan), seen.running)
    return Applied(applied, written=True, outlook=found)


def outlook_on(seen: View) -> Outlook | None:
    """The letters of the pair, where there are two packages and something is to be changed."""
    from .outlook import outlook

    there = "lmcache" in seen.host.environment.packages
    return outlook(seen) if there and seen.plan.changes else None


def _reread(host: Host) -> Host:
    """The host with its journals as they are now."""
    sites = {
        folder: replace(site, journal=site.store.read()) for folder, site in host.sites.items()
    }
    return replace(host, tree=replace(host.tree, sites=sites))


def revert(
    where: Where, disk: Disk, *, dry_run: bool, force: bool, while_running: bool
) -> Reverted:
    """Put every original back, by the journals alone.

    Raises:
        KvpatchError: where a file was changed since, or the environment does not let it happen.
    """
    from .transaction import recover
    from .transaction import revert as put_back

    host = _open_to_revert(where, disk)
    if host.interrupted and not dry_run:
        recover(host.places, disk=disk)
        host = _open_to_revert(where, disk)
    put = partial(
        put_back,
        host.places,
        disk=disk,
        force=force,
        current=host.tree.distribution_states,
        pycache_prefixes=bytecode_prefixes(host.environment),
    )
    ahead = put(dry_run=True)
    if ahead.files and not while_running:
        refuse_running(running_in(host))
    for file in ahead.files:
        if file.state == PUT_BACK and file.before is not None:
            check_replaceable(Path(file.site), file.path)
    check_journals(site.store for site in host.sites.values() if ahead.files and site.journal)
    done = ahead if dry_run else put()
    if not done.files:
        refuse_orphans(host)
    return Reverted(host, done.files, done.archives, written=done.transaction is not None)


def _open_to_revert(where: Where, disk: Disk) -> Host:
    """The host; where what is installed can't be told, the site folder that was given alone."""
    try:
        return open_host(where, disk, needs=None if where.site else "vllm")
    except KvpatchError as error:
        if error.code != "two-distributions":
            raise
        if where.site is None:
            error.hint += "; `kvpatch revert --site DIR` needs nothing but the journal"
            raise
        return open_site(where, disk)


def refuse(seen: View) -> None:
    """See that a plan may be applied.

    Raises:
        KvpatchError: ``refused``, naming the first patch and its reason; ``unsupported``, where
            nothing cures the missing registration for this release.
    """
    if seen.plan.refused:
        first = seen.plan.refused[0]
        raise KvpatchError(
            f"patch-{first.outcome.value}",
            f"{first.id} is {first.outcome.value}: {first.reason}",
            way_out(seen, first),
        )
    if not seen.plan.goal_holds:
        raise goal_missed(seen)


def goal_missed(seen: View) -> KvpatchError:
    """The error for a release for which no chosen patch cures the missing registration."""
    installed = seen.host.environment.packages["vllm"]
    cures = [member.patch for member in discover().registering]
    if installed.version == UNKNOWN_VERSION:
        return KvpatchError(
            "unknown-version",
            f"which vLLM is in {installed.site} is not known: no installed distribution claims it",
            "reinstall vLLM with pip or uv, so that its metadata and RECORD are there again",
        )
    if any(patch.in_range(seen.host.versions["vllm"]) for patch in cures):
        return KvpatchError(
            "goal-missed",
            "none of the chosen patches registers the model, so CacheBlend can't start",
            "leave the choice to kvpatch: run it without --only and --skip",
        )
    return KvpatchError(
        "unsupported",
        f"vLLM {installed.version} is not supported: no patch registers its model with LMCache",
        f"install a supported vLLM: {_widest([patch.versions for patch in cures])}",
    )


def _widest(ranges: Sequence[str]) -> str:
    """The ranges that no other one contains, as far as their clauses show it."""
    clauses = {text: frozenset(text.split(",")) for text in ranges}
    return " or ".join(
        text for text, own in clauses.items() if not any(own > other for other in clauses.values())
    )


def check_replaceable(site: Path, path: str) -> None:
    """See that a file can be replaced and its bytecode removed, before anything is written.

    Raises:
        KvpatchError: ``read-only``; exit 4.
    """
    facts = file_facts(site / path)
    what, why = site / path, None if facts.writable else facts.reason
    for folder in dict.fromkeys(file.parent for file in bytecode.files([site], path)):
        if why is None:
            what, why = folder, why_no_new_file(folder)
    if why is not None:
        raise KvpatchError(
            "read-only",
            f"{what} can't be replaced: {why}",
            "run as a user who may write there, lift what makes it read-only, or patch the image "
            "that it comes from",
            ExitCode.ENVIRONMENT,
        )


def why_no_journal(stores: Iterable[Store]) -> str | None:
    """Why a journal can't be written, tried without leaving a trace; None where it can."""
    for store in stores:
        folder = store.directory
        while not os.path.lexists(folder):
            folder = folder.parent
        blocked = [store.directory / JOURNAL, store.directory / BLOBS]
        for path in (path for path in blocked if os.path.lexists(path)):
            facts = file_facts(path) if not path.is_dir() else None
            why = why_no_new_file(path) if facts is None else facts.reason
            if why is not None and (facts is None or not facts.writable):
                return f"the journal in {store.directory} can't be written: {why}"
        if folder.is_dir() and (why := why_no_new_file(folder)) is not None:
            return f"the journal's folder {store.directory} can't be written: {why}"
    return None


def check_journals(stores: Iterable[Store]) -> None:
    """See that journals can be written, before anything is.

    Raises:
        KvpatchError: ``read-only``; exit 4.
    """
    for store in stores:
        if (why := why_no_journal([store])) is not None:
            hint = "give a folder that can be with --state, the same one for every later command"
            if (store.directory / JOURNAL).exists():
                hint = "lift what makes it read-only, then run the command again"
            raise KvpatchError("state-not-writable", why, hint, ExitCode.ENVIRONMENT)


def refuse_orphans(host: Host) -> None:
    """See that no file holds what kvpatch inserted where no journal says how to take it out.

    Raises:
        KvpatchError: ``no-journal``.
    """
    if "vllm" not in host.environment.packages:
        return
    try:
        files = view(host, Choice(options=Options(brief=True))).plan.files
    except KvpatchError:
        # A host that can't be planned on has nothing that a journal could take out either.
        return
    for file in files:
        if file.orphaned:
            raise KvpatchError(
                "no-journal",
                f"{file.path} holds code of kvpatch, and no journal here says how to take it out",
                "give the --state that apply was given, move the environment back to where it was "
                f"patched, or reinstall {file.distribution}",
            )


def way_out(seen: View, first: PatchPlan) -> str:
    """What to do about a patch that is refused."""
    own = {target.path for target in first.targets}
    reinstall = f"reinstall {first.distribution} {first.version} and apply again"
    if first.outcome is Outcome.FOREIGN:
        states = {file.state for file in seen.plan.files if file.path in own}
        if states == {"unknown"} and _works(seen, Options(allow_unverified=True)):
            return f"{reinstall}, or give --allow-unverified to trust the file as it is"
        if states == {"foreign"} and _works(seen, Options(accept_foreign=True)):
            return f"{reinstall}, or give --accept-foreign to patch on top of the edit"
        return reinstall
    if first.outcome is Outcome.CONFLICT:
        return f"make the file a plain one again: {reinstall}"
    gone = own - {file.path for file in seen.plan.files}
    if any(seen.host.tree.record(first.package).hash_of(path) is not None for path in gone):
        return f"the RECORD of {first.distribution} lists it: {reinstall}"
    if first.tested:
        return f"this kvpatch patches {first.version} as it was released: {reinstall}"
    return "this release needs a newer kvpatch; `kvpatch list` shows the releases it is made for"


def _works(seen: View, options: Options) -> bool:
    """Whether the plan would go through with other options."""
    return not plan(seen.selection.series, seen.host.tree, options).refused


def refuse_running(found: Sequence[Running]) -> None:
    """See that no engine runs on the files that are to be replaced.

    Raises:
        KvpatchError: ``running``, with the pids.
    """
    if found:
        pids = ", ".join(str(process.pid) for process in found)
        raise KvpatchError(
            "running",
            f"vLLM is running from this environment (pid {pids})",
            "stop it first, or go on with --while-running and restart it afterwards",
        )


def check_target(host: Host, changes: Sequence[FilePlan]) -> None:
    """See that every file can be replaced and that the target interpreter compiles the result.

    Raises:
        KvpatchError: ``read-only`` or ``does-not-compile``.
    """
    packages = host.environment.packages
    sites = dict.fromkeys(packages[change.package].site for change in changes)
    for change in changes:
        check_replaceable(host.environment.packages[change.package].site, change.path)
    check_journals(host.sites[site].store for site in sites)
    interpreter = host.environment.interpreter
    if interpreter is not None:
        sources = {change.path: change.after for change in changes if change.after is not None}
        for path, error in compile_for_target(interpreter, sources).items():
            raise KvpatchError(
                "does-not-compile",
                f"the patched {path} does not compile with {interpreter.executable}: {error}",
                "nothing was changed; report this with the output of `kvpatch diff`",
            )


def running_in(host: Host) -> tuple[Running, ...]:
    """The vLLM processes of the host's environment, as far as they can be seen."""
    from .processes import running

    return running(host.environment)


def _site_changes(host: Host, seen: View) -> list[SiteChanges]:
    from .transaction import Change, SiteChanges

    states = host.tree.distribution_states
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
            known = {file.distribution: states[file.distribution] for file in here}
            result.append(SiteChanges(site.path, site.store, known, changes, drops))
    return result


def bytecode_prefixes(environment: Environment) -> tuple[str, ...]:
    """Where the target keeps bytecode apart from the sources, if it does."""
    interpreter = environment.interpreter
    if interpreter is None:
        prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    else:
        prefix = interpreter.pycache_prefix
    return (prefix,) if prefix else ()
