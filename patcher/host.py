"""A host's environment opened for a verb: located, journals read; applied to, and reverted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from . import catalogue as catalogue_module
from .fsops import Disk
from .installed import InstalledTree, Site
from .journal import Store, state_directory
from .locate import Environment, compile_in_target, file_facts, locate
from .outcome import ExitCode, KvpatchError, Outcome
from .plan import GOAL, FilePlan, Options, PatchPlan, Plan, plan
from .processes import Running, running
from .series import Selection, Series, discover, select
from .transaction import Change, SiteChanges, commit, recover


@dataclass(frozen=True)
class Where:
    """What the user said about where to look: ``--python``, ``--site``, ``--state``."""

    python: Path | None = None
    site: Path | None = None
    state: Path | None = None


@dataclass(frozen=True)
class Choice:
    """What the user said about which patches, and how far to go."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    options: Options = Options()


@dataclass(frozen=True)
class Host:
    """A located environment with its journals."""

    environment: Environment
    tree: InstalledTree
    where: Where

    @property
    def sites(self) -> Mapping[Path, Site]:
        """The site folders that hold the located packages."""
        return self.tree.sites

    @property
    def versions(self) -> Mapping[str, Version]:
        """Release of each located package."""
        found = {name: self.tree.package(name) for name in self.environment.packages}
        return {name: package.release for name, package in found.items() if package}

    @property
    def interrupted(self) -> bool:
        """Whether a run was stopped half way and the next writing verb has to clean up."""
        return any(
            site.journal is not None and site.journal.phase != "applied"
            for site in self.sites.values()
        )


@dataclass(frozen=True)
class View:
    """A host with what a verb planned on it."""

    host: Host
    selection: Selection
    plan: Plan
    running: tuple[Running, ...] = ()


@dataclass(frozen=True)
class Applied:
    """What ``apply`` came to: the plan as it now stands, and whether anything was written."""

    view: View
    written: bool


def open_host(where: Where, disk: Disk) -> Host:
    """Locate the environment and read its journals; nothing is written.

    Raises:
        KvpatchError: where there is no vLLM, or a journal can't be trusted.
    """
    environment = locate(where.python, where.site)
    folders = dict.fromkeys(installed.site for installed in environment.packages.values())
    sites: dict[Path, Site] = {}
    for folder in folders:
        store = Store(state_directory(folder, where.state), disk)
        sites[folder] = Site(folder, store, store.read())
    return Host(environment, InstalledTree(environment, sites), where)


def view(host: Host, choice: Choice) -> View:
    """Plan the chosen patches on the host.

    Raises:
        KvpatchError: for a choice that can't be.
    """
    selection = select(discover(), host.versions, choice.only, choice.skip)
    options = replace(choice.options, known=catalogue_module.load())
    return View(host, selection, plan(selection.series, host.tree, options))


def apply(
    where: Where, choice: Choice, disk: Disk, *, while_running: bool = False, dry_run: bool = False
) -> Applied:
    """Put the chosen patches in, all or nothing; a dry run does all but write.

    Raises:
        KvpatchError: with what keeps it from being done; nothing is changed then.
    """
    host = open_host(where, disk)
    if host.interrupted and not dry_run:
        recover([(site.path, site.store) for site in host.sites.values()], disk=disk)
        host = open_host(where, disk)
    seen = view(host, choice)
    refuse(seen)
    if not seen.plan.changes:
        return Applied(seen, written=False)
    seen = replace(seen, running=() if while_running else running(host.environment))
    _refuse_running(seen.running)
    _check_target(host, seen.plan.changes)
    if dry_run:
        return Applied(seen, written=False)
    prefixes = _bytecode_prefixes(host.environment)
    commit(_site_changes(host, seen), disk=disk, pycache_prefixes=prefixes)
    return Applied(replace(seen, plan=_as_applied(seen.plan)), written=True)


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
            _way_out(first),
        )
    if not seen.plan.goal_holds:
        raise goal_missed(seen)


def goal_missed(seen: View) -> KvpatchError:
    """The error for a release for which no chosen patch cures the missing registration."""
    version = seen.host.environment.packages["vllm"].version
    cures = [m.patch for m in discover().members if GOAL in m.patch.cures]
    supported = " or ".join(dict.fromkeys(patch.versions for patch in cures))
    if any(patch.in_range(seen.host.versions["vllm"]) for patch in cures):
        return KvpatchError(
            "goal-missed",
            "none of the chosen patches registers the model, so CacheBlend can't start",
            "leave the choice to kvpatch: run it without --only and --skip",
        )
    return KvpatchError(
        "unsupported",
        f"vLLM {version} is not supported: no patch registers its model with LMCache",
        f"install a supported vLLM: {supported}",
    )


def supported_series(host: Host) -> Series:
    """Every patch, whatever was chosen."""
    return select(discover(), host.versions).series


def _way_out(first: PatchPlan) -> str:
    if first.outcome is Outcome.FOREIGN:
        return (
            f"reinstall {first.distribution} {first.version} and apply again; "
            "`--accept-foreign` patches on top of an edit, "
            "`--allow-unverified` trusts a file that has no hash"
        )
    if first.outcome is Outcome.CONFLICT:
        return f"make the file a plain one again: reinstall {first.distribution}, then apply"
    return "this release needs a newer kvpatch; `kvpatch validate` shows the releases that fit"


def _refuse_running(found: Sequence[Running]) -> None:
    if found:
        pids = ", ".join(str(process.pid) for process in found)
        raise KvpatchError(
            "running",
            f"vLLM is running from this environment (pid {pids})",
            "stop it first, or go on with --while-running and restart it afterwards",
        )


def _check_target(host: Host, changes: Sequence[FilePlan]) -> None:
    """See that every file can be replaced and that the target interpreter compiles the result."""
    for change in changes:
        site = host.environment.packages[change.package].site
        facts = file_facts(site / change.path)
        if not facts.writable:
            raise KvpatchError(
                "read-only",
                f"{site / change.path} can't be replaced: {facts.reason}",
                "run as a user who may write there, or patch the image that it comes from",
                ExitCode.ENVIRONMENT,
            )
    interpreter = host.environment.interpreter
    if interpreter is not None:
        sources = {change.path: change.after for change in changes if change.after is not None}
        for path, error in compile_in_target(interpreter, sources).items():
            raise KvpatchError(
                "does-not-compile",
                f"the patched {path} does not compile with {interpreter.executable}: {error}",
                "nothing was changed; report this with the output of `kvpatch diff`",
            )


def _site_changes(host: Host, seen: View) -> list[SiteChanges]:
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


def _as_applied(planned: Plan) -> Plan:
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


def _bytecode_prefixes(environment: Environment) -> tuple[str, ...]:
    interpreter = environment.interpreter
    if interpreter is None or interpreter.pycache_prefix is None:
        return ()
    return (interpreter.pycache_prefix,)
