"""What the verbs report of a plan as data for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from .host import Standing, View
from .locate import FileFacts
from .outcome import Outcome
from .plan import FilePlan, PatchPlan, Plan
from .series import Member
from .staleness import CHANGED, STALE


def plan_data(seen: View) -> dict[str, Any]:
    """``data`` of the verbs that plan: environment, patches, files, and the operator's answers."""
    environment = seen.host.environment
    python = environment.interpreter
    return {
        "environment": {
            "python": str(python.executable) if python else None,
            "packages": {
                name: {
                    "distribution": installed.distribution,
                    "version": installed.version,
                    "site": str(installed.site),
                    "editable": installed.editable,
                    "shadowed": [str(path) for path in installed.shadowed],
                }
                for name, installed in environment.packages.items()
            },
        },
        "patched": patched(seen.plan),
        "revertible": revertible(seen.host.standings) and not seen.host.orphans,
        "interrupted": seen.host.interrupted,
        "taken_along": list(seen.selection.taken_along),
        "taken_out": [*seen.taken_out, *seen.built_in],
        "left_out": list(seen.left_out),
        "running": [{"pid": item.pid, "command": item.command} for item in seen.running],
        "patches": [patch_data(patch) for patch in seen.plan.patches],
        "files": [file_data(file) for file in seen.plan.files],
        "links": [link_data(path, facts) for path, facts in seen.facts.items()],
    }


def patch_data(patch: PatchPlan) -> dict[str, Any]:
    """One entry of ``data.patches``."""
    return {
        "id": patch.id,
        "distribution": patch.distribution,
        "version": patch.version,
        "outcome": patch.outcome.value,
        "reason": patch.reason,
        "tested": patch.tested,
        "targets": [
            {"path": target.path, "outcome": target.outcome.value, "reason": target.reason}
            for target in patch.targets
        ],
    }


def link_data(path: str, facts: FileFacts) -> dict[str, Any]:
    """One entry of ``data.links``: how the file lies in the environment."""
    return {
        "path": path,
        "link": facts.link.value,
        "count": facts.count,
        "target": facts.target,
        "writable": facts.writable,
        "reason": facts.reason,
    }


def file_data(file: FilePlan) -> dict[str, Any]:
    """One entry of ``data.files``: sha256 before, and after an apply."""
    return {
        "path": file.path,
        "state": file.state,
        "before": file.before_digest,
        "after": file.after_digest,
    }


def patched(plan: Plan) -> bool:
    """Whether the plan has nothing more to put in, and each cure for this pair is in place."""
    cures = [patch.outcome for patch in plan.patches if patch.cures]
    if any(patch.outcome is Outcome.PENDING for patch in plan.patches):
        return False
    return any(one.in_place for one in cures) and all(one.fine for one in cures)


def revertible(standings: Sequence[Standing]) -> bool:
    """Whether there is something of kvpatch on this host, and a revert gets on with all of it."""
    return any(item.ours for item in standings) and not in_the_way(standings)


def in_the_way(standings: Sequence[Standing]) -> list[Standing]:
    """The files that keep a revert from going through, as :func:`kvpatch.draft.refuse` has them."""
    changed = [item for item in standings if item.state == CHANGED]
    if changed or any(item.comes_back for item in standings):
        return changed
    return [item for item in standings if item.state == STALE]


def pair_data(versions: Mapping[str, Version]) -> dict[str, Any] | None:
    """``data.pair``: what the catalogue knows of a pair of releases; None where one is missing.

    ``before`` and ``after`` are the letters as released and with all patches, None for a pair that
    the catalogue lacks; ``nearest`` are pairs to take instead of one that does not blend.
    """
    if not {"vllm", "lmcache"} <= set(versions):
        return None
    from . import pairs

    shipped, pair = pairs.load(), (versions["vllm"], versions["lmcache"])
    known = shipped.of(*pair)
    return {
        "before": list(known.before) if known else None,
        "after": list(known.after) if known else None,
        "ok": known.ok if known else None,
        "settings": known.settings if known else None,
        "tested": known is not None,
        "standing": shipped.standing(*pair),
        "nearest": [] if known and known.ok else list(shipped.nearest(*pair)),
    }


def refused_for(known: Mapping[str, Any] | None) -> str | None:
    """The letter for which apply refuses a pair, of what :func:`pair_data` knows of it."""
    after = known["after"] if known else None
    return next((letter for letter in after or () if letter in ("X", "C")), None)


def member_data(member: Member) -> Mapping[str, Any]:
    """One entry of ``data.series``."""
    patch = member.patch
    return {
        "id": patch.id,
        "title": member.title,
        "distribution": patch.distribution,
        "versions": patch.versions,
        "why": patch.why,
        "how": patch.how,
        "upstream": patch.upstream,
        "retire_when": patch.retire_when,
        "cures": list(patch.cures),
        "proved": patch.proved,
        "needs": [{"id": need.id, "versions": need.versions} for need in patch.needs],
        "when": patch.when.sentence if patch.when else None,
        "targets": [{"path": t.path, "versions": t.versions} for t in patch.targets],
        "digest": member.digest,
    }
