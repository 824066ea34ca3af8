"""Rules about names of keys and variables, on real releases."""

from __future__ import annotations

import pytest
from kvpatch import rules
from kvpatch.rules import Level
from linted import only, run, value

pytestmark = pytest.mark.releases


@pytest.mark.parametrize(
    ("old", "new", "since", "release"),
    [
        ("cufile_buffer_size: 4096", "gds_buffer_size", "0.4.4", "0.5.6"),
        ("blend_recompute_ratio: 0.15", "blend_recompute_ratios", "0.3.6", "0.5.6"),
        ("gds_buffer_size: 4096", "cufile_buffer_size", "0.4.4", "0.4.3"),
        ("max_local_cache_size: 5", "max_local_cpu_size", "lmcache.v1", "0.5.6"),
        ("blend_separator: x", "blend_special_str", "lmcache.v1", "0.5.6"),
        ("lmcache_worker_port: 1", "lmcache_worker_ports", "0.3.7", "0.5.6"),
    ],
)
def test_a_key_of_another_release_is_named_with_its_name_here(
    old: str, new: str, since: str, release: str
) -> None:
    found = only(run(f"{old}\n", release), rules.UNKNOWN_KEY)
    assert new in found.message
    assert since in found.message or "does not look there" in found.message
    assert found.fix is not None
    assert (found.fix.kind, found.fix.name) == ("rename", new)


def test_keys_inside_extra_config_are_checked_too() -> None:
    linted = run("extra_config:\n  use_cufile: true\n  gds_io_threads: 4\n  own_plugin: 1\n")
    found = {one.key: one.fix.name for one in linted.findings if one.fix}
    assert found == {
        "extra_config.use_cufile": "use_gds",
        "extra_config.gds_io_threads": "extra_config.disk_io_threads",
    }
    assert len(linted.findings) == 2
    assert run("extra_config: {use_cufile: true}\n", "0.4.3").findings == ()


def test_a_typing_error_has_the_nearest_key_and_no_certain_fix() -> None:
    found = only(run("chunksize: 3\n"), rules.UNKNOWN_KEY)
    assert "the nearest is chunk_size" in found.message
    assert found.fix is None
    assert (found.line, found.column) == (1, 1)
    assert "nearest" not in only(run("create_config: true\n"), rules.UNKNOWN_KEY).message


def test_an_alias_that_works_is_a_warning_and_one_that_does_not_is_an_error() -> None:
    assert only(run("external_backends: [a]\n"), rules.DEPRECATED).level is Level.WARNING
    assert value(run("external_backends: [a]\n"), "storage_plugins") == ["a"]
    dead = only(run("controller_url: a\n"), rules.UNKNOWN_KEY)
    assert "does not look there" in dead.message
    assert value(run("controller_url: a\n"), "controller_pull_url") is None


def test_a_look_alike_variable_is_named_with_the_right_one() -> None:
    environ = {
        "LMCACHE_CONFIG_FILE": "-",
        "LMCACHE_CHUNKSIZE": "1",
        "LMCACHE_CONFIG_PATH": "/x",
        "VLLM_LMCACHE_CHUNK_SIZE": "1",
        "LMCACHE_CUFILE_BUFFER_SIZE": "1",
        "LMCACHE_USE_CUFILE": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "LMCACHE_LOG_LEVEL": "INFO",
        "HOME": "/root",
    }
    found = {
        one.key: one.message
        for one in run("", environ=environ).findings
        if one.rule is rules.LOOK_ALIKE
    }
    assert set(found) == set(environ) - {
        "LMCACHE_CONFIG_FILE",
        "LMCACHE_TRACK_USAGE",
        "LMCACHE_LOG_LEVEL",
        "HOME",
    }
    assert "LMCACHE_CHUNK_SIZE" in found["LMCACHE_CHUNKSIZE"]
    assert "LMCACHE_CONFIG_FILE" in found["LMCACHE_CONFIG_PATH"]
    assert "LMCACHE_GDS_BUFFER_SIZE" in found["LMCACHE_CUFILE_BUFFER_SIZE"]


def test_what_a_rename_brings_is_not_missed_meanwhile() -> None:
    text = (
        "enable_blending: true\nuse_layerwise: true\nsave_unfull_chunk: true\n"
        "blend_recompute_ratio: 0.3\nblend_check_layer: 2\n"
    )
    linted = run(text)
    fixes = {one.key: one.fix for one in linted.findings}
    assert {name: fix.value for name, fix in fixes.items() if fix} == {
        "blend_recompute_ratio": [0.3],
        "blend_check_layer": [2],
    }
    assert {one.rule for one in linted.findings} == {rules.UNKNOWN_KEY}


def test_what_may_stand_under_another_name_is_asked_for_and_not_made_up() -> None:
    text = "enable_blending: true\nsave_unfull_chunk: true\nuse_layerwize: false\n"
    assert only(run(text), rules.LAYERWISE).fix is None
    empty = run(text.replace("use_layerwize: false", "use_layerwize:"))
    assert only(empty, rules.LAYERWISE).fix is not None


@pytest.mark.parametrize(
    ("written", "value"), [("[0.3]", 0.3), ("0.3", 0.3), ("[0.3, 0.4]", None), ("[[0.3]]", None)]
)
def test_a_list_becomes_the_one_number_that_an_older_key_takes(
    written: str, value: float | None
) -> None:
    found = only(run(f"blend_recompute_ratios: {written}\n", "0.3.5"), rules.UNKNOWN_KEY)
    after = None
    if found.fix is not None:
        after = found.fix.value if found.fix.changes_value else float(written)
    assert after == value
