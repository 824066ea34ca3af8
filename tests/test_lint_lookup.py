"""Rules about how prompts are looked up, on real releases and against their source."""

from __future__ import annotations

import re
from functools import cache

import pytest
from commands import kvpatch
from kvpatch import rules
from kvpatch.lint_lookup import ASSERTS, BY_LAYER
from linted import BLEND, NEWEST, ids, only, run, schema
from packaging.version import Version
from releases import lmcache_releases, whole_release

pytestmark = pytest.mark.releases

RELEASES = [str(one) for one in lmcache_releases()]
ASYNC = "enable_async_loading: true\n"
MOONCAKE = "external_lookup_client: mooncakestore://h:1\n"


@cache
def source(release: str, name: str) -> str:
    """The text of one of a release's in-process files; empty where it has none of that name."""
    wheel = whole_release("lmcache", release)
    place = rf"lmcache/(v1|inprocess/v1)/{re.escape(name)}"
    return "".join(
        (wheel.read(path) or b"").decode() for path in wheel.entries if re.fullmatch(place, path)
    )


@pytest.mark.parametrize("release", RELEASES)
def test_what_the_rules_stand_on_holds_in_the_source_of_a_release(release: str) -> None:
    client = source(release, "lookup_client/lmcache_async_lookup_client.py")
    assert bool(client) is ("enable_async_loading" in schema(release).keys)
    # The lengths of segments are all that is sent, so that nobody knows where each one stands.
    assert ("offsets.append(end - start)" in client) is bool(client)
    assert ("SegmentTokenDatabase(" in client) is bool(client)
    whole = source(release, "cache_engine.py")
    found = re.search(r"def async_lookup_and_prefetch.*?(?=\n    (?:def|@))", whole, re.S)
    assert bool(found) is bool(client)
    by_layer = found is not None and "split_layers" in found[0]
    assert by_layer is (Version(release) >= BY_LAYER)
    external = source(release, "lookup_client/mooncake_lookup_client.py")
    assert "ChunkedTokenDatabase(config" in external
    assert ("assert not config.enable_blending" in external) is (Version(release) >= ASSERTS)
    # The only other place that asks for no blending would be news.
    schemes = re.findall(r'scheme == "(\w+)"', source(release, "lookup_client/factory.py"))
    assert schemes == ["mooncakestore"]


@pytest.mark.parametrize(
    ("release", "told"),
    [
        (NEWEST, "counts segments without the separators"),
        ("0.4.6", "counts segments without the separators"),
        ("0.4.5", "use_layerwise keeps each layer by itself"),
        ("0.3.6", "use_layerwise keeps each layer by itself"),
    ],
)
def test_asynchronous_loading_does_not_go_with_blending(release: str, told: str) -> None:
    finding = only(run(BLEND + ASYNC, release), rules.LOOKUP)
    assert told in finding.message
    assert (finding.key, finding.level) == ("enable_async_loading", rules.Level.ERROR)
    assert finding.fix is not None
    assert finding.fix.value is False
    assert "lookup-without-segments" not in ids(run(BLEND, release))


def test_asynchronous_loading_by_layers_finds_nothing_on_older_releases_alone() -> None:
    layers = f"use_layerwise: true\n{ASYNC}"
    assert "nothing is found" in only(run(layers, "0.4.5"), rules.LOOKUP).message
    for text, release in ((layers, NEWEST), (ASYNC, NEWEST), (ASYNC, "0.4.5")):
        assert "lookup-without-segments" not in ids(run(text, release))


@pytest.mark.parametrize(
    ("release", "told"),
    [(NEWEST, "stops at external_lookup_client"), ("0.3.4", "knows no segments")],
)
def test_an_external_client_does_not_look_up_segments(release: str, told: str) -> None:
    finding = only(run(BLEND + MOONCAKE, release), rules.LOOKUP)
    assert told in finding.message
    assert finding.message.endswith("leave out external_lookup_client")
    assert "lookup-without-segments" not in ids(run(MOONCAKE, release))


@pytest.mark.parametrize(
    ("share", "found"), [("0.3", True), ("1", True), ("0", False), ("2", False)]
)
def test_a_share_of_misses_cuts_segments(share: str, found: bool) -> None:
    linted = run(f"{BLEND}hit_miss_ratio: {share}\n")
    assert ("lookup-without-segments" in ids(linted)) is found
    if found:
        assert only(linted, rules.LOOKUP).key == "hit_miss_ratio"
    assert "lookup-without-segments" not in ids(run(f"hit_miss_ratio: {share}\n"))


def test_a_profile_takes_no_such_value() -> None:
    more = ("--lmcache", NEWEST, "--vllm", "0.32.0", "--json")
    for change in ("enable_async_loading=true", "external_lookup_client=mooncakestore://h:1"):
        ended = kvpatch("profile", "blend", "--set", change, *more)
        assert (ended.code, ended.error["code"]) == (2, "bad-value")
        assert "(LM048)" in ended.error["hint"]
        assert kvpatch("profile", "cpu-offload", "--set", change, *more).code == 0
