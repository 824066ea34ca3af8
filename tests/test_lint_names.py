"""Rules about names of keys and variables, on real releases."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from kvpatch import key_history, rules
from kvpatch.curing import curable
from kvpatch.key_history import SUCCESSORS
from kvpatch.lint import lint
from kvpatch.mend import mended
from kvpatch.outcome import KvpatchError
from kvpatch.render import render
from kvpatch.rules import Finding, Level
from kvpatch.surroundings import Surroundings
from kvpatch.templates import names
from kvpatch.yaml_source import YamlFile, parse_yaml
from linted import LMCACHE, NEWEST, only, run, schema, value
from lmcache_config import executed
from packaging.version import Version
from releases import lmcache_releases, release_file, variables_of

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


def look_alikes(environ: dict[str, str], release: str = NEWEST) -> dict[str, Finding]:
    found = run("", release, environ=environ).findings
    return {one.key: one for one in found if one.rule is rules.LOOK_ALIKE}


@pytest.mark.parametrize("release", ["0.3.3", "0.4.4", NEWEST])
def test_variables_that_stand_in_the_code_of_the_release_are_read(release: str) -> None:
    there = variables_of(release)
    assert "LMCACHE_LOG_LEVEL" in there
    assert ("LMCACHE_RESP_HOST" in there) is (release != "0.3.3")
    # Of what only its beginning stands there any end may be read.
    environ = {f"{name}X" if name.endswith("_") else name: "1" for name in there}
    assert look_alikes(environ, release) == {}


def test_a_variable_of_other_releases_is_told_with_them() -> None:
    found = look_alikes({"LMCACHE_RESP_HOST": "redis"}, "0.4.2")["LMCACHE_RESP_HOST"]
    assert found.level is Level.WARNING
    assert found.message == (
        "LMCache 0.4.2 reads no variable LMCACHE_RESP_HOST (LMCache from 0.4.3 on does)"
    )
    assert look_alikes({"LMCACHE_USE_EXPERIMENTAL": "True"}) == {}


@pytest.mark.parametrize(
    ("release", "value", "stops"),
    [
        ("0.3.3", "False", True),
        ("0.3.11", "off", True),
        ("0.3.11", "N", True),
        ("0.3.11", "True", False),
        ("0.3.11", "", False),
        ("0.3.12", "False", False),
    ],
)
def test_the_configuration_before_v1_ends_the_engine_where_a_release_has_it(
    release: str, value: str, stops: bool
) -> None:
    code = release_file("lmcache", release, "lmcache/integration/vllm/utils.py").decode()
    asked = "LMCACHE_USE_EXPERIMENTAL" in code
    words = re.search(r"return value\.lower\(\) in \((.*)\)", code)
    assert stops is (asked and bool(words and f'"{value.lower()}"' in words[1]))
    linted = run("chunk_size: 8\n", release, environ={"LMCACHE_USE_EXPERIMENTAL": value})
    found = [one for one in linted.findings if one.key == "LMCACHE_USE_EXPERIMENTAL"]
    assert [(one.rule, one.level) for one in found] == [(rules.STOPS, Level.ERROR)] * stops
    assert all(one.message.endswith("take it out") for one in found)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("LMCACHE_CHUNKSIZE", "LMCACHE_CHUNK_SIZE"),
        ("lmcache_chunk_size", "LMCACHE_CHUNK_SIZE"),
        ("VLLM_LMCACHE_CONFIG_FILE", "LMCACHE_CONFIG_FILE"),
        ("LMCACHE_CONFIG", "LMCACHE_CONFIG_FILE"),
        ("LMCACHE_BLEND_RECOMPUTE_RATIO", "LMCACHE_BLEND_RECOMPUTE_RATIOS"),
        ("LMCACHE_CONTROLLER_URL", "LMCACHE_CONTROLLER_PULL_URL"),
        ("LMCACHE_USE_CUFILE", "LMCACHE_USE_GDS"),
    ],
)
def test_a_variable_is_another_one_here_where_that_is_certain(name: str, right: str) -> None:
    found = look_alikes({name: "1"})[name]
    assert found.level is Level.ERROR
    assert found.message.endswith(f"; it is {right} here")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("LMCACHE_BLEND_SPECIAL_STRING", "LMCACHE_BLEND_SPECIAL_STR"),
        ("LMCACHE_ENABLED", "LMCACHE_ENABLE_PD"),
        ("LMCACHE_LOCAL_CPUS", "LMCACHE_LOCAL_CPU"),
        ("LMCACHE_BLEND_SELECTION_W", ""),
        ("LMCACHE_HOME", ""),
        ("LMCACHE_VERSION", ""),
    ],
)
def test_a_variable_that_is_but_similar_has_the_nearest_one(name: str, near: str) -> None:
    found = look_alikes({name: "1"})
    assert [one.level for one in found.values()] == [Level.WARNING] * bool(near)
    assert not near or found[name].message.endswith(f"; the nearest is {near}")


def test_what_kubernetes_tells_of_services_is_left_out() -> None:
    links = {
        "LMCACHE_SERVER_SERVICE_HOST": "10.96.0.12",
        "LMCACHE_SERVER_SERVICE_PORT": "81",
        "LMCACHE_SERVER_SERVICE_PORT_ZMQ": "81",
        "LMCACHE_SERVER_PORT": "tcp://10.96.0.12:81",
        "LMCACHE_SERVER_PORT_81_TCP": "tcp://10.96.0.12:81",
        "LMCACHE_SERVER_PORT_81_TCP_PROTO": "tcp",
        "LMCACHE_PD_PEER_PORT": "udp://10.96.0.12:82",
        "LMCACHE_PD_PEER_PORT_82_UDP_ADDR": "10.96.0.12",
    }
    assert look_alikes(links) == {}
    assert set(look_alikes({**links, "LMCACHE_PD_PEER_PORT": "82"})) == {"LMCACHE_PD_PEER_PORT"}


def test_an_override_that_is_but_similar_has_the_nearest_key() -> None:
    extra = ', "kv_connector_extra_config": {"lmcache.%s": 1}'
    serve = "vllm serve m " + LMCACHE % extra
    near = only(run("", serve=serve % "max_local_cpu_sze"), rules.OVERRIDE)
    assert near.message.endswith("; the nearest is lmcache.max_local_cpu_size")
    sure = only(run("", serve=serve % "cufile_buffer_size"), rules.OVERRIDE)
    assert sure.message.endswith("; it is lmcache.gds_buffer_size here")


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


ODD = (
    "chunk_size: 256\nuse_gds: true\n",
    "use_gds: {a: 1}\ngds_backend: [cufile]\n",
    "extra_config: {use_gds: true, chunk_size: 1, gds_buffer_size: [1]}\n",
    "extra_config: [use_cufile]\nuse_cufile: 1\ndisk_io_threads: 4\ngds_io_threads: 4\n",
    "extra_config.use_cufile: true\nuse_gds: true\n",
    "use_gds: true\nextra_config: {use_cufile: false}\nuse_cufile: false\n",
    "blend_recompute_ratios: []\nblend_recompute_ratio: [[0.1]]\nlmcache_worker_port: [1, 2]\n",
    "max_local_cache_size: .nan\nchunk_size: 99999999999999999999\n1: 2\n? [a]\n: b\n",
)


@cache
def other_texts() -> tuple[str, ...]:
    """What profiles make for the newest release, and strange small files."""
    pair = curable(Version(NEWEST), Version("0.32.0"))
    made = (render(name, schema(NEWEST), pair, {}).text for name in names())
    return (*(text for text in made if text), *ODD)


@pytest.mark.parametrize("release", [str(one) for one in lmcache_releases()])
def test_files_for_another_release_get_an_answer_of_every_release(release: str) -> None:
    serve = "vllm serve m --kv-cache-dtype fp8"
    for text in other_texts():
        for one in (None, serve):
            linted = run(text, release, serve=one)
            assert all(finding.message for finding in linted.findings)

        def check(file: YamlFile) -> tuple[Finding, ...]:
            around = Surroundings(None)
            return lint(file, schema(release), key_history.load(), around).findings

        # A file that can't be mended is refused with a sentence, which is an answer too.
        with suppress(KvpatchError):
            after, _ = mended(parse_yaml(text), check)
            assert after.problems or not any(one.fix for one in check(after))


def test_gds_of_a_newer_release_is_renamed_into_extra_config() -> None:
    found = only(run("chunk_size: 256\nuse_gds: true\n", "0.3.5"), rules.UNKNOWN_KEY)
    assert "extra_config.use_cufile" in found.message
    assert found.fix is not None
    assert (found.fix.key, found.fix.name) == ("use_gds", "extra_config.use_cufile")


@pytest.mark.parametrize("release", [str(one) for one in lmcache_releases()])
def test_a_file_without_a_key_is_told_as_the_release_takes_it(release: str, tmp_path: Path) -> None:
    texts = ("", "# chunk_size: 512\n", "---\n", "null\n", "{}\n")
    cases = [{"text": text, "names": ["chunk_size"]} for text in texts]
    default = schema(release).keys["chunk_size"].default
    for text, real in zip(texts, executed(release, cases, tmp_path), strict=True):
        linted = run(text, release)
        found = [one.rule for one in linted.findings]
        assert found == [rules.STOPS if real["stop"] else rules.EMPTY_FILE], text
        assert linted.clean is not bool(real["stop"])
        assert real["stop"] or real["values"] == {"chunk_size": default}


@pytest.mark.parametrize("name", ["LMCACHE_CHUNK_SIZE", "CHUNK_SIZE", "chunk-size"])
def test_a_key_in_the_spelling_of_its_variable_is_renamed(name: str) -> None:
    found = only(run(f"{name}: 512\n"), rules.UNKNOWN_KEY)
    assert found.fix is not None
    assert (found.fix.kind, found.fix.key, found.fix.name) == ("rename", name, "chunk_size")
    both = only(run(f"{name}: 512\nchunk_size: 256\n"), rules.UNKNOWN_KEY)
    assert both.fix is None


@pytest.mark.parametrize(("old", "new"), [(old, one[0]) for old, one in SUCCESSORS.items()])
def test_what_takes_a_gone_keys_place_is_named_wherever_that_is_written(old: str, new: str) -> None:
    told = SUCCESSORS[old][1]
    assert new in schema(NEWEST).keys
    found = only(run(f"{old}: x\n"), rules.UNKNOWN_KEY)
    assert found.message.endswith(f"; {told} here")
    assert "take it out" not in found.message
    assert found.fix is None
    variable = f"LMCACHE_{old.upper()}"
    assert look_alikes({variable: "x"})[variable].message.endswith(f"; {told} here")
    extra = f', "kv_connector_extra_config": {{"lmcache.{old}": 1}}'
    serve = f"vllm serve m {LMCACHE % extra}"
    assert only(run("", serve=serve), rules.OVERRIDE).message.endswith(f"; {told} here")


def test_a_successor_is_not_named_where_the_release_has_none() -> None:
    assert "pd_" not in only(run("nixl_peer_port: 1\n", "0.3.3"), rules.UNKNOWN_KEY).message
