"""What would be done to a source tree, as a pure function of the series and the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from .fold import FilePlan as FilePlan
from .fold import Options as Options
from .fold import TargetPlan as TargetPlan
from .fold import plan_file
from .outcome import Outcome, worst
from .patch import GOAL as GOAL
from .patch import Refusal, Target
from .tree import PACKAGES, Package, Tree

if TYPE_CHECKING:
    from .series import Member, Series


@dataclass(frozen=True)
class PatchPlan:
    """What a plan says about one patch."""

    id: str
    title: str
    package: str
    distribution: str
    version: str | None
    outcome: Outcome
    reason: str
    tested: bool
    cures: tuple[str, ...]
    targets: tuple[TargetPlan, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What would be done to a tree, patch by patch and file by file."""

    patches: tuple[PatchPlan, ...]
    files: tuple[FilePlan, ...]

    @property
    def refused(self) -> tuple[PatchPlan, ...]:
        """The patches for which nothing at all may be applied."""
        return tuple(patch for patch in self.patches if patch.outcome.refused)

    @property
    def goal_holds(self) -> bool:
        """Whether a cure of the missing registration is in place or pending."""
        cures = [patch.outcome for patch in self.patches if GOAL in patch.cures]
        return any(outcome.in_place or outcome is Outcome.PENDING for outcome in cures)

    @property
    def changes(self) -> tuple[FilePlan, ...]:
        """The files that applying would change; none where a patch is refused."""
        return () if self.refused else tuple(item for item in self.files if item.pending)


def plan(series: Series, tree: Tree, options: Options | None = None) -> Plan:
    """Plan the series over the tree; nothing is written and no file outside the tree is read.

    Args:
        series: the chosen patches, in order.
        tree: the installed environment, a folder, or a wheel.
        options: how far the plan may go; cautious by default.
    """
    options = options or Options()
    verdicts: dict[str, PatchPlan] = {}
    work: dict[tuple[str, str], list[tuple[Member, Target]]] = {}
    for member in series.members:
        verdict, targets = _aim(member, tree, options)
        if verdict is not None:
            verdicts[member.id] = verdict
        for target in targets:
            work.setdefault((member.patch.distribution, target.path), []).append((member, target))
    for name in PACKAGES:
        for path in tree.owned(name):
            work.setdefault((name, path), [])
    files: list[FilePlan] = []
    told: dict[str, list[TargetPlan]] = {}
    for (name, path), items in work.items():
        package = tree.package(name)
        if package is None:
            continue
        file, outcomes = plan_file(tree, name, package, path, items, options)
        if file is not None:
            files.append(file)
        for patch_id, target_plan in outcomes.items():
            told.setdefault(patch_id, []).append(target_plan)
    for member in series.members:
        if member.id not in verdicts:
            verdicts[member.id] = _conclude(member, tree, told[member.id], options)
    return Plan(tuple(verdicts[member.id] for member in series.members), tuple(files))


def _aim(
    member: Member, tree: Tree, options: Options
) -> tuple[PatchPlan | None, tuple[Target, ...]]:
    """Either a verdict that needs no file, or the files to look at."""
    patch = member.patch
    package = tree.package(patch.distribution)
    if package is None:
        reason = f"{patch.distribution} is not installed here"
        return _verdict(member, None, Outcome.NOT_INSTALLED, reason, options), ()
    if not patch.in_range(package.release):
        reason = f"{patch.distribution} {package.version} is not in {patch.versions}"
        return _verdict(member, package, Outcome.OUT_OF_RANGE, reason, options), ()
    if patch.when is not None:
        pair = {
            name: found.release for name in PACKAGES if (found := tree.package(name)) is not None
        }
        if not patch.when.holds(pair):
            reason = f"needed only when {patch.when.sentence}"
            return _verdict(member, package, Outcome.NOT_NEEDED, reason, options), ()
    targets = [
        target
        for target in patch.targets
        if SpecifierSet(target.versions).contains(package.release, prereleases=True)
    ]
    if not targets:
        reason = f"the patch names no file for {patch.distribution} {package.version}"
        return _verdict(member, package, Outcome.MISSING, reason, options), ()
    shared: dict[str, list[Target]] = {}
    for target in targets:
        shared.setdefault(target.file or target.path, []).append(target)
    there: list[Target] = []
    for alternatives in shared.values():
        present = alternatives
        if len(alternatives) > 1:
            present = [t for t in alternatives if _exists(tree, patch.distribution, t.path)]
        if len(present) > 1:
            reason = f"{' and '.join(t.path for t in present)} are both there, and one is expected"
            return _verdict(member, package, Outcome.AMBIGUOUS, reason, options), ()
        there += present or alternatives
    return None, tuple(there)


def _exists(tree: Tree, name: str, path: str) -> bool:
    try:
        return tree.source(name, path) is not None
    except Refusal:
        return True


def _conclude(
    member: Member, tree: Tree, targets: Sequence[TargetPlan], options: Options
) -> PatchPlan:
    outcome = worst([item.outcome for item in targets])
    reason = "; ".join(dict.fromkeys(i.reason for i in targets if i.outcome is outcome))
    verdict = _verdict(member, tree.package(member.patch.distribution), outcome, reason, options)
    return replace(verdict, targets=tuple(targets))


def _verdict(
    member: Member, package: Package | None, outcome: Outcome, reason: str, options: Options
) -> PatchPlan:
    known = options.known
    return PatchPlan(
        id=member.id,
        title=member.title,
        package=member.patch.distribution,
        distribution=package.distribution if package else member.patch.distribution,
        version=str(package.version) if package else None,
        outcome=outcome,
        reason=reason,
        tested=bool(known and package and known.tested(member.patch.distribution, package.version)),
        cures=member.patch.cures,
    )


def as_applied(planned: Plan) -> Plan:
    """The plan once it is committed: what was pending is applied, and the files are ours."""
    patches = tuple(
        replace(
            patch,
            outcome=Outcome.APPLIED if patch.outcome is Outcome.PENDING else patch.outcome,
            reason="put in" if patch.outcome is Outcome.PENDING else patch.reason,
            targets=tuple(
                replace(target, outcome=Outcome.APPLIED, reason="put in")
                if target.outcome is Outcome.PENDING
                else target
                for target in patch.targets
            ),
        )
        for patch in planned.patches
    )
    files = tuple(
        replace(file, state="pristine" if file.after == file.original else "ours")
        if file.pending
        else file
        for file in planned.files
    )
    return Plan(patches, files)
