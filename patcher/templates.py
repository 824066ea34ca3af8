"""The profiles that come with kvpatch: what each is for, needs and can't be used on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .outcome import ExitCode, KvpatchError

_COMMON = "_common"


@dataclass(frozen=True)
class Pair:
    """What a profile is made for.

    Attributes:
        lmcache: its release; None for a profile that does without.
        vllm: its release; None where there is none.
        registered: whether the patches that tell LMCache of the model are in place; None where
            nobody looked.
        cured: for each letter that a patch of this kvpatch cures on this pair, whether that patch
            is in place; None where nobody looked.
    """

    lmcache: Version | None
    vllm: Version | None = None
    registered: bool | None = None
    cured: Mapping[str, bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ProfileNeed:
    """Something that has to hold besides a profile's file; ``present`` is None where it is unknown.

    ``id`` is that of a patch of this kvpatch, or a letter of what patches cure.
    """

    id: str
    what: str
    hint: str
    present: bool | None


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
        for name in self.own["needs"]:
            need = self.common["needs"][name]
            concerned = concerns(need, pair)
            if concerned is False:
                continue
            hint = str(need["hint"])
            if need.get("given") == "registration":
                present = pair.registered
            elif name in pair.cured:
                present = pair.cured[name]
                hint = "run `kvpatch apply`"
            else:
                present = False if concerned else None
            yield ProfileNeed(name, str(need["what"]), hint, present)

    def warnings(self, pair: Pair) -> tuple[str, ...]:
        """What has to be known of this pair."""
        found = (self.common["warnings"][name] for name in self.own["warnings"])
        return tuple(str(one["sentence"]) for one in found if concerns(one, pair))

    def outside(self, pair: Pair) -> Iterator[str]:
        """A sentence for each release that the profile was not made for."""
        for package, spec in self.own["tested"].items():
            version: Version | None = getattr(pair, package)
            if version is not None and not SpecifierSet(spec).contains(version, prereleases=True):
                yield f"This profile was made for {package} {spec}, not for {version}."

    def require(self, pair: Pair) -> None:
        """See that nothing keeps the profile from this pair for good.

        Raises:
            KvpatchError: ``no-cure``, exit 3, with the reason and the nearest that can.
        """
        for name in self.own["refusals"]:
            refusal = self.common["refusals"][name]
            if concerns(refusal, pair):
                beside = f"LMCache {pair.lmcache}" if pair.lmcache else ""
                shown = " with ".join(
                    part for part in (beside, f"vLLM {pair.vllm}" if pair.vllm else "") if part
                )
                raise KvpatchError(
                    "no-cure",
                    f"{shown} can't run {self.name}: {' '.join(refusal['why'].split())}",
                    refusal["instead"].format(nearest=self.own.get("nearest", "cpu-offload")),
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


def concerns(what: Mapping[str, Any], pair: Pair) -> bool | None:
    """Whether it is about this pair; None where that hangs on a version that is not known."""
    found = [_matches(specs, pair) for specs in what.get("pairs", [{}])]
    return True if True in found else None if None in found else False


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
