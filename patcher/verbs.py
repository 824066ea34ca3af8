"""The verbs: each opens a host, does its work, and says what came of it as a report."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from . import application, place, refusals
from . import host as hosts
from .fsops import Disk
from .host import Choice, View, Where
from .outcome import ExitCode, KvpatchError, Report
from .plan import FilePlan, Plan
from .report import (
    command,
    environment_line,
    journal_lines,
    left_out_lines,
    old_bytecode,
    patch_details,
    patches_text,
    revert_text,
    series_text,
    status_text,
    swept_lines,
    taken_out_lines,
    written_lines,
)
from .report_data import member_data, pair_data, plan_data, refused_for
from .series import discover

if TYPE_CHECKING:
    from .outlook import Outlook

_FOR_GDS = "KV009"
"""The patch without which nothing is loaded from GDS to be blended."""


def status(where: Where, choice: Choice, disk: Disk) -> Report:
    """Whether the host is patched, with what, and whether it can be taken back."""
    _know(choice)
    brief = replace(choice, options=replace(choice.options, brief=True))
    with _looking():
        seen = hosts.with_facts(hosts.view(hosts.open_host(where, disk), brief))
        stores = [site.store for site in seen.host.sites.values()]
        seen = replace(
            seen,
            running=application.running_in(seen.host),
            unwritable=refusals.why_no_journal(stores),
        )
        known = pair_data(seen.host.exact)
        unfit = hosts.unfit_bytecode(seen)
        notes = tuple(
            f"warning: Python does not run {path} as it is there, but {old_bytecode(file)}; "
            f"{_apply(choice)} removes it"
            for file, path in unfit.items()
        )
        notes += _incomplete(seen)
        ahead = hosts.beside(seen)
        notes += tuple(
            f"warning: Python does not run {path}, it imports {file} instead; apply refuses that"
            for file, path in ahead.items()
        )
        other = [{"path": path, "bytecode": str(file)} for file, path in (unfit | ahead).items()]
        data = {**plan_data(seen), "pair": known, "other_bytecode": other}
        return Report("status", status_text(seen, known), data, notes=notes)


def diff(where: Where, choice: Choice, disk: Disk) -> Report:
    """What apply would change, as a unified diff."""
    _know(choice)
    with _looking():
        seen = hosts.view(hosts.open_host(where, disk), choice)
        data = plan_data(seen)
    text = "".join(_unified(file) for file in seen.plan.changes)
    notes = _refused_pair(seen, choice) if text else (_no_diff(seen),)
    notes += tuple(f"apply would refuse: {error.message}" for error in refusals.stuck(seen))
    return Report("diff", text.rstrip("\n"), {**data, "diff": text}, notes=notes)


def apply(
    where: Where, choice: Choice, disk: Disk, *, dry_run: bool, while_running: bool
) -> Report:
    """Put the patches in, all or nothing."""
    _know(choice)
    # The import takes longer than the target interpreter needs to answer: do both at once.
    with _importing("libcst"):
        host = hosts.open_host(where, disk)
        done = application.apply(host, choice, disk, while_running=while_running, dry_run=dry_run)
    found = done.outlook
    compat = {"compat": found.data if found else None}
    lines = [environment_line(done.view), "", patches_text(done.view.plan)]
    lines += [*left_out_lines(done.view), *taken_out_lines(done.view, done=done.written), ""]
    lines += [*found.lines(), ""] if found else []
    if done.refusal is not None:
        data = {**plan_data(done.view), **compat, "written": False, "dry_run": dry_run}
        text = "\n".join(lines).rstrip("\n")
        return Report("apply", text, data, done.refusal.exit_code, (done.refusal,))
    if done.written:
        back = command(done.view.host.where, "revert")
        lines += written_lines(done.view.plan, back, _profile(done.view.plan, found))
    elif dry_run and done.view.plan.changes:
        lines.append("nothing was written: this was a dry run, and apply would go through")
    else:
        lines.append("everything was in place already; nothing was written")
        lines += journal_lines(done.view)
    lines += swept_lines(done.swept, dry_run=dry_run)
    data = {**plan_data(done.view), **compat, "written": done.written, "dry_run": dry_run}
    notes = (*_without_lmcache(done.view), *_red(done.view))
    return Report("apply", "\n".join(lines), data, notes=notes)


def compat(where: Where, choice: Choice, disk: Disk) -> Report:
    """The letters of the installed pair, as it stands and with the patches."""
    from .outlook import compat_report

    _know(choice)
    with _looking():
        seen = hosts.view(hosts.open_host(where, disk), choice)
        return compat_report(seen, environment_line(seen), _apply(choice))


def verify(where: Where, choice: Choice, disk: Disk) -> Report:
    """Whether everything is in place: an apply that may not write."""
    _know(choice)
    thorough = replace(choice, options=replace(choice.options, thorough=True))
    with _looking():
        host = hosts.open_host(where, disk)
        seen = hosts.view(host, thorough)
        data = plan_data(seen)
    errors = []
    if not seen.plan.goal_holds and not seen.plan.refused:
        errors.append(refusals.goal_missed(seen))
    errors += [
        KvpatchError(
            f"patch-{patch.outcome.value}",
            f"{patch.id} is {patch.outcome.value}: {patch.reason}",
            refusals.way_out(seen, patch) if patch.outcome.refused else _put_in(seen, choice),
            ExitCode.NO,
        )
        for patch in seen.plan.patches
        if not patch.outcome.fine
    ]
    if seen.plan.changes and not errors:
        errors.append(_left_over(seen.plan.changes[0], choice))
    errors += [
        KvpatchError(
            "other-bytecode",
            f"Python does not run {path} as it is there: {old_bytecode(file)}",
            f"run {_apply(choice)}, which removes it",
            ExitCode.NO,
        )
        for file, path in hosts.unfit_bytecode(seen).items()
    ]
    for error in refusals.stuck(seen):
        error.exit_code = ExitCode.NO
        errors.append(error)
    if host.interrupted:
        errors.append(_interrupted())
    beside = [*left_out_lines(seen), *taken_out_lines(seen)]
    text = "\n".join([environment_line(seen), "", patches_text(seen.plan), *beside])
    if not errors:
        whole = "" if "lmcache" in seen.host.environment.packages else " in vLLM"
        text += "\n".join([f"\n\neverything is in place{whole}", *journal_lines(seen)])
    code = ExitCode.NO if errors else ExitCode.DONE
    notes = (*_without_lmcache(seen), *_incomplete(seen), *_red(seen))
    return Report("verify", text, data, code, tuple(errors), notes)


def revert(where: Where, disk: Disk, *, dry_run: bool, force: bool, while_running: bool) -> Report:
    """Put every file back byte for byte, by the journal alone."""
    done = application.revert(
        where, disk, dry_run=dry_run, force=force, while_running=while_running
    )
    data = {
        "written": done.written,
        "dry_run": dry_run,
        "archives": [str(path) for path in done.archives],
        "files": [
            {
                "site": file.site,
                "path": file.path,
                "state": file.state,
                "before": file.before,
                "after": file.after,
            }
            for file in done.files
        ],
    }
    text = revert_text(done, dry_run=dry_run)
    if done.left is not None:
        return Report("revert", text, data, done.left.exit_code, (done.left,))
    return Report("revert", text, data)


def list_patches() -> Report:
    """The patches in series order."""
    members = discover().members
    data = {"series": [member_data(member) for member in members]}
    return Report("list", series_text(members), data)


def show(patch_id: str) -> Report:
    """All that a patch says of itself.

    Raises:
        KvpatchError: ``unknown-patch``.
    """
    member = discover().get(patch_id)
    return Report("show", patch_details(member), {"patch": member_data(member)})


def _know(choice: Choice) -> None:
    """See that the chosen patches exist, wherever vLLM may be.

    Raises:
        KvpatchError: ``unknown-patch``.
    """
    for patch_id in (*choice.only, *choice.skip):
        discover().get(patch_id)


_ROOM = 88 << 20
"""Bytes that planning vLLM's and LMCache's files with libcst takes beside Python itself."""


@contextlib.contextmanager
def _importing(name: str) -> Iterator[None]:
    """Import a module meanwhile; what keeps it from that is met again by whoever needs it.

    Raises:
        OSError: ENOMEM, where there is no room for what it works with.
    """
    import mmap

    # Without room libcst, which is in Rust, ends the process. What is not written to costs nothing.
    mmap.mmap(-1, _ROOM).close()

    def attempt() -> None:
        with contextlib.suppress(Exception):
            importlib.import_module(name)

    thread = threading.Thread(target=attempt, daemon=True)
    with contextlib.suppress(RuntimeError):  # no memory for another thread
        thread.start()
    try:
        yield
    finally:
        # An interpreter that ends in the middle of the import of an extension can crash.
        if thread.ident is not None:
            thread.join()


@contextlib.contextmanager
def _looking() -> Iterator[None]:
    """For a verb that only looks, what keeps it from looking is the environment's."""
    try:
        yield
    except KvpatchError as error:
        if error.exit_code is ExitCode.REFUSED:
            error.exit_code = ExitCode.ENVIRONMENT
        raise


def _profile(plan: Plan, found: Outlook | None) -> str | None:
    """The profile to go on with after an apply; None where the pair does not blend."""
    if found is not None and found.after.complete and not found.after.green:
        return None
    gds = any(patch.id == _FOR_GDS and patch.outcome.in_place for patch in plan.patches)
    return "gds-blend" if gds or found is None else "blend"


def _unified(file: FilePlan) -> str:
    import difflib

    before = file.content.decode("utf-8", "replace").splitlines(keepends=True)
    after = (file.after or b"").decode("utf-8", "replace").splitlines(keepends=True)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, f"a/{file.path}", f"b/{file.path}")
    )


def _no_diff(seen: View) -> str:
    if seen.plan.refused:
        first = seen.plan.refused[0]
        return f"apply would refuse: {first.id} is {first.outcome.value}: {first.reason}"
    reason = (
        "everything is in place" if seen.plan.goal_holds else refusals.goal_missed(seen).message
    )
    return f"apply would change nothing: {reason}"


def _refused_pair(seen: View, choice: Choice) -> tuple[str, ...]:
    """That apply would refuse the pair, as far as the catalogue tells."""
    letter = refused_for(pair_data(seen.host.exact))
    if letter is None or choice.only:
        return ()
    return (f"apply would refuse this pair, for letter {letter} stays",)


def _put_in(seen: View, choice: Choice) -> str:
    """What to do to have a patch that is not there."""
    known = pair_data(seen.host.exact)
    if known is not None and _refused_pair(seen, choice):
        return f"take {', or '.join(known['nearest'])}; apply refuses this pair"
    return f"run {_apply(choice)}"


def _apply(choice: Choice) -> str:
    """The command that applies that choice."""
    given = [("--only", one) for one in choice.only] + [("--skip", one) for one in choice.skip]
    return f"`{place.command('apply', [word for pair in given for word in pair])}`"


def _without_lmcache(seen: View) -> tuple[str, ...]:
    if "lmcache" in seen.host.environment.packages:
        return ()
    told = (
        "LMCache is not installed here: until it is, the patches change nothing; its own go in by "
        "`kvpatch apply` once it is there"
    )
    return (told,)


def _red(seen: View) -> tuple[str, ...]:
    """That the pair blends in no way, by the catalogue; `apply` refuses the worst of these."""
    known = pair_data(seen.host.exact)
    if known is None or not known["tested"] or known["ok"]:
        return ()
    nearest = ", or ".join(known["nearest"])
    return (f"warning: this pair does not blend, not even with all patches: take {nearest}",)


def _incomplete(seen: View) -> tuple[str, ...]:
    """That compiled modules are missing, without which no pair blends."""
    found = refusals.incomplete(seen.host, ".so")
    return (f"warning: {found}",) if found else ()


def _left_over(file: FilePlan, choice: Choice) -> KvpatchError:
    return KvpatchError(
        "patch-pending",
        f"{file.path} holds a patch that is no longer chosen",
        f"run {_apply(choice)}: it plans the file anew from its original",
        ExitCode.NO,
    )


def _interrupted() -> KvpatchError:
    return KvpatchError(
        "interrupted-run",
        "an earlier run stopped half way",
        "run `kvpatch apply` or `kvpatch revert`: either cleans up first",
        ExitCode.NO,
    )
