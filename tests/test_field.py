"""Faults that people met with their configuration, each with the value that is right for it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import Ran, kvpatch
from kvpatch.diagnosis import State
from kvpatch.model_checks import separator_check
from kvpatch.probe import Answer, probe
from kvpatch.tokenizer_probe import look

pytestmark = pytest.mark.releases

BLENDS = """enable_blending: true
use_layerwise: true
blend_check_layers: [1]
blend_recompute_ratios: [0.15]
save_unfull_chunk: true
"""
SERVE = "vllm serve m --kv-transfer-config '{}'"
CONNECTOR = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}


def lint(folder: Path, text: str, *more: object, release: str = "0.5.6") -> Ran:
    file = folder / "lmcache.yaml"
    file.write_text(text)
    return kvpatch("lint", file, "--lmcache", release, "--json", *more)


def said(ended: Ran, rule: str) -> str:
    """The one finding of a rule."""
    (found,) = [one["message"] for one in ended.data["findings"] if one["rule"] == rule]
    return str(found)


def test_16_and_20_prefix_caching_and_the_missing_layerwise_are_errors(tmp_path: Path) -> None:
    bare = {**CONNECTOR, "kv_connector_extra_config": {"use_layerwise": True}}
    ended = lint(tmp_path, BLENDS, "--serve", SERVE.format(json.dumps(bare)))
    assert ended.code == 1
    assert "--no-enable-prefix-caching" in said(ended, "LM050")
    off = SERVE.format(json.dumps(bare)) + " --no-enable-prefix-caching"
    assert lint(tmp_path, BLENDS, "--serve", off, "--vllm", "0.32.0").code == 0
    ended = lint(tmp_path, BLENDS.replace("use_layerwise: true\n", ""))
    assert "use_layerwise: true" in said(ended, "LM030")


@pytest.mark.parametrize("release", ["0.5.4", "0.5.5", "0.5.6"])
def test_21_a_renamed_key_is_named_and_mended(tmp_path: Path, release: str) -> None:
    text = "# mine\ngds_path: /mnt/a\ncufile_buffer_size: 4096  # MiB\n"
    ended = lint(tmp_path, text, release=release)
    assert "it is gds_buffer_size here (LMCache 0.4.4 renamed it)" in said(ended, "LM010")
    assert lint(tmp_path, text, "--fix", release=release).code == 0
    mended = (tmp_path / "lmcache.yaml").read_text()
    assert yaml.safe_load(mended) == {"gds_path": "/mnt/a", "gds_buffer_size": 4096}
    assert "# mine" in mended
    assert "# MiB" in mended


def test_22_a_buffer_in_bytes_is_told_in_mebibytes(tmp_path: Path) -> None:
    ended = lint(tmp_path, f"gds_path: /mnt/a\ngds_buffer_size: {2**32}\n", "--fix")
    assert ended.data["fixed"] == ["write gds_buffer_size: 4096"]
    assert ended.data["values"]["gds_buffer_size"]["value"] == 2**32 // 2**20


@pytest.mark.parametrize(
    ("release", "written", "seen", "right"),
    [
        ("0.3.7", " # # ", " # # ", True),
        ("0.3.7", "' # # '", "' # # '", False),
        ("0.3.9", " # # ", "# #", False),
        ("0.3.9", "' # # '", " # # ", True),
        ("0.5.6", " # # ", "# #", False),
        ("0.5.6", '" # # "', " # # ", True),
        ("0.5.6", "' # # '", " # # ", True),
    ],
)
def test_23_the_separator_of_a_variable_is_what_that_release_makes_of_it(
    tmp_path: Path, release: str, written: str, seen: str, right: bool
) -> None:
    environ = tmp_path / "vllm.env"
    quoted = f"'{written}'" if "'" not in written else f'"{written}"'
    config = tmp_path / "lmcache.yaml"
    environ.write_text(f"LMCACHE_CONFIG_FILE={config}\nLMCACHE_BLEND_SPECIAL_STR={quoted}\n")
    ended = lint(tmp_path, BLENDS, "--env-file", environ, release=release)
    assert ended.data["values"]["blend_special_str"] == {"value": seen, "source": "environment"}
    about = [one for one in ended.data["findings"] if one["key"] == "blend_special_str"]
    assert (about == []) is right, about
    if "strips" in str(about):
        # What is advised is right in its turn.
        advised = re.search(r"LMCACHE_BLEND_SPECIAL_STR=.*", about[0]["message"])
        assert advised is not None
        environ.write_text(f"LMCACHE_CONFIG_FILE={config}\n{advised[0]}\n")
        again = lint(tmp_path, BLENDS, "--env-file", environ, release=release)
        assert again.data["values"]["blend_special_str"]["value"] == written
        assert again.code == 0


@pytest.mark.parametrize(
    ("line", "rule", "told", "mended"),
    [
        ("blend_special_str:  # # ", "LM022", "is a comment", " # # "),
        ('enable_blending: "yes"', "LM021", "as false", True),
        ('max_local_cpu_size: "5GB"', "LM020", "becomes null", 5.0),
    ],
)
def test_24_25_26_values_that_do_not_arrive_are_told_and_mended(
    tmp_path: Path, line: str, rule: str, told: str, mended: object
) -> None:
    name = line.partition(":")[0]
    rest = "".join(one for one in BLENDS.splitlines(True) if not one.startswith(name))
    assert told in said(lint(tmp_path, rest + line + "\n"), rule)
    assert lint(tmp_path, rest + line + "\n", "--fix").code == 0
    assert yaml.safe_load((tmp_path / "lmcache.yaml").read_text())[name] == mended


def test_27_keys_of_other_lines_are_checked_against_the_installed_schema(tmp_path: Path) -> None:
    text = "max_local_cache_size: 5\nweka_path: /mnt/w\nlocal_device: cpu\nvendor_key: 1\n"
    ended = lint(tmp_path, text)
    told = {one["key"]: one["message"] for one in ended.data["findings"]}
    assert "it is max_local_cpu_size since lmcache.v1" in told["max_local_cache_size"]
    assert "LMCache 0.3.3 to 0.3.11 had it" in told["weka_path"]
    assert "before lmcache.v1" in told["local_device"]
    assert "has no key vendor_key" in told["vendor_key"]
    found = lint(tmp_path, text, release="0.3.11").data["findings"]
    there = {one["key"] for one in found if one["rule"] == "LM010"}
    assert "vendor_key" in there
    assert "weka_path" not in there


def test_28_a_config_file_that_was_not_exported_is_seen_by_pid(tmp_path: Path) -> None:
    held = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("LMCACHE_")}
    process = subprocess.Popen(held, stdin=subprocess.PIPE, env=environ)
    try:
        ended = lint(tmp_path, BLENDS, "--pid", process.pid)
    finally:
        process.communicate()
    assert "not exported" in said(ended, "LM060")


@pytest.mark.parametrize("kept", ["gds_path: /mnt/a\ngds_buffer_size: 64", "remote_url: lm://h:1"])
def test_29_a_store_that_outlives_the_process_wants_a_seed(tmp_path: Path, kept: str) -> None:
    environ = tmp_path / "vllm.env"
    config = f"LMCACHE_CONFIG_FILE={tmp_path / 'lmcache.yaml'}\n"
    environ.write_text(config)
    ended = lint(tmp_path, f"{kept}\n", "--env-file", environ)
    assert said(ended, "LM038").startswith("PYTHONHASHSEED is not set")
    environ.write_text(f"{config}PYTHONHASHSEED=0\n")
    assert lint(tmp_path, f"{kept}\n", "--env-file", environ).data["findings"] == []


@pytest.mark.parametrize("state", [True, False, None])
@pytest.mark.parametrize("separator", [" ## ", "|"])
def test_18_a_separator_that_loses_its_first_token_is_a_fault_until_it_is_patched(
    state: bool | None, separator: str
) -> None:
    def without_bos(text: str, _special: bool) -> list[int]:
        return list(text.encode())

    facts = look(without_bos, separator, whole=bool(state))
    found = separator_check(Answer(facts), separator, cured=state)
    assert found.state is (State.OK if state else State.FAIL)
    if state is False:
        assert found.todo == "run `kvpatch apply`"
    if state:
        assert "4 segments wanted, 4 found, 0 spurious" in found.reason


def test_33_a_mount_that_hangs_is_told_within_the_limit(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    answer = probe("storage_probe", [str(tmp_path), str(pipe), "look"], limit=0.5)
    assert answer.facts is None
    assert answer.problem
