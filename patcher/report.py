"""What the verbs report of a plan as text, which answers first things first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from . import place
from .application import Reverted
from .fsops import Disk
from .host import Host, View, Where
from .locate import FileFacts, LinkKind
from .outcome import KvpatchError, Outcome
from .plan import PatchPlan, Plan
from .refusals import taken_out_without_journal
from .report_data import in_the_way, patched, refused_for, revertible
from .series import Member
from .staleness import PUT_BACK, STALE
from .tree import Package

RESTART = "restart vLLM: a running engine keeps the code it started with"
_MOST_NAMED = 3


def written_lines(plan: Plan, back: str, profile: str | None) -> list[str]:
    """What an apply wrote, how it is taken back, what was not judged, and what comes next.

    Args:
        plan: what was applied.
        back: the command line that takes it back.
        profile: the one to go on with; None where the pair does not blend.
    """
    pending = [file for file in plan.files if file.pending]
    lines = [f"wrote {_named([file.path for file in pending])}; `{back}` takes it back"]
    if found := [file.path for file in pending if file.basis != "pristine"]:
        lines.append(f"{', '.join(found)}: patched on top of what was found, which was not judged")
    if profile is not None:
        lines.append(
            "`kvpatch smoke` proves that it blends; "
            f"`kvpatch profile {profile}` makes its configuration"
        )
    return [*lines, RESTART]


def _named(paths: Sequence[str]) -> str:
    return ", ".join(paths) if len(paths) <= _MOST_NAMED else f"{len(paths)} files"


def _pair_line(known: Mapping[str, Any] | None) -> list[str]:
    """The letters of a pair of releases by the catalogue, in a line."""
    if known is None:
        return []
    if not known["tested"]:
        return [f"pair        {known['standing']}; `kvpatch compat` reads its letters"]
    before, after = (" ".join(known[when]) or "none" for when in ("before", "after"))
    lines = [
        f"pair        letters {before} as released, {after} with all patches; {known['standing']}"
    ]
    if not known["ok"]:
        lines.append(f"            does not blend: take {', or '.join(known['nearest'])}")
    return lines


def status_text(seen: View, known: Mapping[str, Any] | None = None) -> str:
    """Is this host patched, with what, and can it be taken back; then the details."""
    lines = [environment_line(seen), ""]
    lines += [
        f"patched     {_patched_answer(seen, known)}{_hindrance(seen)}",
        f"take back   {_back_answer(seen)}{_stuck(seen)}",
        *_pair_line(known),
    ]
    if seen.host.interrupted:
        lines.append("interrupted a run stopped half way; the next apply or revert cleans up")
    if seen.running:
        pids = ", ".join(str(process.pid) for process in seen.running)
        lines.append(f"running     vLLM runs from here (pid {pids}); what it runs may be older")
    for name, installed in seen.host.environment.packages.items():
        lines += [f"hidden      another {name}, in {path}" for path in installed.shadowed]
    lines += ["", *_table(_file_rows(seen)), "", patches_text(seen.plan)]
    lines += [*left_out_lines(seen), *taken_out_lines(seen)]
    if untested := _untested(seen.plan):
        lines += ["", untested]
    return "\n".join(lines)


def taken_out_lines(seen: View, *, done: bool = False) -> list[str]:
    """Which patches apply takes out because they are not chosen, or has taken out."""
    if not seen.taken_out:
        return _built_in_lines(seen)
    ids = ", ".join(seen.taken_out)
    if done:
        return ["", f"taken out, because the plan is without them: {ids}"]
    told = f"in place, and apply would take them out, for the plan is without them: {ids}"
    return ["", told, *_built_in_lines(seen)]


def _built_in_lines(seen: View) -> list[str]:
    """Which patches are not chosen, and stay: apply refuses such a choice."""
    if not seen.built_in:
        return []
    return [
        "",
        f"in place without being chosen, and apply can't take out: {', '.join(seen.built_in)}",
    ]


def left_out_lines(seen: View) -> list[str]:
    """Which patches for this pair are neither chosen nor in place."""
    if not seen.left_out:
        return []
    ids = ", ".join(seen.left_out)
    return ["", f"left out, though they are for this pair (`kvpatch show ID` says what for): {ids}"]


def environment_line(seen: View) -> str:
    """The pair and where it is."""
    packages = seen.host.environment.packages
    vllm, lmcache = packages["vllm"], packages.get("lmcache")
    name = "" if vllm.distribution == "vllm" else f" (as {vllm.distribution})"
    other = f"LMCache {lmcache.version}" if lmcache else "no LMCache"
    return f"vLLM {vllm.version}{name} with {other}, in {vllm.site}"


def patches_text(plan: Plan) -> str:
    """The patches with their outcomes, one a line."""
    return "\n".join([*_table(_patch_rows(plan)), *_long_reasons(plan)])


def _patched_answer(seen: View, known: Mapping[str, Any] | None = None) -> str:
    plan, standings, orphans = seen.plan, seen.host.standings, seen.host.orphans
    ids = {outcome: _ids(plan, outcome) for outcome in Outcome}
    ours = ids[Outcome.ALREADY] + ids[Outcome.APPLIED]
    if plan.refused:
        first = plan.refused[0]
        so_far = f"yes, with {', '.join(ours)}, but" if patched(plan) and ours else "no, and"
        return f"{so_far} apply would refuse: {first.id} is {first.outcome.value}"
    if patched(plan) and ours:
        return f"yes, with {', '.join(ours)}"
    if patched(plan):
        remains = any(item.remains for item in standings)
        whose = "changed since kvpatch wrote it" if remains else "not by kvpatch"
        if not remains and orphans:
            whose = "by a kvpatch whose journal is not here"
        if not remains and (forks := _forks(plan)):
            return f"yes, by the fork {' and '.join(forks)}: apply leaves it as it is"
        return f"yes, but {whose}: apply leaves it as it is"
    if pending := ids[Outcome.PENDING]:
        have = f", only with {', '.join(ours)}" if ours else ""
        if letter := refused_for(known):
            return f"no{have}; `kvpatch apply` would refuse the pair, for letter {letter} stays"
        return f"no{have}; `kvpatch apply` would put in {', '.join(pending)}"
    return "no, and no chosen patch is for this release"


def _forks(plan: Plan) -> list[str]:
    """The installed wheels that ``kvpatch fork`` wrote, by name and version."""
    found = [
        Package(patch.distribution, Version(patch.version)).fork
        for patch in plan.patches
        if patch.version
    ]
    return list(dict.fromkeys(name for name in found if name))


def journal_lines(seen: View) -> list[str]:
    """What has to be said where kvpatch's code is in place and its journal is not here."""
    if not seen.host.orphans:
        return []
    paths = _named(tuple(seen.host.orphans))
    return [
        (
            f"the code in {paths} is kvpatch's, and its journal is not here: it can't be taken "
            f"back from here; {taken_out_without_journal(seen.host)}"
        )
    ]


def _hindrance(seen: View) -> str:
    """What keeps apply from what it would do, as far as it was seen without trying."""
    pending = [file.path for file in seen.plan.files if file.pending]
    fixed = [path for path in pending if (facts := seen.facts.get(path)) and not facts.writable]
    if fixed:
        return f", but {' and '.join(fixed)} can't be replaced"
    return f", but {seen.unwritable}" if seen.unwritable and pending else ""


def _stuck(seen: View) -> str:
    """What keeps revert from what it would do, as far as it was seen without trying."""
    if not revertible(seen.host.standings):
        return ""
    ours = [item.path for item in seen.host.standings if item.ours]
    fixed = [path for path in ours if (facts := seen.facts.get(path)) and not facts.writable]
    if fixed:
        return f", but not now: {fixed[0]} can't be replaced"
    return f", but not now: {seen.unwritable}" if seen.unwritable else ""


def _back_answer(seen: View) -> str:
    standings = seen.host.standings
    for path in seen.host.orphans if not standings else ():
        return (
            f"not from here: {path} holds code of kvpatch, and no journal here; "
            f"{taken_out_without_journal(seen.host)}"
        )
    if not any(item.remains for item in standings) and (forks := _forks(seen.plan)):
        return f"nothing to take back: what {' and '.join(forks)} changed came with the wheel"
    if not standings:
        return "nothing to take back"
    if stuck := in_the_way(standings):
        return f"not as it stands: {stuck[0].path} {stuck[0].sentence}"
    try:
        beside = _put_back_beside(seen.host)
    except KvpatchError as error:
        return f"not as it stands: {error.message}"
    count = sum(item.comes_back for item in standings) + len(beside)
    if not count and seen.host.interrupted:
        return "nothing to take back"
    if not count:
        return "nothing to take back: what kvpatch wrote is not there any more"
    files = "1 file" if count == 1 else f"{count} files"
    back = command(seen.host.where, "revert")
    edited = [item.path for item in standings if item.comes_back and item.basis != "pristine"]
    how = f", {edited[0]} as it was found, not as released" if edited else ""
    for other in dict.fromkeys(beside):
        how += f", {beside.count(other)} of them in {other}, patched together with this"
    if stale := [item.path for item in standings if item.state == STALE]:
        others = "" if len(stale) == 1 else f" and {len(stale) - 1} more"
        how += f"; stale, so left as it is: {stale[0]}{others}"
    if seen.host.orphans:
        names = _named(tuple(seen.host.orphans))
        how += f"; what stays is code of kvpatch in {names}, whose journal is not here"
    return f"yes, `{back}` puts {files} back byte for byte{how}"


def _put_back_beside(host: Host) -> list[str]:
    """The other site folders in which a revert puts files back too, one a file.

    Raises:
        KvpatchError: what keeps it from that.
    """
    journals = [site.journal for site in host.sites.values() if site.journal is not None]
    if all(len(journal.participants) == 1 for journal in journals):
        return []
    from .transaction import revert

    own = {str(place.real) for place in host.places}
    ahead = revert(host.places, disk=Disk(), dry_run=True).files
    return [file.site for file in ahead if file.state == PUT_BACK and file.site not in own]


def command(where: Where, verb: str) -> str:
    """The command line of a verb for the place that was given."""
    given = {"python": where.python, "site": where.site, "state": where.state}
    return place.command(verb, place.options(given))


def _file_rows(seen: View) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("is now", "apply would", "file")]
    for file in seen.plan.files:
        would = "change it" if file.pending and not seen.plan.refused else "leave it"
        rows.append((file.state, would, file.path + _how_it_lies(seen.facts.get(file.path))))
    return rows if len(rows) > 1 else []


def _how_it_lies(facts: FileFacts | None) -> str:
    """What an operator should know of the file before it is replaced; nothing of a plain one."""
    if facts is None:
        return ""
    notes = []
    if facts.link is LinkKind.HARD:
        notes.append(f"one of {facts.count} hard links, the others stay as they are")
    if facts.link is LinkKind.SYMBOLIC:
        notes.append(f"a symbolic link to {facts.target}, which stays as it is")
    if not facts.writable:
        notes.append(f"can't be replaced: {facts.reason}")
    return f" ({'; '.join(notes)})" if notes else ""


def _patch_rows(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("patch", "outcome", "what it does, or why not")]
    for patch in plan.patches:
        reason = patch.title if _quiet(patch) or _long(patch) else patch.reason
        rows.append((patch.id, patch.outcome.value, reason))
    return rows


def _long_reasons(plan: Plan) -> list[str]:
    """Reasons that don't fit into the table, once for all patches that share one."""
    shared: dict[str, list[str]] = {}
    for patch in plan.patches:
        if _long(patch) and not _quiet(patch):
            shared.setdefault(patch.reason, []).append(patch.id)
    lines: list[str] = []
    for reason, ids in shared.items():
        text = f"{', '.join(ids)}: {reason}"
        import textwrap

        lines += ["", *textwrap.wrap(text, 100, subsequent_indent="    ", break_long_words=False)]
    return lines


def _quiet(patch: PatchPlan) -> bool:
    return patch.outcome in (Outcome.ALREADY, Outcome.APPLIED, Outcome.PENDING)


def _long(patch: PatchPlan) -> bool:
    return len(patch.reason) > 80


def _untested(plan: Plan) -> str | None:
    names = [
        f"{patch.distribution} {patch.version}"
        for patch in plan.patches
        if patch.version and not patch.tested and patch.outcome is not Outcome.OUT_OF_RANGE
    ]
    if not names:
        return None
    return f"{names[0]} was not among the releases this kvpatch was tested on; its anchors decide"


def _ids(plan: Plan, outcome: Outcome) -> list[str]:
    return [patch.id for patch in plan.patches if patch.outcome is outcome]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


def series_text(members: Sequence[Member]) -> str:
    """The patches in series order, one a line."""
    rows = [("patch", "for", "what it does")]
    rows += [(m.id, f"{m.patch.distribution} {m.patch.versions}", m.title) for m in members]
    return "\n".join(_table(rows))


def patch_details(member: Member) -> str:
    """All that a patch says of itself."""
    patch = member.patch
    rows = [
        ("for", f"{patch.distribution} {patch.versions}"),
        ("why", patch.why),
        ("how", patch.how),
        *(("file", f"{target.path} ({target.versions})") for target in patch.targets),
        *(("needs", f"{need.id} ({need.versions})") for need in patch.needs),
        *([("when", patch.when.sentence)] if patch.when else []),
        ("upstream", patch.upstream),
        ("retire when", patch.retire_when),
        ("proved", patch.proved),
    ]
    return "\n".join([f"{member.id}  {member.title}", "", *_table(rows)])


def revert_text(done: Reverted, *, dry_run: bool) -> str:
    """What was put back, and what has to happen next."""
    if not done.files and not done.archives:
        if done.cleaned_up:
            return "cleaned up after a run that stopped half way; no file had to be put back"
        return "there is nothing to revert: no journal of kvpatch for this environment"
    several = len({file.site for file in done.files}) > 1
    rows = [(f.state, f"{f.site}/{f.path}" if several else f.path) for f in done.files]
    lines = _table([("outcome", "file"), *rows]) if rows else []
    for folder in done.archives:
        kept = "a copy of what was there is" if folder in done.copies else "the originals are kept"
        lines.append(f"{kept} in {folder}")
    lines += swept_lines(done.swept, dry_run=dry_run)
    if dry_run:
        return "\n".join([*lines, "", "nothing was written: this was a dry run"])
    if done.swept or any(file.state == PUT_BACK for file in done.files):
        lines += ["", RESTART]
    return "\n".join(lines)


def swept_lines(files: Sequence[Path], *, dry_run: bool) -> list[str]:
    """Which bytecode went because Python would have run it instead of what is there."""
    return [f"{'would remove' if dry_run else 'removed'} {old_bytecode(file)}" for file in files]


def old_bytecode(file: Path) -> str:
    """What is the matter with such a file."""
    return f"{file}, bytecode of another source that Python takes unchecked"
