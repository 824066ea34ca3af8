"""A pair of releases with the patches that are made for it, and whether each is in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.version import Version

from .host import Choice, Host
from .outcome import Outcome
from .plan import GOAL, Options
from .series import discover
from .templates import Pair


def pair_on(host: Host, lmcache: Version, vllm: Version | None) -> Pair:
    """The installed pair, with whether each patch that is made for it is in place."""
    from . import host as hosts

    if vllm is None:
        return curable(lmcache, None)
    planned = hosts.view(host, Choice(options=Options(brief=True))).plan
    apart = (Outcome.OUT_OF_RANGE, Outcome.NOT_NEEDED, Outcome.NOT_INSTALLED)
    meant = [patch for patch in planned.patches if patch.outcome not in apart]
    goal = [patch.outcome.fine for patch in meant if GOAL in patch.cures]
    return Pair(
        lmcache,
        vllm,
        bool(goal) and all(goal),
        {patch.id: patch.outcome.fine for patch in meant},
        _by_letter([(patch.id, patch.cures) for patch in meant]),
    )


def curable(lmcache: Version | None, vllm: Version | None) -> Pair:
    """A pair that nobody looked at, with the patches that are made for its releases."""
    releases = {"lmcache": lmcache, "vllm": vllm}
    meant = [
        member.patch
        for member in discover().members
        if (release := releases.get(member.patch.distribution)) is not None
        and member.patch.in_range(release)
    ]
    letters = _by_letter([(patch.id, patch.cures) for patch in meant])
    return Pair(lmcache, vllm, None, {patch.id: None for patch in meant}, letters)


def _by_letter(found: Sequence[tuple[str, Sequence[str]]]) -> Mapping[str, tuple[str, ...]]:
    letters = {letter for _, cures in found for letter in cures}
    return {letter: tuple(one for one, cures in found if letter in cures) for letter in letters}
