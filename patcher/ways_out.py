"""What a user can take instead, where a profile can't run on a pair: the one source of advice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from packaging.version import Version

from . import pairs
from .curing import curable
from .outcome import KvpatchError
from .pairs import Pairs
from .templates import Pair, Template, load, names, shown


def require(template: Template, pair: Pair, shipped: Pairs | None = None) -> None:
    """See that nothing keeps a profile from a pair for good: releases, patches, the catalogue.

    Args:
        template: of the profile.
        pair: the pair.
        shipped: which pairs blend; None for what came with this kvpatch.

    Raises:
        KvpatchError: ``no-cure``, exit 3.
    """
    template.require(pair)
    if not template.blends or pair.lmcache is None or pair.vllm is None:
        return
    shipped = shipped or pairs.load()
    known = shipped.of(pair.vllm, pair.lmcache)
    if known is not None and not known.ok:
        raise KvpatchError(
            "no-cure",
            f"{shown(pair)} does not blend with the patches either, letters "
            f"{' '.join(known.after)} stay (validated on {shipped.date})",
            "take another pair: `kvpatch compat` says what the letters stand on",
        )


def instead(name: str, pair: Pair, releases: Iterable[Version] = ()) -> str:
    """The nearest releases that can run a profile, and the profile that this pair can run.

    A release that is right as released comes before one that a patch has to mend, and of equals
    the nearest, counted in releases, as :meth:`kvpatch.pairs.Pairs.nearest` does.

    Args:
        name: of the profile that this pair can't run.
        pair: the pair.
        releases: those of LMCache to choose from; all that are known where none are given.

    Returns:
        a sentence without its full stop; empty where nothing is known that can.
    """
    template, shipped = load(name), pairs.load()

    def judged(release: Version | None, vllm: Version | None) -> Pair:
        return replace(curable(release, vllm), by_layer=pair.by_layer)

    lmcache = sorted(releases) or [Version(one) for one in shipped.lmcache]
    found: list[str] = []
    if pair.lmcache is not None:
        release = _nearest(
            template, shipped, pair.lmcache, lmcache, lambda one: judged(one, pair.vllm)
        )
        if release is not None:
            found.append(f"LMCache {release}")
    if not found and pair.vllm is not None:
        vllm = [Version(one) for one in shipped.vllm]
        release = _nearest(
            template, shipped, pair.vllm, vllm, lambda one: judged(pair.lmcache, one)
        )
        if release is not None:
            found.append(f"vLLM {release}")
    alone = replace(pair, by_layer=False)
    if not can(template, pair, shipped) and can(template, alone, shipped):
        told = "leave use_layerwise off"
        return f"take {found[0]}, or {told}" if found else told
    other = next(_others(template, pair, shipped), None)
    if other is not None:
        found.append(f"the profile {other}")
    return f"take {', or '.join(found)}" if found else ""


def can(template: Template, pair: Pair, shipped: Pairs | None = None) -> bool:
    """Whether nothing keeps a profile from a pair for good."""
    try:
        require(template, pair, shipped)
    except KvpatchError:
        return False
    return True


def _others(template: Template, pair: Pair, shipped: Pairs) -> Iterator[str]:
    """Other profiles that the pair can run, the nearest first."""
    first = template.own.get("nearest", "cpu-offload")
    for name in dict.fromkeys((first, "cpu-offload", *names())):
        other = load(name)
        alone = replace(pair, lmcache=None) if other.kind == "vllm" else pair
        if name != template.name and can(other, alone, shipped):
            yield name


def _nearest(
    template: Template,
    shipped: Pairs,
    given: Version,
    releases: list[Version],
    judged: Callable[[Version], Pair],
) -> Version | None:
    """The nearest release that fits: right as released before mended, final before prerelease."""
    # A local part, such as +cpu, makes no other release.
    itself = Version(given.public)
    place = sum(one < itself for one in releases)

    def far(index: int) -> tuple[bool, bool, int, bool, int]:
        pair, release = judged(releases[index]), releases[index]
        known = None
        if template.blends and pair.vllm is not None and pair.lmcache is not None:
            known = shipped.of(pair.vllm, pair.lmcache)
        settings = known is not None and known.settings
        return template.mended(pair), release.is_prerelease, abs(index - place), settings, -index

    fitting = (
        index
        for index, one in enumerate(releases)
        if one != itself and can(template, judged(one), shipped)
    )
    best = min(fitting, key=far, default=None)
    return None if best is None else releases[best]
