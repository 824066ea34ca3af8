"""A host's environment opened for a verb: located, its journals read, and planned on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from . import bytecode
from . import catalogue as catalogue_module
from .absence import mark
from .fsops import Disk
from .installed import InstalledTree, Site
from .journal import Store
from .ledger import MARK
from .links import content_of
from .locate import Environment, FileFacts, file_facts, locate
from .outcome import KvpatchError
from .patch import Refusal
from .plan import Options, Plan, plan
from .series import Selection, discover, select
from .staleness import CHANGED, staleness
from .standing import Standing as Standing
from .standing import standing_of
from .steps import SiteState
from .tree import Package, Provenance, Source

if TYPE_CHECKING:
    from .processes import Running


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
    options: Options = field(default_factory=Options)


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
        """Release of each located package, by which patches are chosen."""
        return {name: package.release for name, package in self._packages.items()}

    @property
    def exact(self) -> Mapping[str, Version]:
        """The version that each located package has, of which alone something was validated."""
        return {name: package.version for name, package in self._packages.items()}

    @property
    def _packages(self) -> Mapping[str, Package]:
        found = {name: self.tree.package(name) for name in self.environment.packages}
        return {name: package for name, package in found.items() if package}

    @property
    def places(self) -> tuple[SiteState, ...]:
        """The site folders as a transaction takes them."""
        return tuple(
            SiteState(site.path, site.store, self.tree.owners(site.path))
            for site in self.sites.values()
        )

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """What became of every file that kvpatch wrote here, by the journals."""
        return tuple(
            standing_of(site.path, site.journal, path, state, owners)
            for site in self.sites.values()
            if site.journal is not None
            for owners in (self.tree.owners(site.path),)
            for path, state in staleness(site.journal, owners).items()
        )

    @cached_property
    def in_place(self) -> frozenset[str]:
        """The patches whose work stands in some file as kvpatch wrote it, by the journals."""
        written = [s.written for s in self._owned if s.provenance is Provenance.OURS]
        return frozenset(patch_id for ids in written for patch_id in ids)

    @cached_property
    def in_edited(self) -> Mapping[str, frozenset[str]]:
        """Path to the patches that kvpatch wrote into a file that somebody changed since."""
        changed = [s for s in self._owned if s.provenance is Provenance.OTHER and s.written]
        return {source.path: frozenset(source.written) for source in changed}

    @cached_property
    def _owned(self) -> tuple[Source, ...]:
        """The files that the journals have, as they stand."""
        found = []
        for name in self.environment.packages:
            for path in self.tree.owned(name):
                with contextlib.suppress(Refusal):
                    found.append(self.tree.source(name, path))
        return tuple(source for source in found if source is not None)

    @cached_property
    def orphans(self) -> Mapping[str, str]:
        """Path to distribution of each file with code of kvpatch that no journal here takes out."""
        kept = {item.path for item in self.standings if item.state == CHANGED}
        known = (Provenance.OURS, Provenance.PRISTINE)
        found = {}
        for name, installed in self.environment.packages.items():
            for path in (path for path in _targets() if path.startswith(f"{name}/")):
                with contextlib.suppress(Refusal, KvpatchError):
                    source = self.tree.source(name, path) if path not in kept else None
                    if source and source.provenance not in known and MARK in source.content:
                        found[path] = installed.distribution
        return found

    @property
    def interrupted(self) -> bool:
        """Whether a run was stopped half way and the next writing verb has to clean up."""
        return any(
            site.journal is not None and site.journal.unfinished for site in self.sites.values()
        )


@dataclass(frozen=True)
class View:
    """A host with what a verb planned on it."""

    host: Host
    selection: Selection
    plan: Plan
    running: tuple[Running, ...] = ()
    facts: Mapping[str, FileFacts] = field(default_factory=dict)
    unwritable: str | None = None
    """Why a journal can't be written, where somebody looked."""
    taken_out: tuple[str, ...] = ()
    """The patches that are in place and not part of the plan: apply takes them out again."""
    stuck: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Path to the patches that are not part of the plan, in a file that was changed since."""
    left_out: tuple[str, ...] = ()
    """The patches for these releases that are neither chosen nor in place."""
    built_in: Mapping[str, str] = field(default_factory=dict)
    """The patches that are not part of the plan to a file with their code that no journal has."""


def open_host(where: Where, disk: Disk, *, needs: str | None = "vllm") -> Host:
    """Locate the environment and read its journals; nothing is written.

    Raises:
        KvpatchError: where there is no vLLM, or a journal can't be trusted.
    """
    return _opened(locate(where.python, where.site, needs=needs), where, disk)


def open_site(where: Where, disk: Disk) -> Host:
    """Open the site folder that was given by its journal alone, whatever is installed there."""
    return _opened(Environment(None, {}), where, disk)


def _opened(environment: Environment, where: Where, disk: Disk) -> Host:
    folders = dict.fromkeys(installed.site for installed in environment.packages.values())
    if where.site is not None:
        folders.setdefault(where.site.absolute())
    sites: dict[Path, Site] = {}
    for folder in folders:
        store = Store.of(folder, where.state, disk)
        sites[folder] = Site(folder, store, store.read())
    return Host(environment, InstalledTree(environment, sites), where)


def view(host: Host, choice: Choice) -> View:
    """Plan the chosen patches on the host.

    Where another run wrote between journal and files, both are read once more.

    Raises:
        KvpatchError: for a choice that can't be.
    """
    for _ in range(_LOOKS):
        try:
            seen = _planned(host, choice)
        except KvpatchError:
            if (now := _as_it_is(host)) is None:
                raise
        else:
            if (now := _as_it_is(host)) is None:
                return seen
        host = now
    return _planned(host, choice)


_LOOKS = 5


def reread(host: Host) -> Host:
    """The host with the journals as they are now."""
    sites = {
        folder: replace(site, journal=site.store.read()) for folder, site in host.sites.items()
    }
    return replace(host, tree=replace(host.tree, sites=sites))


def _as_it_is(host: Host) -> Host | None:
    """The host with the journals as they are now; None where it has them."""
    now = reread(host)
    if all(site.journal == host.sites[folder].journal for folder, site in now.sites.items()):
        return None
    return now


def _planned(host: Host, choice: Choice) -> View:
    selection = select(discover(), host.versions, choice.only, choice.skip)
    options = replace(choice.options, known=catalogue_module.load())
    planned = plan(selection.series, host.tree, options)
    meant = {p.id for p in planned.patches if not p.outcome.elsewhere}
    taken_out = () if planned.refused else tuple(sorted(host.in_place - meant))
    stuck = {
        path: tuple(sorted(ids - meant)) for path, ids in host.in_edited.items() if ids - meant
    }
    gone = [patch for patch in selection.left_out if patch not in host.in_place]
    gone = [patch for patch in gone if not any(patch in ids for ids in stuck.values())]
    built_in = _built_in(host, gone)
    left_out = tuple(patch for patch in gone if patch not in built_in)
    return View(
        host,
        selection,
        planned,
        taken_out=taken_out,
        stuck=stuck,
        left_out=left_out,
        built_in=built_in,
    )


def _built_in(host: Host, patches: Sequence[str]) -> Mapping[str, str]:
    """Those patches whose code is in a file although no journal here has it, with that file."""
    found = {}
    for patch in (discover().get(patch_id).patch for patch_id in patches):
        for path in (target.path for target in patch.targets):
            with contextlib.suppress(Refusal, KvpatchError):
                source = host.tree.source(patch.distribution, path)
                stock = source and (source.content if source.original is None else source.original)
                if stock and mark(patch.id) in stock:
                    found[patch.id] = path
    return found


def unfit_bytecode(seen: View) -> dict[Path, str]:
    """Bytecode that Python would run in the place of a file of the plan, with that file's path."""
    prefixes = bytecode_prefixes(seen.host.environment)
    found: dict[Path, str] = {}
    for file in seen.plan.files:
        site = seen.host.environment.packages[file.package].site
        found |= dict.fromkeys(unfit_of(site, file.path, prefixes), file.path)
    return found


def beside(seen: View) -> dict[Path, str]:
    """What Python imports in the place of a file of the plan: a folder or a compiled module."""
    interpreter = seen.host.environment.interpreter
    version = "".join(map(str, interpreter.version[:2])) if interpreter else ""
    found: dict[Path, str] = {}
    for file in seen.plan.files:
        module = (seen.host.environment.packages[file.package].site / file.path).with_suffix("")
        compiled = (f".cpython-{version}*.so", ".abi3.so", ".so")
        for pattern in (f"{module.name}/__init__.py", *(f"{module.name}{end}" for end in compiled)):
            with contextlib.suppress(OSError):
                found |= dict.fromkeys(module.parent.glob(pattern), file.path)
    return found


def unfit_of(site: Path, path: str, prefixes: Sequence[str]) -> tuple[Path, ...]:
    """The bytecode that Python would run in the place of one file, as far as it can be read."""
    folders = dict.fromkeys((site.resolve(), site))
    with contextlib.suppress(KvpatchError, OSError):
        unchecked = tuple(bytecode.unchecked(folders, path, prefixes))
        content = content_of(f"{site}/{path}") if unchecked else None
        if content is not None:
            return tuple(one for one, header in unchecked if bytecode.is_unfit(header, content))
    return ()


def _targets() -> tuple[str, ...]:
    """The files of all patches, once each; none of a broken series, which reverting survives."""
    with contextlib.suppress(KvpatchError):
        paths = (target.path for m in discover().members for target in m.patch.targets)
        return tuple(dict.fromkeys(paths))
    return ()


def bytecode_prefixes(environment: Environment) -> tuple[str, ...]:
    """Where the target keeps bytecode apart from the sources, if it does."""
    interpreter = environment.interpreter
    if interpreter is None:
        prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    else:
        prefix = interpreter.pycache_prefix
    return (prefix,) if prefix else ()


def with_facts(seen: View) -> View:
    """The view with how each planned file lies in the environment: link, mode, writable."""
    facts: dict[str, FileFacts] = {}
    for file in seen.plan.files:
        with contextlib.suppress(KvpatchError):
            site = seen.host.environment.packages[file.package].site
            facts[file.path] = file_facts(site / file.path)
    return replace(seen, facts=facts)
