"""The profiles that come with kvpatch: what each is for, needs and can't be used on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .outcome import ExitCode, KvpatchError

_COMMON = "_common"
_NAMES = {"lmcache": "LMCache", "vllm": "vLLM"}
_APPLY = "run `kvpatch apply`"
# Whether a patch fits a release that nobody has read yet only the files of it can say.
_TRY = "try `kvpatch apply`, which is untested on this pair"


@dataclass(frozen=True)
class Pair:
    """What a profile is made for.

    Attributes:
        lmcache: its release; None for a profile that does without.
        vllm: its release; None where there is none.
        registered: whether the patches that tell LMCache of the model are in place; None where
            nobody looked.
        cured: for each patch of this kvpatch that is made for this pair, whether it is in place;
            None where nobody looked.
        curing: the patches that cure a letter on this pair.
        ranks: how many tensor-parallel ranks it is to run on.
        by_layer: whether LMCache is told to store and load layer by layer; with blending it does.
        absent: what of it is not installed where it is to run, such as ``LMCache 0.5.4``.
    """

    lmcache: Version | None
    vllm: Version | None = None
    registered: bool | None = None
    cured: Mapping[str, bool | None] = field(default_factory=dict)
    curing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ranks: int = 1
    by_layer: bool = False
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProfileNeed:
    """Something that has to hold besides a profile's file; ``present`` is None where it is unknown.

    ``id`` is that of a patch of this kvpatch, a letter of what patches cure, or a word for it;
    ``patches`` are those that see to it on this pair.
    """

    id: str
    what: str
    hint: str
    present: bool | None
    patches: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What it is, and the patches that see to it."""
        return f"{self.what} ({', '.join(self.patches)})" if self.patches else self.what


@dataclass(frozen=True)
class ProfileInfo:
    """What a template says of itself. ``tested`` has a specifier set for each distribution."""

    name: str
    purpose: str
    needs: tuple[str, ...]
    tested: Mapping[str, str]


@dataclass(frozen=True)
class Template:
    """One profile, with what it has in common with the others."""

    name: str
    own: Mapping[str, Any]
    common: Mapping[str, Any]

    @property
    def purpose(self) -> str:
        """What it is for."""
        return str(self.own["purpose"])

    @property
    def kind(self) -> str:
        """Who keeps the cache: ``lmcache``, ``vllm``, or LMCache's ``server``."""
        return str(self.own["kind"])

    @property
    def blends(self) -> bool:
        """Whether it turns blending on."""
        return bool(self.own.get("blends"))

    def by_layer(self, pair: Pair) -> bool:
        """Whether LMCache stores and loads layer by layer."""
        return self.blends or pair.by_layer

    @property
    def gds(self) -> bool:
        """Whether it keeps chunks on GDS storage."""
        return "gds_path" in self.own.get("settings", ())

    @cached_property
    def concepts(self) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        """The concepts it writes, in order."""
        return tuple((name, self.common["concepts"][name]) for name in self.own.get("concepts", ()))

    def needs(self, pair: Pair) -> tuple[ProfileNeed, ...]:
        """What has to hold besides the file on this pair."""
        return tuple(self._needs(pair))

    def _needs(self, pair: Pair) -> Iterator[ProfileNeed]:
        for name, need, concerned in self._concerned(pair):
            patches = _patches(name, need, pair)
            if need.get("given") == "registration":
                present, patches = pair.registered, (name,)
            elif patches:
                states = [pair.cured[patch] for patch in patches]
                present = None if None in states else all(states)
            elif "else" in need or concerned is None:
                continue
            else:
                hint = str(need["instead"]).format(nearest=self._nearest)
                yield ProfileNeed(name, str(need["what"]), hint, False)
                continue
            hint = _APPLY if self._known(pair) else _TRY
            if pair.absent:
                hint = f"install {' and '.join(pair.absent)}, then {hint}"
            yield ProfileNeed(name, str(need["what"]), hint, present, patches)

    def _concerned(self, pair: Pair) -> Iterator[tuple[str, Mapping[str, Any], bool | None]]:
        for name in self.own["needs"]:
            need = self.common["needs"][name]
            concerned = concerns(need, replace(pair, by_layer=self.by_layer(pair)))
            if concerned is not False:
                yield name, need, concerned

    @property
    def _nearest(self) -> str:
        return str(self.own.get("nearest", "cpu-offload"))

    def warnings(self, pair: Pair, served: str | None = None) -> tuple[str, ...]:
        """What has to be known of this pair, and of a model that vLLM is given so; None for any."""
        named = [*self.own["warnings"]]
        for name, need, _ in self._concerned(pair):
            if "else" in need and not _patches(name, need, pair):
                named.append(need["else"])
        found = (self.common["warnings"][name] for name in named)
        told = (
            str(one["sentence"])
            for one in found
            if concerns(one, pair) and (served is None or one.get("served", "") in served)
        )
        return (*self.untested(pair), *told)

    def mended(self, pair: Pair) -> bool:
        """Whether this pair is wrong as released in a way that newer releases are not."""
        found = (self.common["warnings"][name] for name in self.own["warnings"])
        return any(one.get("mended") and concerns(one, pair) for one in found)

    def untested(self, pair: Pair) -> Iterator[str]:
        """A sentence for each release that is newer than those this kvpatch knows."""
        for package, version, (oldest, newest) in self._outside(pair):
            name = _NAMES[package]
            yield (
                f"{name} {version} is untested: this kvpatch knows {name} {oldest} to {newest}. "
                "Whether this configuration or the patches fit it is not known."
            )

    def _known(self, pair: Pair) -> bool:
        return not any(self._outside(pair))

    def _outside(self, pair: Pair) -> Iterator[tuple[str, Version, tuple[Version, Version]]]:
        """The releases of a pair that the profile was not made for, and the range that it was."""
        for package, (oldest, newest) in self.made_for.items():
            version: Version | None = getattr(pair, package)
            # A local part, such as +cpu, makes no other release.
            if version is not None and not oldest <= Version(version.public) <= newest:
                yield package, version, (oldest, newest)

    @cached_property
    def made_for(self) -> Mapping[str, tuple[Version, Version]]:
        """The oldest and the newest release of each distribution that the profile is made for."""
        found = {}
        for package, spec in self.own["tested"].items():
            ends = sorted(Version(one.version) for one in SpecifierSet(spec))
            found[package] = (ends[0], ends[-1])
        return found

    def require(self, pair: Pair) -> None:
        """See that nothing keeps the profile from this pair for good.

        Raises:
            KvpatchError: ``no-cure``, exit 3, with the reason and the nearest that can.
        """
        for package, version, (oldest, newest) in self._outside(pair):
            if version < oldest:
                name = _NAMES[package]
                raise KvpatchError(
                    "no-cure",
                    f"{name} {version} is too old for {self.name}: kvpatch covers {name} {oldest} "
                    f"to {newest}",
                    f"take {name} {oldest} or newer",
                )
        for name in self.own["refusals"]:
            refusal = self.common["refusals"][name]
            if concerns(refusal, pair):
                raise KvpatchError(
                    "no-cure",
                    f"{shown(pair)} can't run {self.name}: {' '.join(refusal['why'].split())}",
                    refusal["instead"].format(nearest=self._nearest),
                )
        for need in self.needs(pair):
            if need.present is False and not need.patches:
                raise KvpatchError(
                    "no-cure",
                    f"{shown(pair)} can't run {self.name}. It needs this: {need.what}; this "
                    "kvpatch has no patch for that on this release",
                    need.hint,
                )

    def connector(self, pair: Pair) -> dict[str, Any]:
        """How the KV connector is named on this pair."""
        return dict(next(one["config"] for one in self.common["connectors"] if concerns(one, pair)))


def profiles() -> tuple[ProfileInfo, ...]:
    """What there is to make, by name."""
    found = []
    for name in names():
        template = load(name)
        needs = tuple(str(template.common["needs"][one]["what"]) for one in template.own["needs"])
        found.append(ProfileInfo(name, template.purpose, needs, template.own["tested"]))
    return tuple(found)


def names() -> list[str]:
    """The names of the profiles."""
    files = resources.files(f"{__package__}.profiles").iterdir()
    found = (file.name[: -len(".yaml")] for file in files if file.name.endswith(".yaml"))
    return sorted(name for name in found if not name.startswith("_"))


def require(name: str) -> None:
    """See that there is such a profile.

    Raises:
        KvpatchError: ``unknown-profile``, exit 2.
    """
    known = names()
    if name not in known:
        raise KvpatchError(
            "unknown-profile",
            f"there is no profile {name!r}",
            f"take one of: {', '.join(known)}",
            ExitCode.USAGE,
        )


def load(name: str) -> Template:
    """A profile.

    Raises:
        KvpatchError: ``unknown-profile``, exit 2.
    """
    require(name)
    return Template(name, _read(name), _read(_COMMON))


def like(*, blends: bool, gds: bool) -> Template:
    """The profile with an LMCache file that blends or not, and keeps chunks on GDS or not."""
    wanted = ("lmcache", blends, gds)
    return next(one for one in map(load, names()) if (one.kind, one.blends, one.gds) == wanted)


def concerns(what: Mapping[str, Any], pair: Pair) -> bool | None:
    """Whether it is about this pair; None where that hangs on a version that is not known."""
    applies = {"ranks": pair.ranks > 1, "layers": pair.by_layer}
    if not applies.get(what.get("when", ""), True):
        return False
    found = [_matches(specs, pair) for specs in what.get("pairs", [{}])]
    return True if True in found else None if None in found else False


def _patches(name: str, need: Mapping[str, Any], pair: Pair) -> tuple[str, ...]:
    """The patches that are made for this pair and see to a need."""
    named = need["patches"] if "patches" in need else pair.curing.get(name, ())
    return tuple(patch for patch in named if patch in pair.cured)


def shown(pair: Pair) -> str:
    """The releases of a pair, for a sentence."""
    beside = f"LMCache {pair.lmcache}" if pair.lmcache else ""
    vllm = f"vLLM {pair.vllm}" if pair.vllm else ""
    return " with ".join(part for part in (beside, vllm) if part)


def _read(name: str) -> Mapping[str, Any]:
    text = resources.files(f"{__package__}.profiles").joinpath(f"{name}.yaml").read_text("utf-8")
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


def _matches(specs: Mapping[str, str], pair: Pair) -> bool | None:
    unknown = False
    for package, spec in specs.items():
        version: Version | None = getattr(pair, package)
        if version is None:
            unknown = True
        elif not SpecifierSet(spec).contains(version, prereleases=True):
            return False
    return None if unknown else True
