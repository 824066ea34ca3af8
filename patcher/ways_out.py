"""What a user can take instead, where a profile can't run on a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from packaging.version import Version

from .outcome import KvpatchError
from .templates import Pair, Template, load, names

Judged = Callable[[Version | None, Version | None], Pair]
"""A pair of LMCache and vLLM with the patches that are made for it."""


def ways_out(
    template: Template,
    pair: Pair,
    judged: Judged,
    lmcache: Iterable[Version],
    vllm: Iterable[Version],
) -> str:
    """The nearest releases that can run the profile, and the profile that this pair can run.

    Args:
        template: of the profile that this pair can't run.
        pair: the pair.
        judged: makes a pair that nobody looked at.
        lmcache: the releases of it that are known.
        vllm: the same.

    Returns:
        a sentence without its full stop; empty where nothing is known that can.
    """
    found: list[str] = []
    if pair.lmcache is not None:
        release = _nearest(pair.lmcache, lmcache, lambda one: can(template, judged(one, pair.vllm)))
        if release is not None:
            found.append(f"LMCache {release}")
    if not found and pair.vllm is not None:
        release = _nearest(pair.vllm, vllm, lambda one: can(template, judged(pair.lmcache, one)))
        if release is not None:
            found.append(f"vLLM {release}")
    found += [f"the profile {name}" for name in _others(template, pair)][:1]
    return f"take {', or '.join(found)}" if found else ""


def can(template: Template, pair: Pair) -> bool:
    """Whether nothing keeps a profile from a pair for good."""
    try:
        template.require(pair)
    except KvpatchError:
        return False
    return True


def _others(template: Template, pair: Pair) -> Iterator[str]:
    """Other profiles that the pair can run, the nearest first."""
    first = template.own.get("nearest", "cpu-offload")
    for name in dict.fromkeys((first, "cpu-offload", *names())):
        other = load(name)
        alone = replace(pair, lmcache=None) if other.kind == "vllm" else pair
        if name != template.name and can(other, alone):
            yield name


def _nearest(
    given: Version, releases: Iterable[Version], fits: Callable[[Version], bool]
) -> Version | None:
    """The nearest release that fits: newer before older, final before prerelease."""
    newer = sorted(one for one in releases if one > given)
    older = sorted((one for one in releases if one < given), reverse=True)
    ordered = [*newer, *older]
    ordered.sort(key=lambda one: one.is_prerelease)
    return next((one for one in ordered if fits(one)), None)
