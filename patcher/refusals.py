"""What can't be done on a host, said before anything is written: refusals, and their ways out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import bytecode
from .host import Host, View, beside
from .journal import BLOBS, JOURNAL, LOCK, Store, bring_back, state_directory, strays
from .links import MOUNTED, is_mounted, mounts_of, why_no_new_file, why_not_replaced
from .locate import compile_for_target, file_facts
from .outcome import ExitCode, KvpatchError, Outcome
from .pip_command import pip_install
from .plan import FilePlan, Options, PatchPlan, plan
from .series import discover
from .target_probe import UNKNOWN_VERSION
from .tree import PACKAGES

if TYPE_CHECKING:
    from .processes import Running


REDO = (
    "`kvpatch revert --force` keeps a copy of the edit and puts the originals back; make the edit "
    "in the original, then run `kvpatch apply --accept-foreign`"
)


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
    for error in stuck(seen):
        raise error


def stuck(seen: View) -> Iterator[KvpatchError]:
    """The errors for what a plan can't do in the files: patches that are not chosen and can't be
    taken out, and files that Python does not read.
    """
    for module, path in beside(seen).items():
        yield KvpatchError(
            "other-module",
            f"Python does not run {path}: it imports {module} instead",
            "move that away, or install a release that does not come with it",
        )
    for path, ids in seen.stuck.items():
        yield KvpatchError(
            "changed-since",
            f"{path} holds {', '.join(ids)}, not chosen, and was changed since kvpatch wrote it",
            REDO,
        )
    for name, package in seen.host.environment.packages.items():
        found = {one: path for one, path in seen.built_in.items() if path.startswith(f"{name}/")}
        if not found:
            continue
        whose = f"{package.distribution} {package.version}"
        lost = set(found.values()) & set(seen.host.orphans)
        how = "no journal here says how" if lost else "it was installed so"
        way = f"{where_its_journal_is(seen.host)}, or " if lost else ""
        yield KvpatchError(
            "not-chosen",
            f"{', '.join(found)}: in place in {whose}, not chosen, and can't be taken out: {how}",
            f"{way}install {package.distribution} as released, or choose them too",
        )


def incomplete(host: Host, *suffixes: str) -> str | None:
    """What to do where a file that RECORD lists, of a name that ends so, is not there."""
    for name, installed in host.environment.packages.items():
        record = host.tree.record(name)
        for path in record.missing(installed.site, name, suffixes) if name in PACKAGES else ():
            whose = f"{installed.distribution} {installed.version}"
            return (
                f"the files of {whose} are not all there, {path} for one: reinstall {whose} "
                "(pip's --force-reinstall, uv's --reinstall)"
            )
    return None


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
        KvpatchError: ``mounted`` or ``read-only``; exit 4.
    """
    facts = file_facts(site / path)
    what, why = site / path, None if facts.writable else facts.reason
    compiled = tuple(bytecode.files([site], path))
    mounts = mounts_of()
    for file in compiled:
        if why is None and is_mounted(file, mounts):
            what, why = file, MOUNTED
        if why is None and file.is_dir() and not file.is_symlink():
            what, why = file, "it is a folder in the place of bytecode"
    for folder in dict.fromkeys(file.parent for file in compiled):
        if why is None:
            what, why = folder, why_no_new_file(folder)
    if why == MOUNTED:
        raise KvpatchError(
            "mounted",
            f"{what} is a mount point, so no other file can take its place",
            "patch the file that is mounted there, or take the mount away",
            ExitCode.ENVIRONMENT,
        )
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
        for _ in range(_LOOKS):
            try:
                why = _why_no_journal(store)
            except FileNotFoundError:
                # Another run has just removed what was looked at.
                continue
            except KvpatchError as error:
                if error.code != "no-file":
                    raise
                continue
            if why is not None:
                return why
            break
    return None


_LOOKS = 5


def _why_no_journal(store: Store) -> str | None:
    if (error := store.obstacle()) is not None:
        return error.message
    folder = store.directory
    while not os.path.lexists(folder):
        folder = folder.parent
    for path in (store.directory / BLOBS, store.directory / JOURNAL, store.directory / LOCK):
        if not os.path.lexists(path):
            continue
        why = why_no_new_file(path) if path.is_dir() else why_not_replaced(path)
        if path.name == LOCK:
            why = why or _why_not_opened(path)
        if why is not None:
            return f"the journal in {store.directory} can't be written: {why}"
    if folder.is_dir() and (why := why_no_new_file(folder)) is not None:
        return f"the journal's folder {store.directory} can't be written: {why}"
    return None


def _why_not_opened(lock: Path) -> str | None:
    try:
        os.close(os.open(lock, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"{lock} can't be opened: {error.strerror}"
    return None


def check_journals(stores: Iterable[Store]) -> None:
    """See that journals can be written, before anything is.

    Raises:
        KvpatchError: ``state-linked``, exit 3; ``state-not-writable``, exit 4.
    """
    for store in stores:
        if (error := store.obstacle()) is not None:
            raise error
        if (why := why_no_journal([store])) is not None:
            hint = "give a folder that can be with --state, the same one for every later command"
            if (store.directory / JOURNAL).exists():
                hint = "lift what makes it read-only, then run the command again"
                if os.geteuid() not in (0, owner := store.directory.stat().st_uid):
                    hint = (
                        f"run kvpatch as user {owner}, whose the journal is, or have "
                        f"`chown -R {os.geteuid()} {store.home}` run first"
                    )
            raise KvpatchError("state-not-writable", why, hint, ExitCode.ENVIRONMENT)


def orphaned(host: Host) -> KvpatchError | None:
    """The error for a file with code of kvpatch that no journal here says how to take out."""
    for path in host.orphans:
        return KvpatchError(
            "no-journal",
            f"{path} holds code of kvpatch, and no journal here says how to take it out",
            taken_out_without_journal(host),
        )
    return None


def taken_out_without_journal(host: Host) -> str:
    """What to do about code that kvpatch put in, and whose journal is not here."""
    whose = " and ".join(dict.fromkeys(host.orphans.values()))
    return f"{where_its_journal_is(host)}, or reinstall {whose}"


def where_its_journal_is(host: Host) -> str:
    """What to do to have the journal of code that kvpatch put in, and that is not here."""
    for site in host.sites.values():
        if site.store.directory == state_directory(site.path):
            for directory, patched in strays(site.path).items():
                return f"{bring_back(patched)} (the journal in {directory} is of there)"
    return "give the --state that apply was given, put the environment back where it was patched"


def _reinstall(seen: View, first: PatchPlan) -> str:
    told = f"reinstall {first.distribution} {first.version}"
    if first.version is None or "+" in first.version:
        # Builds of one's own are on no index.
        return told
    wanted = f"{first.distribution}=={first.version}"
    interpreter = seen.host.environment.interpreter
    python = interpreter.executable if interpreter else None
    return f"{told} (`{pip_install(python, '--force-reinstall', '--no-deps', wanted)}`)"


def way_out(seen: View, first: PatchPlan) -> str:
    """What to do about a patch that is refused."""
    own = {target.path for target in first.targets}
    if own & set(seen.host.in_edited):
        return REDO
    if own & set(seen.host.orphans):
        return taken_out_without_journal(seen.host)
    reinstall = f"{_reinstall(seen, first)} and apply again"
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
