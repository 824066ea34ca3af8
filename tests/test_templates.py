"""Templates: whole, about known things alone, and right about what concerns a pair."""

from __future__ import annotations

from typing import Any

import pytest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.templates import Pair, concerns, like, load, names, profiles, require
from packaging.specifiers import SpecifierSet
from packaging.version import Version

LISTS = ("refusals", "needs", "warnings", "concepts")


@pytest.mark.parametrize("name", names())
def test_a_template_names_only_what_the_common_part_has(name: str) -> None:
    template = load(name)
    for kind in LISTS:
        assert set(template.own.get(kind, ())) <= set(template.common[kind]), kind
    assert template.kind in ("lmcache", "vllm", "server")
    assert template.own.get("nearest", "cpu-offload") in names()
    for spec in template.own["tested"].values():
        assert SpecifierSet(spec)


def test_everything_of_the_common_part_is_used_by_a_template() -> None:
    common = load("gds").common
    used: dict[str, set[str]] = {kind: set() for kind in LISTS}
    for name in names():
        for kind in LISTS:
            used[kind] |= set(load(name).own.get(kind, ()))
    used["warnings"] |= {need["else"] for need in common["needs"].values() if "else" in need}
    assert used == {kind: set(common[kind]) for kind in LISTS}


@pytest.mark.parametrize(
    ("pairs", "vllm", "expected"),
    [
        (None, "0.1", True),
        ([{"vllm": ">=0.26"}], "0.26.0", True),
        ([{"vllm": ">=0.26"}], "0.25.1", False),
        ([{"vllm": ">=0.26"}], None, None),
        ([{"vllm": ">=0.26", "lmcache": "<0.5"}], None, False),
        ([{"lmcache": "<0.5"}, {"lmcache": ">0.5"}], None, True),
    ],
)
def test_what_concerns_a_pair_hangs_on_what_is_known(
    pairs: list[dict[str, str]] | None, vllm: str | None, expected: bool | None
) -> None:
    what: dict[str, Any] = {} if pairs is None else {"pairs": pairs}
    pair = Pair(Version("0.5.6"), Version(vllm) if vllm else None)
    assert concerns(what, pair) is expected


@pytest.mark.parametrize("name", [name for name in names() if load(name).kind == "lmcache"])
def test_a_profile_is_found_by_what_it_does(name: str) -> None:
    template = load(name)
    assert like(blends=template.blends, gds=template.gds).name == name


def test_an_unknown_profile_is_usage() -> None:
    with pytest.raises(KvpatchError) as caught:
        require("gdsblend")
    assert caught.value.exit_code is ExitCode.USAGE
    assert "gds-blend" in caught.value.hint


def test_every_profile_says_what_it_is_for() -> None:
    assert [one.name for one in profiles()] == names()
    assert all(one.purpose for one in profiles())
    blends = {name for name in names() if load(name).blends}
    assert blends == {"blend", "gds-blend"}


@pytest.mark.parametrize(
    ("name", "lmcache", "mended"),
    [
        ("gds-blend", "0.4.4", True),
        ("gds", "0.5.3", True),
        ("gds", "0.5.4", False),
        ("blend", "0.4.4", False),
    ],
)
def test_a_release_that_a_newer_one_makes_right_is_known(
    name: str, lmcache: str, mended: bool
) -> None:
    assert load(name).mended(Pair(Version(lmcache), Version("0.32.0"))) is mended


@pytest.mark.parametrize("name", names())
def test_what_blending_asks_of_the_gpu_is_told_by_profiles_that_blend(name: str) -> None:
    template = load(name)
    told = " ".join(template.warnings(Pair(Version("0.5.6"), Version("0.32.0"))))
    assert ("--gpu-memory-utilization leave room" in told) is template.blends
