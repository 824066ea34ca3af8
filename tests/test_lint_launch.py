"""Rules about the command and the environment, on real releases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kvpatch import key_history, rules
from kvpatch.launch_script import parse_launch
from kvpatch.lint import Linted, lint
from kvpatch.rules import Finding, Level
from kvpatch.serve_config import ServeConfig, converted
from kvpatch.serve_option import launch_of
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import parse_yaml
from linted import BARE, BLEND, LMCACHE, NEWEST, ids, only, run, schema
from packaging.version import Version
from releases import lmcache_releases, whole_release

pytestmark = pytest.mark.releases


def test_prefix_caching_left_on_is_an_error() -> None:
    serve = f"vllm serve m {LMCACHE % BARE}"
    found = only(run(BLEND, serve=serve, vllm="0.32.0"), rules.PREFIX)
    assert "--no-enable-prefix-caching" in found.message
    right = f"vllm serve m --no-enable-prefix-caching {LMCACHE % BARE}"
    assert ids(run(BLEND, serve=right, vllm="0.32.0")) == set()


def test_a_config_file_variable_that_is_missing_or_other_is_an_error() -> None:
    missing = only(run("", environ={"HOME": "/"}), rules.OTHER_FILE)
    assert "not exported" in missing.message
    assert missing.level is Level.ERROR
    other = only(run("", environ={"LMCACHE_CONFIG_FILE": "/other.yaml"}), rules.OTHER_FILE)
    assert "/other.yaml" in other.message


def test_launch_flags_that_keep_lmcache_out_are_errors() -> None:
    assert ids(run("", serve="vllm serve m")) == {"connector"}
    assert ids(run("", serve="vllm serve m --kv-transfer-config '{'")) == {"connector"}
    both = f"vllm serve m --kv-offloading-size 4 {LMCACHE % ''}"
    assert ids(run("", serve=both, vllm="0.32.0")) == {"two-connectors"}
    assert only(run("", serve=both), rules.OFFLOADING).level is Level.NOTE


MP = (
    """--kv-transfer-config '{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", """
    """"kv_connector_extra_config": {"lmcache.mp.host": "tcp://h", "lmcache.mp.port": 5}}'"""
)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (MP, "LMCacheMPConnector"),
        ("""--kv-transfer-config '{"kv_connector": "Another", "kv_role": "kv_both"}'""", "Another"),
        ("--kv-offloading-size 4", "--kv-offloading-size"),
    ],
)
@pytest.mark.parametrize("text", ["chunk_size: 256\n", BLEND])
def test_a_connector_that_reads_no_file_is_chosen_on_purpose(
    options: str, name: str, text: str
) -> None:
    serve = f"vllm serve m --tensor-parallel-size 2 {options}"
    environ = {"HOME": "/"}
    found = only(run(text, serve=serve, vllm="0.32.0", environ=environ), rules.CONNECTOR)
    # That nothing blends is more than a hint.
    assert found.level is (Level.WARNING if text is BLEND else Level.NOTE)
    assert ("nothing blends" in found.message) is (text is BLEND)
    assert found.message.startswith(f"{name} keeps vLLM's chunks")
    assert ids(run(text, serve=serve, vllm="0.32.0", environ=environ)) == set()
    # What the file says is judged all the same.
    assert ids(run("chunk_sise: 1\n", serve=serve, vllm="0.32.0")) == {"unknown-key"}


def test_beside_lmcaches_own_connector_another_one_is_not_asked_for_its_keys() -> None:
    inner = """{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both",
"kv_connector_extra_config": {"lmcache.chunk_sise": 1}}"""
    other = MP.replace("mp.port", "mp.prt").partition("'")[2].rstrip("'")
    several = f"""{{"kv_connector": "MultiConnector", "kv_role": "kv_both",
"kv_connector_extra_config": {{"connectors": [{inner}, {other}]}}}}"""
    serve = f"vllm serve m --kv-transfer-config '{several}'"
    found = run("", serve=serve, vllm="0.32.0").findings
    told = {one.level: one.message for one in found if one.rule is rules.OVERRIDE}
    assert "chunk_sise" in told.pop(Level.ERROR)
    assert "says for LMCacheMPConnector is not checked" in told.pop(Level.NOTE)
    assert not told


def test_that_settings_of_another_connector_are_not_looked_at_is_said() -> None:
    for options in (MP.replace("mp.host", "mp.mq_timeout"), MP.replace("mp.port", "mp.prt")):
        found = only(run("", serve=f"vllm serve m {options}", vllm="0.32.0"), rules.OVERRIDE)
        assert found.level is Level.NOTE
        assert "LMCacheMPConnector is not checked" in found.message
    # Where LMCache's server listens any release of its connector reads.
    for options in (MP, LMCACHE % BARE, MP.partition(', "kv_connector_extra')[0] + "}'"):
        found = run("", serve=f"vllm serve m {options}", vllm="0.32.0").findings
        assert not [one for one in found if one.rule is rules.OVERRIDE]


def test_a_connector_that_vllm_does_not_have_is_no_choice() -> None:
    wrong = MP.replace("LMCacheMPConnector", "LMCacheMpConnector")
    assert ids(run("", serve=f"vllm serve m {wrong}", vllm="0.32.0")) == {"connector"}


def test_gpu_memory_that_does_not_leave_room_for_the_buffer_is_a_warning() -> None:
    text = "gds_path: /mnt/a\ngds_buffer_size: 4096\n"
    # vLLM's default may leave enough: the memory of the GPU is not known.
    for vllm, flags, level in (
        ("0.32.0", "", Level.NOTE),
        ("0.32.0", "--gpu-memory-utilization 0.92", Level.WARNING),
        ("0.32.0", "--gpu-memory-utilization 0.91", None),
        ("0.19.1", "--gpu-memory-utilization 0.9", Level.WARNING),
        ("0.19.1", "--gpu-memory-utilization 0.89", None),
        (None, "--gpu-memory-utilization 0.95", Level.WARNING),
    ):
        linted = run(text, serve=f"vllm serve m {flags} {LMCACHE % ''}", vllm=vllm)
        found = [one.level for one in linted.findings if one.rule is rules.MEMORY]
        assert found == [level] * bool(level)


@pytest.mark.parametrize(
    ("text", "vllm", "lmcache", "dtype", "level"),
    [
        (BLEND, "0.32.0", "0.5.6", "fp8", Level.ERROR),
        ("use_layerwise: true\n", "0.32.0", "0.5.6", "fp8_e5m2", Level.ERROR),
        (BLEND, None, "0.5.6", "fp8", Level.NOTE),
        (BLEND, "0.25.1", "0.5.6", "fp8", None),
        (BLEND, "0.32.0", "0.5.6", "auto", None),
        (BLEND, "0.32.0", "0.5.6", "bfloat16", None),
        ("chunk_size: 256\n", "0.32.0", "0.5.6", "fp8", None),
    ],
)
def test_a_dtype_that_is_not_moved_layer_by_layer_is_an_error(
    text: str, vllm: str | None, lmcache: str, dtype: str, level: Level | None
) -> None:
    flags = f"--no-enable-prefix-caching --kv-cache-dtype {dtype}"
    linted = run(text, lmcache, serve=f"vllm serve m {flags} {LMCACHE % BARE}", vllm=vllm)
    found = [one for one in linted.findings if one.rule is rules.KV_DTYPE]
    assert [one.level for one in found] == ([] if level is None else [level])
    assert all(f"{dtype} " in one.message and "auto" in one.message for one in found)


def started(
    config: ServeConfig | str, flags: str = "", vllm: str = "0.32.0", text: str = BLEND
) -> Linted:
    """A configuration with vLLM started as its own file, or what came of that, says."""
    launch = parse_launch(f"vllm serve m --config s.yaml {flags}")
    if isinstance(config, str):
        config = converted(parse_yaml(config, "s.yaml", "vLLM"), launch.args, Version(vllm))
    around = Surroundings(launch=launch.with_config(config), vllm=Version(vllm))
    return lint(parse_yaml(text), schema(NEWEST), key_history.load(), around)


RIGHT = """no-enable-prefix-caching: true
kv-transfer-config:
  kv_connector: LMCacheConnectorV1
  kv_role: kv_both
  kv_connector_extra_config: {use_layerwise: true}
"""


def at(found: Finding) -> tuple[str, str, int]:
    return found.source, found.path, found.line


def test_what_vllms_own_file_sets_is_given() -> None:
    assert ids(started(RIGHT)) == set()
    assert ids(started("port: 1\n")) == {"connector", "prefix-caching", "cuda-graphs"}


def test_a_switch_that_is_false_there_does_nothing_and_is_told_at_its_line() -> None:
    found = only(started(RIGHT.replace("no-enable-prefix-caching: true", "enable-prefix-caching: "
                                       "false")), rules.PREFIX)  # fmt: skip
    assert at(found) == ("launch", "s.yaml", 1)
    assert "write no-enable-prefix-caching: true" in found.message


def test_findings_about_an_option_of_the_file_stand_at_its_line() -> None:
    dtype = only(started(f"{RIGHT}kv-cache-dtype: fp8\n"), rules.KV_DTYPE)
    assert at(dtype) == ("launch", "s.yaml", 6)
    other = only(started(RIGHT.replace("LMCacheConnectorV1", "Own")), rules.CONNECTOR)
    assert at(other) == ("launch", "s.yaml", 2)
    wrong = RIGHT.replace("{use", "{lmcache.chunk_sizes: 1, use")
    assert at(only(started(wrong), rules.OVERRIDE)) == ("launch", "s.yaml", 2)
    missing = only(started("port: 1\n"), rules.CONNECTOR)
    assert at(missing) == ("launch", "", 0)
    assert "in the command, nor in s.yaml" in missing.message


def test_what_the_command_says_is_not_laid_to_the_file() -> None:
    other = RIGHT.replace("LMCacheConnectorV1", "Own")
    assert ids(started(other, LMCACHE % BARE)) == set()
    own = """--kv-transfer-config '{"kv_connector": "Own", "kv_role": "kv_both"}'"""
    assert at(only(started(RIGHT, own), rules.CONNECTOR)) == ("launch", "", 0)


def test_of_a_file_that_was_not_read_nothing_is_taken_for_missing() -> None:
    unread = ServeConfig("s.yaml", unread="why", todo="do it")
    linted = started(unread, text=f"{BLEND}gds_path: /mnt/a\ngds_buffer_size: 64\n")
    found = only(linted, rules.SERVE_UNREAD)
    assert found.level is Level.WARNING
    assert found.message.endswith("(why): do it")
    ours = ("connector", "prefix-caching", "cuda-graphs", "gpu-memory")
    assert not {one.rule.name for one in linted.findings}.intersection(ours)


def test_what_the_command_itself_says_is_judged_all_the_same() -> None:
    unread = ServeConfig("s.yaml", unread="why", todo="do it")
    own = (
        """--enable-prefix-caching --kv-transfer-config """
        """'{"kv_connector": "LMCacheOwn", "kv_role": "kv_both"}'"""
    )
    assert ids(started(unread, own)) == {"connector", "prefix-caching"}
    broken = "--kv-transfer-config '{'"
    assert "connector" in ids(started(unread, broken))


def test_where_vllm_stops_at_the_file_that_alone_is_said() -> None:
    linted = started(RIGHT, vllm="0.11.0")
    assert at(only(linted, rules.SERVE_CONFIG)) == ("launch", "s.yaml", 2)
    assert ids(linted) == {"serve-config"}
    assert ids(started("- a\n")) == {"serve-config"}


def test_a_key_that_is_there_twice_is_told_at_its_second_line() -> None:
    found = only(started(f"{RIGHT}port: 1\nport: 2\n"), rules.DUPLICATE)
    assert at(found) == ("launch", "s.yaml", 7)


def test_dotted_forms_beside_json_leave_no_connector() -> None:
    dotted = "kv-transfer-config.kv_role: kv_both\nno-enable-prefix-caching: true\n"
    found = only(started(dotted, LMCACHE % BARE), rules.CONNECTOR)
    assert "takes its dotted forms alone" in found.message


@pytest.mark.parametrize(
    ("extra", "vllm", "found"),
    [
        (BARE, "0.32.0", []),
        (', "kv_ip": "h"', "0.32.0", [Level.ERROR]),
        (', "kv_ip": "h"', "0.31.0", []),
        (', "typo": 1', None, [Level.WARNING]),
    ],
)
def test_fields_that_the_release_does_not_have_are_told(
    extra: str, vllm: str | None, found: list[Level]
) -> None:
    linted = run("", serve=f"vllm serve m {LMCACHE % extra}", vllm=vllm)
    assert [one.level for one in linted.findings if one.rule is rules.CONNECTOR] == found


def test_a_role_that_is_missing_stops_vllm() -> None:
    serve = """vllm serve m --kv-transfer-config '{"kv_connector": "LMCacheConnectorV1"}'"""
    assert "kv_role is missing" in only(run("", serve=serve), rules.CONNECTOR).message


def test_the_last_object_of_the_compilation_config_counts() -> None:
    text = RIGHT.replace("  kv_connector_extra_config: {use_layerwise: true}\n", "")
    text += "compilation-config.cudagraph_mode: NONE\n"
    assert ids(started(text)) == set()
    assert ids(started(text, "-cc.mode 3")) == {"cuda-graphs"}


def test_dotted_forms_of_file_and_command_are_one() -> None:
    dotted = (
        "no-enable-prefix-caching: true\nkv-transfer-config.kv_connector: LMCacheConnectorV1\n"
        "kv-transfer-config.kv_role: kv_both\n"
        "kv-transfer-config.kv_connector_extra_config: '{\"use_layerwise\": true}'\n"
    )
    more = """--kv-transfer-config.kv_connector_extra_config '{"lmcache.chunk_size": 128}'"""
    assert ids(started(dotted, more)) == set()


@pytest.mark.parametrize("flag", ["--enforce-eager=true", "--no-enable-prefix-caching=1"])
def test_a_switch_with_a_value_stops_vllm(flag: str) -> None:
    assert "stops" in only(run("", serve=f"vllm serve m {flag}"), rules.SERVE_CONFIG).message


def test_a_share_that_is_no_number_stops_vllm() -> None:
    serve = f"vllm serve m {LMCACHE % ''} --gpu-memory-utilization %s"
    assert "95%" in only(run("", serve=serve % "95%"), rules.SERVE_CONFIG).message
    assert ids(run("", serve=serve % '"$SHARE"')) == set()


def test_the_default_share_and_its_option_are_the_releases_own() -> None:
    text = "gds_path: /mnt/a\ngds_buffer_size: 4096\n"
    serve = f"vllm serve m {LMCACHE % ''}"
    for vllm, share in (("0.19.1", "0.9 "), ("0.20.0", "0.92 ")):
        assert f"is {share}" in only(run(text, serve=serve, vllm=vllm), rules.MEMORY).message
    low = f"{serve} --device-memory-utilization 0.5"
    assert not any(one.rule is rules.MEMORY for one in run(text, serve=low, vllm="0.31.0").findings)


def test_a_reason_is_given_for_what_was_written_alone() -> None:
    wrong = "kv-transfer-config: {kv-connector: LMCacheConnectorV1}\n"
    found = only(started(f"no-enable-prefix-caching: true\n{wrong}", text=""), rules.CONNECTOR)
    assert "names no kv_connector;" in found.message


def test_text_of_a_value_is_on_one_line() -> None:
    serve = r"""vllm serve m --kv-transfer-config
'{"kv_connector": "x\nkvpatch: fine\u001b[31m", "kv_role": "kv_both",
"kv_connector_extra_config": {"lmcache.a\nb": 1}}'"""
    for found in run("", serve=serve, vllm="0.32.0").findings:
        assert found.message.isprintable()


def test_the_backend_of_offloading_alone_does_nothing() -> None:
    flags = f"--kv-offloading-backend native {LMCACHE % ''}"
    assert ids(run("", serve=f"vllm serve m {flags}", vllm="0.32.0")) == set()
    assert ids(run("", serve=f"vllm serve m {flags}", vllm="0.13.0")) == {"two-connectors"}
    size = "vllm serve m --kv-offloading-backend lmcache --kv-offloading-size 4"
    assert ids(run("", serve=size, vllm="0.22.1")) == set()
    # Then it is LMCache's server that keeps the chunks.
    for vllm in ("0.23.0", "0.32.0"):
        found = only(run("", serve=size, vllm=vllm), rules.CONNECTOR)
        assert found.level is Level.NOTE
        assert found.message.startswith("LMCache's server, which --kv-offloading-backend lmcache")


def test_a_switch_off_that_is_false_is_told_at_its_line() -> None:
    text = RIGHT.replace("no-enable-prefix-caching: true", "no-enable-prefix-caching: false")
    found = only(started(text), rules.PREFIX)
    assert at(found) == ("launch", "s.yaml", 1)
    assert "makes nothing of a switch that is false" in found.message


def test_dotted_forms_do_not_make_settings_of_lmcache() -> None:
    extra = "--kv-transfer-config.kv_connector_extra_config.lmcache.chunk_size 8"
    dotted = "--kv-transfer-config.kv_connector LMCacheConnectorV1 --kv-transfer-config.kv_role"
    found = only(run("", serve=f"vllm serve m {dotted} kv_both {extra}"), rules.OVERRIDE)
    assert "does not find lmcache.chunk_size" in found.message


@pytest.mark.parametrize(
    "options",
    [
        """--kv-transfer-config '{"kv_connector": "%s", "kv_role": "kv_both"}'""",
        "--kv-transfer-config.kv_connector %s --kv-transfer-config.kv_role kv_both",
        (
            """--kv-transfer-config '{"kv_connector": "MultiConnector", "kv_role": "kv_both", """
            """"kv_connector_extra_config": {"connectors": [{"kv_connector": "%s", """
            """"kv_role": "kv_both"}]}}'"""
        ),
    ],
)
def test_a_connector_that_vllm_does_not_know_by_name_stops_it(options: str) -> None:
    for name, wrong in (("LMCacheConnectorV1Dynamic", True), ("LMCacheConnectorV1", False)):
        found = run("chunk_size: 256\n", serve=f"vllm serve m {options % name}", vllm="0.32.0")
        told = [one.message for one in found.findings if one.rule is rules.CONNECTOR]
        assert bool(told) is wrong
        assert all("it knows no connector of that name" in one for one in told)


@pytest.mark.parametrize("release", [str(one) for one in lmcache_releases()])
def test_a_consumer_stores_nothing_in_any_release_and_a_producer_loads(release: str) -> None:
    wheel = whole_release("lmcache", release)
    there = [path for path in wheel.entries if path.endswith("/vllm/vllm_v1_adapter.py")]
    adapter = (wheel.read(max(there, key=lambda path: "inprocess" in path)) or b"").decode()
    for name in ("save_kv_layer", "wait_for_save"):
        body = adapter.partition(f"def {name}(")[2].partition("\n    def ")[0]
        assert re.search(r'if self\.kv_role == "kv_consumer":(?s:.*?)\n {12}return\n', body), name
    assert 'force_skip_save = self.kv_role == "kv_consumer" or' in adapter
    # What a producer is asked for is an attribute that every lookup client inherits.
    asked = r'self\.kv_role == "kv_producer" and not hasattr\(\s*self\.lookup_client, "(\w+)"'
    (attribute,) = re.findall(asked, adapter)
    clients = [path for path in wheel.entries if path.endswith("lookup_client/abstract_client.py")]
    assert f"def {attribute}(self)".encode() in (wheel.read(clients[0]) or b"")


@pytest.mark.parametrize(
    ("text", "role", "level"),
    [
        ("", "kv_consumer", Level.WARNING),
        ("local_disk: /x/\nmax_local_disk_size: 5\n", "kv_consumer", Level.WARNING),
        ("remote_url: lm://h:1\n", "kv_consumer", Level.NOTE),
        ("enable_pd: true\n", "kv_consumer", None),
        ("", "kv_producer", None),
        ("", "kv_both", None),
    ],
)
def test_a_role_in_which_nothing_is_stored_is_told(
    text: str, role: str, level: Level | None
) -> None:
    serve = f"vllm serve m {LMCACHE % ''}".replace("kv_both", role)
    found = [one for one in run(text, serve=serve).findings if one.rule is rules.ROLE]
    assert [one.level for one in found] == [level] * (level is not None)
    inside = (
        """vllm serve m --kv-transfer-config '{"kv_connector": "MultiConnector", "kv_role": """
        """"kv_both", "kv_connector_extra_config": {"connectors": [{"kv_connector": """
        f""""LMCacheConnectorV1", "kv_role": "{role}"}}]}}}}'"""
    )
    found = [one for one in run(text, serve=inside).findings if one.rule is rules.ROLE]
    assert [one.level for one in found] == [level] * (level is not None)


def test_a_blank_behind_a_backslash_is_told_as_the_cause_of_what_is_missing(tmp_path: Path) -> None:
    right = f"vllm serve m \\\n  --no-enable-prefix-caching \\\n  {LMCACHE % BARE}\n"
    script = tmp_path / "serve.sh"
    for text, wrong in ((right, False), (right.replace("m \\\n", "m \\ \n"), True)):
        script.write_text(f"#!/bin/bash\n{text}")
        for launch in (launch_of(text), launch_of(str(script))):
            around = Surroundings(launch=launch, vllm=Version("0.32.0"))
            found = lint(parse_yaml(BLEND), schema(NEWEST), key_history.load(), around).findings
            told = [one.message for one in found if one.level is Level.ERROR]
            assert [one.startswith("a backslash stands") for one in told] == [True] * wrong
