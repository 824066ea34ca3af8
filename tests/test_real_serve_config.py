"""vLLM's --config file as its own parser reads it: every release, and the real command."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kvpatch.launch import Launch
from kvpatch.launch_script import parse_launch
from kvpatch.option_names import VALUELESS, known
from kvpatch.rules import CONNECTOR as CONNECTOR_RULE
from kvpatch.rules import SERVE_CONFIG, Level
from kvpatch.serve_file import Base, followed
from kvpatch.transfer_fields import faults
from linted import run
from packaging.version import Version
from releases import vllm_releases
from targets import target
from vllm_parsers import parsed

J = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
OTHER = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'
DOTTED = "kv-transfer-config.kv_connector: LMCacheConnectorV1\n"
ROLE = "kv-transfer-config.kv_role: kv_both\n"
LAYERWISE = "kv-transfer-config.kv_connector_extra_config.use_layerwise"
EXTRA = "kv-transfer-config.kv_connector_extra_config"
S = "serve m --config s.yaml"
API = "--model=m --config s.yaml"
REAL = Path(__file__).parent / "real_vllm_arguments.py"


@dataclass(frozen=True)
class Case:
    """A file, a command, and the first release that has what it is about."""

    name: str
    text: str
    command: str = S
    file: str = "s.yaml"
    since: str = "0"

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("JSON", f"kv-transfer-config: '{J}'\n"),
    Case("JSON with underscores in the name", f"kv_transfer_config: '{J}'\n"),
    Case("JSON over lines", f"kv-transfer-config: >\n  {J[:38]}\n  {J[38:]}\n"),
    Case("mapping", "kv-transfer-config:\n  kv_connector: X\n  kv_role: kv_both\n"),
    Case("mapping in braces", f"kv-transfer-config: {J}\n"),
    Case("mapping by anchor", "kv-transfer-config: &a\n  kv_connector: X\n  kv_role: kv_both\n"),
    Case("mapping with a date", "kv-transfer-config:\n  kv_connector: 2020-01-01\n"),
    Case("dotted", DOTTED + ROLE, since="0.9.1"),
    Case("dotted, underscores", (DOTTED + ROLE).replace("r-c", "r_c"), since="0.9.1"),
    Case("dotted true at the end", f"{DOTTED}{ROLE}{LAYERWISE}: true\n", since="0.9.1"),
    Case("dotted true in between", f"{DOTTED}{LAYERWISE}: true\n{ROLE}", since="0.9.2"),
    Case("dotted false", f"{DOTTED}{ROLE}{LAYERWISE}: false\n", since="0.9.1"),
    Case("dotted true in quotes", f"{DOTTED}{ROLE}{LAYERWISE}: 'true'\n", since="0.9.2"),
    Case(
        "dotted mapping",
        f"{DOTTED}{ROLE}kv-transfer-config.kv_connector_extra_config: {{use_layerwise: true}}\n",
        since="0.16.0",
    ),
    Case("JSON, dotted command", f"kv-transfer-config: '{OTHER}'\n",
         f"{S} --kv-transfer-config.kv_connector X "
        "--kv-transfer-config.kv_role kv_both", since="0.9.1"),
    Case("dotted, JSON command", DOTTED + ROLE, f"{S} --kv-transfer-config '{OTHER}'",
         since="0.9.1"),
    Case("dotted, dotted command", DOTTED + ROLE,
         f"{S} --kv-transfer-config.kv_role kv_producer", since="0.9.1"),
    Case("dotted beside JSON", f"kv-transfer-config: '{OTHER}'\n{DOTTED}{ROLE}", since="0.9.1"),
    Case("the command wins", f"kv-transfer-config: '{OTHER}'\nenable-prefix-caching: true\n",
         f"{S} --kv-transfer-config '{J}' --no-enable-prefix-caching"),
    Case("the command wins before it", "gpu-memory-utilization: 0.5\n",
         "serve m --gpu-memory-utilization 0.6 --config s.yaml"),
    Case("the command wins by a short name", "tensor-parallel-size: 2\n", f"{S} -tp 4"),
    Case("a level as configuration", "compilation-config: 3\n", since="0.9.2"),
    Case("compiling", "compilation-config: '{}'\nenforce: true\n"),
    Case("broken JSON, dotted command", "kv-transfer-config: '{broken'\n",
         f"{S} --kv-transfer-config.kv_connector X --kv-transfer-config.kv_role kv_both",
         since="0.9.1"),
    Case("null", "kv-transfer-config:\n"),
    Case("switch off", "enable-prefix-caching: false\n"),
    Case("switch off with underscores", "enable_prefix_caching: false\n"),
    Case("switch on", "enable-prefix-caching: true\nenforce-eager: yes\n"),
    Case("switch off by its own name", "no-enable-prefix-caching: true\n"),
    Case("switch off by its own name with underscores", "no_enable_prefix_caching: true\n"),
    Case("switch off twice", "no-enable-prefix-caching: false\n"),
    Case("list", "gpu-memory-utilization: [0.5]\nserved-model-name: []\n", since="0.10.2"),
    Case("dotted objects", f"{DOTTED}{ROLE}{EXTRA}: '{{\"a\": {{\"b\": 1}}}}'\n",
         f"{S} --{EXTRA} '{{\"a\": {{\"c\": 2}}}}' --{EXTRA} '{{\"d\": 3}}'", since="0.9.2"),
    Case("dotted object behind a value", f"{DOTTED}{ROLE}{LAYERWISE}: 'true'\n",
         f"{S} --{EXTRA} '{{\"lmcache.chunk_size\": 8}}'", since="0.9.2"),
    Case("dotted lists", f"{DOTTED}{ROLE}{EXTRA}.x: '[1]'\n{EXTRA}.x+: b,c\n", since="0.10.1"),
    Case("dotted list of YAML", f"{DOTTED}{ROLE}{EXTRA}.x: [a, b]\n", since="0.10.2"),
    Case("dotted and too deep", f"{DOTTED}{ROLE}{EXTRA}.x: '{'[' * 100_000}'\n", since="0.9.2"),
    Case("JSON and too deep", f"kv-transfer-config: '{'[' * 100_000}'\n"),
    Case("switch with a text", 'no-enable-prefix-caching: "true"\n'),
    Case("switch with a number", "enforce-eager: 1\n"),
    Case("switch with nothing", "enable-prefix-caching:\n"),
    Case("short name", "tp: 2\n"),
    Case("key for anchors", f"x-kv: &k {J}\nkv-transfer-config: *k\n"),
    Case("dashes in front", "--enforce-eager: true\n"),
    Case("beginning of a name", f"kv-transfer: '{J}'\n"),
    Case("beginning of a switch's name", "no-enable-prefix-cach: true\n"),
    Case("beginning of a dotted name", (DOTTED + ROLE).replace("-config", ""), since="0.9.1"),
    Case("number of too many digits", f"port: 0x{'f' * 4000}\n"),
    Case("bool that is none", 'api-key: !!bool "x"\n'),
    Case("merged keys", "<<: {enforce-eager: true}\ngpu-memory-utilization: 0.5\n"),
    Case("model", "model: /x/y\nenforce-eager: true\n", "serve --config s.yaml"),
    Case("model twice", "model: /x/y\n"),
    Case("no model", "port: 8001\n", "serve --config s.yaml"),
    Case("model by option", "model: f\n", "serve --model z --config s.yaml", since="0.11.1"),
    Case("equals sign", f"kv-transfer-config: '{J}'\n", "serve m --config=s.yaml"),
    Case("named twice", "port: 8001\n", "serve m --config s.yaml --config s.yaml"),
    Case("nothing behind it", "port: 8001\n", "serve m --config"),
    Case("no such file", "port: 8001\n", "serve m --config gone.yaml"),
    Case("yml", "enforce-eager: true\n", "serve m --config s.yml", "s.yml"),
    Case("capitals", "enforce-eager: true\n", "serve m --config s.YAML", "s.YAML"),
    Case("json", "enforce-eager: true\n", "serve m --config s.json", "s.json"),
    Case("no dot", "enforce-eager: true\n", "serve m --config yaml", "yaml"),
    Case("list at the top", "- a\n"),
    Case("empty", ""),
    Case("comment alone", "# x\n"),
    Case("empty mapping", "{}\n"),
    Case("word", "x\n"),
    Case("not YAML", "a: [\n"),
    Case("two documents", "port: 8001\n---\nport: 8002\n"),
    Case("number as key", "1: x\n"),
    Case("truth as key", "on: x\n"),
    Case("a key twice", "gpu-memory-utilization: 0.5\ngpu-memory-utilization: 0.6\n"),
    Case("a key in two spellings", "gpu-memory-utilization: 0.5\ngpu_memory_utilization: 0.6\n"),
    Case("a file that names another", "config: other.yaml\ngpu-memory-utilization: 0.5\n"),
    Case("module", f"kv-transfer-config: '{J}'\nenable-prefix-caching: false\n", API),
    Case("module, underscores", "enable_prefix_caching: false\n", API),
    Case("module, file first", "enable-prefix-caching: false\n", "--config s.yaml --model m"),
    Case("module, model first", "gpu-memory-utilization: 0.5\n", "--model m --config s.yaml"),
    Case("module, switch first", "gpu-memory-utilization: 0.5\n",
         "--enforce-eager --config s.yaml"),
]  # fmt: skip


def ours(case: Case, release: str, folder: Path) -> dict[str, Any] | None:
    """What kvpatch makes of it; None where vLLM stops."""
    start = "vllm " if case.command.startswith("serve") else "vllm.entrypoints.openai.api_server "
    base = Base((folder,))
    found = followed(parse_launch(f"{start}{case.command}"), Version(release), base)
    return None if _stops(found, Version(release)) else _shown(found)


def _stops(launch: Launch, vllm: Version) -> bool:
    config = launch.config
    told = config.problems if config and not config.ignored else ()
    if launch.compiling(vllm).stops:
        return True
    return bool(launch.problem or any(one.certain for one in told) or (config and config.unread))


def _shown(launch: Launch) -> dict[str, Any]:
    share = launch.flags.get("gpu-memory-utilization")
    ranks = launch.flags.get("tensor-parallel-size", launch.flags.get("tp"))
    return {
        "kv_transfer_config": dict(launch.transfer) or None,
        "enable_prefix_caching": launch.on("enable-prefix-caching"),
        "enforce_eager": bool(launch.on("enforce-eager")),
        "gpu_memory_utilization": None if share is None else float(share),
        "tensor_parallel_size": None if ranks is None else int(ranks),
        "model": launch.model,
    }


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_every_release_makes_of_a_file_what_kvpatch_says(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    apart = {}
    for case in CASES:
        if Version(release) < Version(case.since):
            continue
        (tmp_path / case.file).write_text(case.text)
        try:
            theirs: dict[str, Any] | None = parsed(release, shlex.split(case.command))
        except (Exception, SystemExit):
            theirs = None
        mine = ours(case, release, tmp_path)
        if mine is not None and theirs is not None:
            theirs = {name: theirs[name] for name in mine}
        if mine != theirs:
            apart[case.name] = (mine, theirs)
    assert not apart, sorted(apart)


@pytest.mark.releases
@pytest.mark.parametrize("release", ["0.8.5", "0.9.0"])
def test_before_dotted_names_no_connector_comes_of_them(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = Case("", DOTTED + ROLE)
    (tmp_path / case.file).write_text(case.text)
    assert ours(case, release, tmp_path) is None
    try:
        theirs = parsed(release, shlex.split(case.command))["kv_transfer_config"] or {}
    except SystemExit:
        theirs = {}
    assert "kv_connector" not in theirs


def answered(asked: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What the real command makes of files and arguments."""
    ended = subprocess.run(
        [target(), "-B", REAL],
        input=json.dumps(asked),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


@pytest.mark.stack
def test_the_real_command_makes_of_a_file_what_kvpatch_says(tmp_path: Path) -> None:
    asked = [
        {"file": case.file, "text": case.text, "arguments": shlex.split(case.command)}
        for case in CASES
    ]
    answer = answered(asked, tmp_path)
    apart = {}
    for case, theirs in zip(CASES, answer["found"], strict=True):
        if Version(answer["vllm"]) < Version(case.since):
            continue
        (tmp_path / case.file).write_text(case.text)
        mine = ours(case, answer["vllm"], tmp_path)
        if mine is not None and theirs is not None:
            # vLLM's own defaults stand there where nothing was given.
            for name, default in answer["defaults"].items():
                mine[name] = default if mine.get(name) is None else mine[name]
        if mine != theirs:
            apart[case.name] = (mine, theirs)
    assert not apart, sorted(apart)


CONNECTOR = f"--kv-transfer-config '{J}'"
WORDS = [
    f"m {CONNECTOR}",
    f"m --no-enable-prefix-caching true {CONNECTOR}",
    f"m {CONNECTOR} --enforce-eager true",
    f"--enforce-eager m {CONNECTOR}",
    f"--enforce-eager m {CONNECTOR} --port=1 n",
    f"m {CONNECTOR} --enforce-eagr",
    f"m {CONNECTOR} --enforce --no-enforce --enable-pre --gp 0.5",
    f"m {CONNECTOR} --optimization-level 1",
    f"m {CONNECTOR} -tp x",
    f"m {CONNECTOR} -tp",
    f"m {CONNECTOR} --tensor-parallel-size 1.5",
    f"m {CONNECTOR} --te 2",
    f"m {CONNECTOR} --enforce-eager=true",
    f"m {CONNECTOR} --gpu-memory-utilization x",
    f"--model m {CONNECTOR}",
    f"n --model m {CONNECTOR}",
    f"--served-model-name x m {CONNECTOR}",
    f"--served-model-name x --model m {CONNECTOR}",
    f"m --served-model-name x y {CONNECTOR}",
    f"m {CONNECTOR} -O '{{}}'",
    f"m {CONNECTOR} -cc '{{}}'",
    f"m {CONNECTOR} -cc 3",
    f"m {CONNECTOR} -O3",
    f"m {CONNECTOR} -O.mode NONE",
    f"m {CONNECTOR} --compilation-config 3",
    f"m {CONNECTOR} --compilation-config.cudagraph_mode NONE",
    (
        "m --kv-transfer-config '{broken' --kv-transfer-config.kv_connector LMCacheConnectorV1 "
        "--kv-transfer-config.kv_role kv_both"
    ),
    f'm --kv-transfer-config \'{{"kv_connector": "X"}}\' {CONNECTOR}',
    "m --kv-tr.kv_connector LMCacheConnectorV1 --kv-transfer-config.kv_role kv_both",
    "m --kv-tr.kv_connector LMCacheConnectorV1 --kv-tr.kv_role kv_both",
    "m --kv-transfer-config.kv_connector LMCacheConnectorV1 --kv-transfer-config.kv_role",
]


@pytest.mark.stack
def test_the_real_command_stops_at_the_words_at_which_lint_says_so(tmp_path: Path) -> None:
    asked = [
        {"file": "s.yaml", "text": "port: 8001\n", "arguments": ["serve", *shlex.split(words)]}
        for words in WORDS
    ]
    answer = answered(asked, tmp_path)
    apart = {}
    for words, theirs in zip(WORDS, answer["found"], strict=True):
        found = run("chunk_size: 256\n", serve=f"vllm serve {words}", vllm=answer["vllm"]).findings
        told = [one.message for one in found if one.rule in (SERVE_CONFIG, CONNECTOR_RULE)]
        if bool(told) is not (theirs is None):
            apart[words] = told
    assert not apart


@pytest.mark.stack
def test_the_options_are_those_of_the_real_command(tmp_path: Path) -> None:
    answer = answered([], tmp_path)
    there = set(answer["options"])
    plain = {one for one in there if one.removeprefix("no-") == one or one[3:] not in there}
    assert plain == known(Version(answer["vllm"]))
    assert VALUELESS & plain <= set(answer["switches"])


ROLES_AND_FIELDS = [
    {"kv_connector": "LMCacheConnectorV1"},
    {"kv_connector": "LMCacheConnectorV1", "kv_role": "both"},
    {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_connector_extra_config": "x"},
    {"kv_connector": 3, "kv_role": "kv_both"},
    {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv-port": 1},
    *(
        {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", **one}
        for one in (
            {"kv_port": 1},
            {"kv_ip": "h"},
            {"kv_rank": 1},
            {"kv_rank": math.nan},
            {"kv_port": math.nan},
            {"kv_port": "x"},
            {"kv_port": "1"},
            {"kv_port": 1.5},
            {"kv_port": 1.0},
            {"kv_port": None},
            {"kv_port": [1]},
            {"kv_ip": 3},
            {"engine_id": 3},
            {"kv_buffer_device": 3},
            {"kv_buffer_device": "gpu"},
            {"kv_connector_module_path": 3},
            {"kv_connector_extra_config": {"a": math.nan}},
            {"kv_buffer_size": math.nan},
            {"kv_load_failure_policy": "retry"},
            {"enable_permute_local_kv": "truth"},
            {"enable_permute_local_kv": "true"},
            {"enable_permute_local_kv": None},
            {"enable_permute_local_kv": True},
            {"kv_load_failure_policy": "fail"},
        )
    ),
    {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_consumer", "engine_id": "x"},
]


@pytest.mark.stack
def test_the_real_command_stops_at_the_fields_at_which_kvpatch_says_so(tmp_path: Path) -> None:
    asked = [
        {"file": "s.yaml", "text": "port: 8001\n",
         "arguments": ["serve", "m", "--kv-transfer-config", json.dumps(transfer)]}
        for transfer in ROLES_AND_FIELDS
    ]  # fmt: skip
    answer = answered(asked, tmp_path)
    vllm = Version(answer["vllm"])
    for transfer, theirs in zip(ROLES_AND_FIELDS, answer["found"], strict=True):
        stops = any(fault.level is Level.ERROR for fault in faults(transfer, vllm))
        assert stops is (theirs is None), transfer
