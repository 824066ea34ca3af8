"""Faults people met in their configurations, each with the right value, on real releases."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from kvpatch import key_history, rules
from kvpatch.launch import parse_launch
from kvpatch.lint import Linted, Surroundings, lint
from kvpatch.rules import Finding, Level
from kvpatch.schema import Schema
from kvpatch.yaml_source import parse_yaml
from lmcache_config import schema_of
from packaging.version import Version

pytestmark = pytest.mark.releases

NEWEST = "0.5.6"
BLEND = (
    "enable_blending: true\nuse_layerwise: true\nblend_recompute_ratios: [0.15]\n"
    "blend_check_layers: [1]\nsave_unfull_chunk: true\n"
)
LMCACHE = (
    """--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"%s}'"""
)
BARE = ', "kv_connector_extra_config": {"use_layerwise": true}'


@cache
def schema(release: str) -> Schema:
    return schema_of(release)


def run(
    text: str,
    release: str = NEWEST,
    *,
    environ: Mapping[str, str] | None = None,
    serve: str | None = None,
    vllm: str | None = None,
    python: tuple[int, ...] | None = None,
) -> Linted:
    around = Surroundings(
        environ,
        launch=None if serve is None else parse_launch(serve),
        vllm=None if vllm is None else Version(vllm),
        python=python,
    )
    return lint(parse_yaml(text), schema(release), key_history.load(), around)


def only(linted: Linted, rule: rules.Rule) -> Finding:
    found = [finding for finding in linted.findings if finding.rule is rule]
    assert len(found) == 1, [finding.message for finding in linted.findings]
    return found[0]


def ids(linted: Linted, level: Level = Level.ERROR) -> set[str]:
    return {finding.rule.name for finding in linted.findings if finding.level is level}


def value(linted: Linted, name: str) -> Any:
    assert linted.effective is not None
    return linted.effective.get(name)


def test_an_empty_file_and_plain_defaults_are_clean() -> None:
    for text in ("", "{}\n", "# nothing\n", "chunk_size: 256\nlocal_cpu: true\n"):
        assert run(text).findings == ()


def test_prefix_caching_left_on_is_an_error() -> None:
    serve = f"vllm serve m {LMCACHE % BARE}"
    found = only(run(BLEND, serve=serve, vllm="0.32.0"), rules.PREFIX)
    assert "--no-enable-prefix-caching" in found.message
    right = f"vllm serve m --no-enable-prefix-caching {LMCACHE % BARE}"
    assert ids(run(BLEND, serve=right, vllm="0.32.0")) == set()


@pytest.mark.parametrize(
    ("vllm", "extra", "flags", "right"),
    [
        ("0.32.0", "", "", "use_layerwise"),
        ("0.32.0", ', "kv_connector_extra_config": {"lmcache.use_layerwise": true}', "", "true"),
        ("0.16.0", BARE, "", "--enforce-eager"),
        ("0.17.0", BARE, "", None),
        ("0.16.0", "", "--enforce-eager", None),
        ("0.32.0", "", """-cc '{"cudagraph_mode": "PIECEWISE"}'""", None),
        ("0.32.0", "", "--compilation-config.cudagraph_mode=none", None),
    ],
)
def test_full_cuda_graphs_are_an_error_with_what_this_vllm_needs(
    vllm: str, extra: str, flags: str, right: str | None
) -> None:
    serve = f"vllm serve m --no-enable-prefix-caching {flags} {LMCACHE % extra}"
    linted = run(BLEND, serve=serve, vllm=vllm)
    if right is None:
        assert ids(linted) == set()
    else:
        assert right in only(linted, rules.GRAPHS).message


def test_blending_without_layerwise_is_an_error_with_the_fix() -> None:
    found = only(run(BLEND.replace("use_layerwise: true\n", "")), rules.LAYERWISE)
    assert found.fix is not None
    assert (found.fix.key, found.fix.value) == ("use_layerwise", True)


def test_blending_without_ratios_is_an_error_from_0_3_6_on() -> None:
    text = "enable_blending: true\nuse_layerwise: true\nsave_unfull_chunk: true\n"
    fixes = {one.fix.key: one.fix.value for one in run(text).findings if one.fix}
    assert fixes == {"blend_recompute_ratios": [0.15], "blend_check_layers": [1]}
    assert ids(run(text)) == {"blending-without-choice"}
    assert "blending-without-choice" not in ids(run(text, "0.3.5"))


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


def test_bytes_given_for_mebibytes_are_an_error_with_the_mebibytes() -> None:
    found = only(run("gds_buffer_size: 4294967296\ngds_path: /mnt/a\n"), rules.BYTES)
    assert found.fix is not None
    assert found.fix.value == 4096


@pytest.mark.parametrize(
    ("release", "written", "seen"),
    [
        ("0.5.6", " # # ", "# #"),
        ("0.3.9", " # # ", "# #"),
        ("0.5.6", "' # # '", " # # "),
        ("0.3.7", " # # ", " # # "),
        ("0.3.7", "' # # '", "' # # '"),
        ("0.3.3", " # # ", "file's"),
    ],
)
def test_the_separator_in_the_environment_is_told_as_lmcache_sees_it(
    release: str, written: str, seen: str
) -> None:
    variable = {"LMCACHE_BLEND_SPECIAL_STR": written}
    linted = run('blend_special_str: "file\'s"\n', release, environ=variable)
    assert value(linted, "blend_special_str") == seen
    stripped = [one for one in linted.findings if one.rule is rules.STRIPPED]
    assert bool(stripped) is (seen == "# #")
    if stripped:
        # The spelling that the message gives is one that arrives.
        text = stripped[0].message.split('LMCACHE_BLEND_SPECIAL_STR="')[1].rstrip('"')
        again = run("", release, environ={"LMCACHE_BLEND_SPECIAL_STR": text})
        assert value(again, "blend_special_str") == " # # "
    ignored = [one for one in linted.findings if one.rule is rules.IGNORED]
    assert bool(ignored) is (release == "0.3.3")


def test_an_unquoted_separator_is_a_comment_with_the_quoted_one_as_its_fix() -> None:
    found = only(run("blend_special_str:  # # \n"), rules.EMPTY)
    assert "comment" in found.message
    assert found.fix is not None
    assert found.fix.value == " # # "


@pytest.mark.parametrize(
    ("written", "seen", "fixed"),
    [('"yes"', False, True), ("yes", True, None), ('"on"', False, True), ("2", False, None)],
)
def test_only_true_and_1_are_true(written: str, seen: bool, fixed: bool | None) -> None:
    linted = run(f"local_cpu_use_hugepages: {written}\n")
    assert value(linted, "local_cpu_use_hugepages") is seen
    if seen:
        assert linted.findings == ()
        return
    found = only(linted, rules.CHANGED)
    assert "as false" in found.message
    assert (found.fix.value if found.fix else None) is fixed


def test_a_size_with_a_unit_is_lost_and_its_number_is_the_fix() -> None:
    found = only(run('max_local_cpu_size: "5GB"\n'), rules.LOST)
    assert "becomes null" in found.message
    assert found.fix is not None
    assert found.fix.value == 5.0
    assert "stops LMCache" in only(run('max_local_cpu_size: "5GB"\n', "0.3.9"), rules.LOST).message


def test_a_list_in_a_variable_is_dropped_and_what_was_there_stays() -> None:
    linted = run(BLEND, environ={"LMCACHE_BLEND_RECOMPUTE_RATIOS": "[0.3]"})
    assert "is dropped" in only(linted, rules.LOST).message
    assert value(linted, "blend_recompute_ratios") == [0.15]


def test_a_variable_that_stops_this_release_is_an_error() -> None:
    variable = {"LMCACHE_RETRIEVE_LOCATIONS": "GdsBackend"}
    assert "stops LMCache" in only(run("", "0.4.4", environ=variable), rules.LOST).message
    assert run("", "0.5.6", environ={**variable, "LMCACHE_CONFIG_FILE": "-"}).findings == ()


@pytest.mark.parametrize(
    ("environ", "level"),
    [(None, Level.NOTE), ({}, Level.ERROR), ({"PYTHONHASHSEED": "random"}, Level.ERROR)],
)
def test_a_store_that_outlives_the_process_needs_a_hash_seed(
    environ: dict[str, str] | None, level: Level
) -> None:
    text = "gds_path: /mnt/a\ngds_buffer_size: 64\n"
    given = environ if environ is None else {"LMCACHE_CONFIG_FILE": "-", **environ}
    assert only(run(text, environ=given), rules.SEED).level is level
    fixed = {"LMCACHE_CONFIG_FILE": "-", "PYTHONHASHSEED": "0"}
    assert run(text, environ=fixed).clean
    assert not [one for one in run(text, environ=fixed).findings if one.rule is rules.SEED]


def test_with_an_old_python_and_an_old_lmcache_no_seed_helps() -> None:
    text = "local_disk: /mnt/a/\nmax_local_disk_size: 5\n"
    environ = {"LMCACHE_CONFIG_FILE": "-", "PYTHONHASHSEED": "0"}
    found = only(run(text, "0.3.15", environ=environ, python=(3, 11)), rules.SEED)
    assert "whatever PYTHONHASHSEED says" in found.message
    for release, python in (("0.3.15", (3, 12)), ("0.3.3", (3, 11)), ("0.5.6", (3, 11))):
        assert run(text, release, environ=environ, python=python).clean


def test_two_ranks_that_share_keys_need_the_seed_as_well() -> None:
    serve = f"vllm serve m -tp 2 {LMCACHE % ''}"
    environ = {"LMCACHE_CONFIG_FILE": "-"}
    assert "2 ranks" in only(run("", environ=environ, serve=serve), rules.SEED).message


def test_gds_on_a_release_that_mixes_up_its_keys_is_an_error() -> None:
    text = "gds_path: /mnt/a\n{}: 64\n"
    assert "gds-release-corrupts" in ids(run(text.format("cufile_buffer_size"), "0.3.9"))
    assert "gds-release-corrupts" not in ids(run(text.format("gds_buffer_size"), "0.5.4"))


def test_gds_and_blending_take_chunks_from_one_tier_alone() -> None:
    text = f"{BLEND}gds_path: /mnt/a\ngds_buffer_size: 64\n"
    fixes = {one.fix.key: one.fix.value for one in run(text).findings if one.fix}
    assert fixes == {"local_cpu": False, "retrieve_locations": ["GdsBackend"]}
    whole = f"{text}local_cpu: false\nretrieve_locations: [GdsBackend]\n"
    assert ids(run(whole)) == set()
    assert ids(run(whole), Level.NOTE) == {"gds-and-blending", "hash-seed"}
    wrong = whole.replace("[GdsBackend]", "[LocalCPUBackend]")
    assert ids(run(wrong)) == {"blending-from-two-tiers"}


def test_gds_needs_its_buffer_staging_memory_and_an_absolute_path() -> None:
    linted = run("gds_path: cache\nlocal_cpu: false\nmax_local_cpu_size: 0\n")
    assert ids(linted) == {"gds-without-buffer", "no-staging-memory", "gds-path"}


def test_sha256_cbor_is_refused_where_lmcache_formats_it_as_a_number() -> None:
    text = "pre_caching_hash_algorithm: sha256_cbor\n"
    assert ids(run(text, "0.4.5")) == {"hash-algorithm"}
    assert run(text, "0.4.6").findings == ()


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


def test_a_config_file_variable_that_is_missing_or_other_is_an_error() -> None:
    missing = only(run("", environ={"HOME": "/"}), rules.OTHER_FILE)
    assert "not exported" in missing.message
    assert missing.level is Level.ERROR
    other = only(run("", environ={"LMCACHE_CONFIG_FILE": "/other.yaml"}), rules.OTHER_FILE)
    assert "/other.yaml" in other.message


def test_the_environment_beats_the_file_and_the_extra_config_beats_both() -> None:
    serve = "vllm serve m " + LMCACHE % ', "kv_connector_extra_config": {"lmcache.chunk_size": 64}'
    environ = {"LMCACHE_CHUNK_SIZE": "128", "LMCACHE_CONFIG_FILE": "-"}
    assert value(run("chunk_size: 32\n"), "chunk_size") == 32
    assert value(run("chunk_size: 32\n", environ=environ), "chunk_size") == 128
    linted = run("chunk_size: 32\n", environ=environ, serve=serve)
    assert value(linted, "chunk_size") == 64
    assert only(linted, rules.OVERRULED).level is Level.NOTE
    old = run("chunk_size: 32\n", "0.3.6", environ=environ, serve=serve)
    assert value(old, "chunk_size") == 128
    assert "unknown-override" in ids(old)


def test_launch_flags_that_keep_lmcache_out_are_errors() -> None:
    assert ids(run("", serve="vllm serve m")) == {"connector"}
    assert ids(run("", serve="vllm serve m --kv-transfer-config '{'")) == {"connector"}
    both = f"vllm serve m --kv-offloading-size 4 {LMCACHE % ''}"
    assert ids(run("", serve=both)) == {"two-connectors"}


def test_gpu_memory_that_does_not_leave_room_for_the_buffer_is_a_warning() -> None:
    text = "gds_path: /mnt/a\ngds_buffer_size: 4096\n"
    for flags, warned in (("", True), ("--gpu-memory-utilization 0.8", False)):
        linted = run(text, serve=f"vllm serve m {flags} {LMCACHE % ''}")
        assert ("gpu-memory" in ids(linted, Level.WARNING)) is warned


def test_what_lmcaches_own_check_refuses_or_turns_over_is_told() -> None:
    assert "enable_controller=True" in only(run("enable_controller: true\n"), rules.STOPS).message
    turned = run(f"{BLEND}".replace("chunk: true", "chunk: false"))
    assert "becomes true" in only(turned, rules.TURNED).message


def test_nothing_stored_anywhere_is_a_warning() -> None:
    assert ids(run("local_cpu: false\n"), Level.WARNING) == {"nothing-stored"}


def test_every_rule_has_an_id_of_its_own_and_a_sentence() -> None:
    assert len(rules.ALL) >= 30
    assert len({rule.id for rule in rules.ALL}) == len(rules.ALL)
    assert len({rule.name for rule in rules.ALL}) == len(rules.ALL)
    for rule in rules.ALL:
        assert rule.id.startswith("LM")
        assert rule.why.endswith(".")
