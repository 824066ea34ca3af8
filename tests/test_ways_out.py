"""What can be taken instead of a pair that can't run a profile: always something that can."""

from __future__ import annotations

import re

import pytest
from kvpatch import pairs
from kvpatch.curing import curable
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.templates import load
from kvpatch.ways_out import can, instead, require
from packaging.version import Version

SHIPPED = pairs.load()
LMCACHE = [Version(one) for one in SHIPPED.lmcache]


def told(profile: str, lmcache: str, vllm: str | None) -> str:
    pair = curable(Version(lmcache), Version(vllm) if vllm else None)
    assert not can(load(profile), pair)
    return instead(profile, pair)


@pytest.mark.parametrize(
    ("profile", "lmcache", "vllm", "expected"),
    [
        ("gds", "0.4.3", "0.32.0", "take LMCache 0.5.4, or the profile cpu-offload"),
        ("gds-blend", "0.3.9", "0.11.0", "take LMCache 0.5.4, or the profile blend"),
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
        sentence = instead(profile, pair)
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
    assert "LMCache 0.5.4," in instead("gds", pair, found)
    assert "LMCache 0.5.4rc3," in instead("gds", pair, found[:1])


def test_a_profile_that_blends_goes_by_the_catalogue() -> None:
    template = load("blend")
    for (vllm, lmcache), known in SHIPPED.known.items():
        pair = curable(Version(lmcache), Version(vllm))
        assert can(template, pair, SHIPPED) is known.ok, (vllm, lmcache)


def test_the_release_is_the_one_that_status_names() -> None:
    refused = [pair for pair, known in SHIPPED.known.items() if not known.ok]
    for vllm, lmcache in refused[::20]:
        (first, *_) = SHIPPED.nearest(Version(vllm), Version(lmcache))
        name, release = first.split()[:2]
        told = instead("blend", curable(Version(lmcache), Version(vllm)))
        assert re.match(rf"take {name} {re.escape(release)}\b", told), (vllm, lmcache)


def test_a_pair_that_the_catalogue_alone_rules_out_is_refused_with_its_letters() -> None:
    pair = curable(Version("0.3.11"), Version("0.22.0"))
    load("blend").require(pair)
    with pytest.raises(KvpatchError, match=r"letters .* stay") as caught:
        require(load("blend"), pair)
    assert caught.value.exit_code is ExitCode.REFUSED
    require(load("cpu-offload"), pair)
