"""Values of ``--set`` on real releases: refused with lint's sentence where lint has an error."""

from __future__ import annotations

import pytest
from commands import kvpatch
from kvpatch import key_history
from kvpatch.curing import curable
from kvpatch.lint import lint
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.render import render
from kvpatch.rules import Level
from kvpatch.set_checks import check
from kvpatch.surroundings import Surroundings
from kvpatch.templates import Pair, load
from kvpatch.yaml_source import parse_yaml
from linted import schema
from packaging.version import Version

pytestmark = pytest.mark.releases

PAIR = ("--vllm", "0.32.0", "--lmcache", "0.5.6")


def pair_of(lmcache: str) -> Pair:
    return curable(Version(lmcache), Version("0.32.0" if lmcache == "0.5.6" else "0.11.0"))


def rendered(profile: str, lmcache: str, changes: dict[str, object]) -> str:
    return render(profile, schema(lmcache), pair_of(lmcache), {}, changes=changes).text


def checked(profile: str, changes: dict[str, object], lmcache: str = "0.5.6") -> str:
    before, after = rendered(profile, lmcache, {}), rendered(profile, lmcache, changes)
    check(load(profile), schema(lmcache), pair_of(lmcache), changes, before, after)
    return after


@pytest.mark.parametrize("lmcache", ["0.3.3", "0.5.6"])
@pytest.mark.parametrize(
    "changes",
    [
        {"chunk_size": "abc"},
        {"chunk_size": None},
        {"chunk_size": -5},
        {"local_cpu": [1]},
        {"max_local_cpu_size": "5GB"},
        {"use_layerwise": False},
        {"extra_config": 3},
    ],
)
def test_what_lint_has_an_error_for_is_refused_in_its_words(
    lmcache: str, changes: dict[str, object]
) -> None:
    with pytest.raises(KvpatchError) as caught:
        checked("blend", changes, lmcache)
    assert (caught.value.code, caught.value.exit_code) == ("bad-value", ExitCode.USAGE)
    text = rendered("blend", lmcache, changes)
    found = lint(parse_yaml(text), schema(lmcache), key_history.load(), Surroundings()).findings
    errors = [one.message for one in found if one.level is Level.ERROR]
    assert caught.value.message.removeprefix("--set: ") in errors


@pytest.mark.parametrize(
    ("profile", "value", "other"),
    [
        ("blend", False, "cpu-offload"),
        ("gds-blend", False, "gds"),
        ("cpu-offload", True, "blend"),
    ],
)
def test_blending_is_turned_by_another_profile(profile: str, value: bool, other: str) -> None:
    more = {"use_layerwise": True, "blend_recompute_ratios": [0.15], "blend_check_layers": [1]}
    rest = {**more, "save_unfull_chunk": True} if value else {}
    with pytest.raises(KvpatchError) as caught:
        checked(profile, {"enable_blending": value, **rest})
    assert (caught.value.code, caught.value.exit_code) == ("other-profile", ExitCode.USAGE)
    assert caught.value.hint == f"take the profile {other}"


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk_size": 512},
        {"enable_blending": True},
        {"extra_config.use_direct_io": True},
        {"gds_path": "/mnt/other"},
        {"cache_policy": "LFU"},
    ],
)
def test_what_lint_takes_is_taken_where_the_placeholder_alone_is_wrong(
    changes: dict[str, object],
) -> None:
    assert checked("gds-blend", changes)


def test_it_is_usage_and_no_file_is_made() -> None:
    ended = kvpatch("profile", "blend", *PAIR, "--set", "chunk_size=abc", "--json")
    assert (ended.code, ended.error["code"]) == (2, "bad-value")
    assert "abc is no whole number and becomes null" in ended.error["message"]
    both = ("--set", "extra_config={a: 1}", "--set", "extra_config.b=2")
    assert kvpatch("profile", "blend", *PAIR, *both).code == 2


def test_what_lint_warns_of_with_the_values_is_told_with_the_profile() -> None:
    remote = "remote_url=fs://host:0/tmp/x"
    told = kvpatch("profile", "blend", *PAIR, "--set", remote, "--json")
    warned = [one for one in told.data["warnings"] if "(LM045)" in one]
    assert len(warned) == 1
    assert "remote_url" in warned[0]
    alone = kvpatch("profile", "blend", *PAIR, "--set", remote, "--set", "local_cpu=false")
    assert alone.code == ExitCode.USAGE
    assert "LM045" in alone.err
    plain = kvpatch("profile", "blend", *PAIR, "--set", "chunk_size=512", "--json")
    assert not [one for one in plain.data["warnings"] if "(LM" in one]
