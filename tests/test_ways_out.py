"""What can be taken instead of a pair that can't run a profile: always something that can."""

from __future__ import annotations

import re

import pytest
from kvpatch.catalogue import load as catalogue
from kvpatch.curing import curable
from kvpatch.templates import load
from kvpatch.ways_out import can, ways_out
from packaging.version import Version

KNOWN = catalogue().releases
LMCACHE = [Version(one) for one in KNOWN["lmcache"]]
VLLM = [Version(one) for one in KNOWN["vllm"]]


def told(profile: str, lmcache: str, vllm: str | None) -> str:
    pair = curable(Version(lmcache), Version(vllm) if vllm else None)
    assert not can(load(profile), pair)
    return ways_out(load(profile), pair, curable, LMCACHE, VLLM)


@pytest.mark.parametrize(
    ("profile", "lmcache", "vllm", "expected"),
    [
        ("gds", "0.4.3", "0.32.0", "take LMCache 0.4.4, or the profile cpu-offload"),
        ("gds-blend", "0.3.5", "0.11.0", "take LMCache 0.4.4, or the profile blend"),
        ("gds-blend", "0.5.7rc2", "0.32.0", "take LMCache 0.5.6, or the profile cpu-offload"),
        ("blend", "0.4.5", "0.32.0", "take LMCache 0.4.7, or the profile cpu-offload"),
        ("blend", "0.3.12", "0.24.0", "take LMCache 0.3.14, or the profile native-offload"),
    ],
)
def test_the_nearest_release_and_profile_are_named(
    profile: str, lmcache: str, vllm: str, expected: str
) -> None:
    assert told(profile, lmcache, vllm) == expected


@pytest.mark.parametrize(
    ("profile", "vllm"),
    [("gds", "0.8.5"), ("gds-blend", "0.12.0"), ("gds-blend", "0.33.0"), ("blend", "0.24.0")],
)
def test_what_is_named_can_run_it(profile: str, vllm: str) -> None:
    template, refused = load(profile), 0
    for lmcache in LMCACHE[::3]:
        pair = curable(lmcache, Version(vllm))
        if can(template, pair):
            continue
        refused += 1
        sentence = ways_out(template, pair, curable, LMCACHE, VLLM)
        assert sentence, (lmcache, vllm)
        for name, found in re.findall(r"(LMCache|vLLM) ([\w.]+\w)", sentence):
            release = Version(found)
            other = (release, pair.vllm) if name == "LMCache" else (lmcache, release)
            assert can(template, curable(*other)), sentence
        for name in re.findall(r"the profile ([\w-]+)", sentence):
            assert name != profile
            assert can(load(name), pair), sentence
    assert refused


def test_a_final_release_is_named_before_a_prerelease() -> None:
    found = [Version("0.5.4rc3"), Version("0.5.4"), Version("0.4.3")]
    pair = curable(Version("0.4.3"), Version("0.32.0"))
    assert "LMCache 0.5.4," in ways_out(load("gds"), pair, curable, found, [])
    assert "LMCache 0.5.4rc3," in ways_out(load("gds"), pair, curable, found[:1], [])
