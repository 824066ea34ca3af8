"""Commands as people type them."""

from __future__ import annotations

from typing import Any

import pytest
from kvpatch.launch import Launch, from_arguments, parse_words, server_of
from kvpatch.launch_script import parse_launch
from kvpatch.serve_config import Origin, ServeConfig
from kvpatch.shell_state import Argument, Withheld


def test_flags_environment_and_connector_are_taken_apart() -> None:
    found = parse_launch(
        "PYTHONHASHSEED=0 LMCACHE_CHUNK_SIZE='12 8' vllm serve /models/m -tp 2 \\\n"
        "  --no-enable-prefix-caching --gpu_memory_utilization=0.5 "
        """--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1"}'"""
    )
    assert found.environ == {"PYTHONHASHSEED": "0", "LMCACHE_CHUNK_SIZE": "12 8"}
    assert found.model == "/models/m"
    assert found.flags["tp"] == "2"
    assert found.flags["gpu-memory-utilization"] == "0.5"
    assert found.on("enable-prefix-caching") is False
    assert found.on("enforce-eager") is None
    assert found.in_process
    assert found.problem == ""


@pytest.mark.parametrize(
    ("config", "in_process"),
    [
        ('{"kv_connector": "LMCacheConnectorV1"}', True),
        ('{"kv_connector": "LMCacheMPConnector"}', False),
        ('{"kv_connector": "OffloadingConnector"}', False),
        ('{"kv_connector": "Own", "kv_connector_module_path": "lmcache.integration.x"}', True),
        ('{"kv_connector": "Own", "kv_connector_module_path": "lmcache_own.x"}', False),
        (
            (
                '{"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": '
                '[{"kv_connector": "LMCacheConnectorV1", '
                '"kv_connector_extra_config": {"use_layerwise": true}}]}}'
            ),
            True,
        ),
        ("{}", False),
    ],
)
def test_lmcaches_connector_is_known_wherever_it_stands(config: str, in_process: bool) -> None:
    assert parse_launch(f"vllm serve m --kv-transfer-config '{config}'").in_process is in_process


def test_dotted_forms_are_merged_into_the_connector() -> None:
    found = parse_launch(
        "vllm serve m --kv-transfer-config.kv_connector LMCacheConnectorV1 "
        "--kv-transfer-config.kv_connector_extra_config.use_layerwise true"
    )
    assert found.in_process
    assert found.transfer["kv_connector_extra_config"] == {"use_layerwise": True}


@pytest.mark.parametrize("config", ["{", "[]", "1", "words"])
def test_a_connector_that_cannot_be_read_is_a_problem_and_no_crash(config: str) -> None:
    assert parse_launch(f"vllm serve m --kv-transfer-config '{config}'").problem
    assert parse_launch("vllm serve m --kv-transfer-config").problem


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ("""-cc '{"cudagraph_mode": "piecewise"}'""", "PIECEWISE"),
        ("-cc.cudagraph_mode=NONE", "NONE"),
        ("""-cc '{"cudagraph_mode": "NONE"}' -cc.level 3""", None),
        ("""-O '{"cudagraph_mode": 0}'""", "0"),
        ("-O 3", None),
        ("-cc '{broken'", None),
        ("", None),
    ],
)
def test_the_graph_mode_is_read_in_every_form(flags: str, mode: Any) -> None:
    assert parse_launch(f"vllm serve m {flags}").graphs == mode


@pytest.mark.parametrize("text", ["", "vllm", "vllm serve", "-", "--", "serve --model m -1"])
def test_commands_with_little_in_them_are_read(text: str) -> None:
    assert not parse_launch(text).in_process


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("/srv/bin/python /srv/bin/vllm serve m", True),
        ("python -m vllm.entrypoints.openai.api_server --model m", True),
        ("""python x.py --kv-transfer-config '{"kv_connector": "LMCacheConnectorV1"}'""", True),
        ("python train.py --model m", False),
        ("VLLM::EngineCore", False),
        ("", False),
    ],
)
def test_a_process_is_a_server_where_its_command_starts_one(command: str, found: bool) -> None:
    assert (server_of(command) is not None) is found


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("A=1 /opt/bin/vllm serve m --port 1", ("serve", "m", "--port", "1")),
        ("python /opt/bin/vllm serve m", ("serve", "m")),
        ("python -m vllm.entrypoints.openai.api_server --model m", ("--model", "m")),
        ("python -m vllm.entrypoints.cli.main serve m", ("serve", "m")),
        ("docker run vllm/vllm-openai --model m", ("--model", "m")),
        ("docker run -v /a/vllm-openai:/b x.io/vllm-openai:v1 --model m", ("--model", "m")),
        ("docker run --entrypoint sh vllm/vllm-openai --model m", ()),
        ("docker pull vllm/vllm-openai", ()),
    ],
)
def test_vllms_arguments_are_what_stands_behind_its_program(
    command: str, args: tuple[str, ...]
) -> None:
    assert parse_launch(command).args == args


def in_file(*words: str) -> ServeConfig:
    return ServeConfig("s.yaml", tuple((word, Origin("s.yaml", 1)) for word in words))


def test_the_command_beats_the_file_by_whatever_name() -> None:
    launch = parse_launch("vllm serve m -tp 4 --no-enable-prefix-caching -cc.cudagraph_mode=NONE")
    found = launch.with_config(
        in_file(
            "--tensor-parallel-size", "2", "--enable_prefix_caching", "--port", "1",
            "--compilation-config", '{"cudagraph_mode": "FULL"}', "--model", "other",
        )
    )  # fmt: skip
    assert (found.flags["tp"], found.on("enable-prefix-caching")) == ("4", False)
    assert "tensor-parallel-size" not in found.flags
    assert (found.graphs, found.model, found.flags["port"]) == ("NONE", "m", "1")
    assert found.origin("port") == Origin("s.yaml", 1)
    assert found.origin("enable-prefix-caching", "tp") is None


def test_a_model_in_the_file_counts_where_the_command_has_none() -> None:
    assert parse_launch("vllm serve --port 1").with_config(in_file("--model", "f")).model == "f"


def test_dotted_forms_of_file_and_command_make_one_connector() -> None:
    launch = parse_launch("vllm serve m --kv-transfer-config.kv_role kv_both")
    name = "--kv-transfer-config.kv_connector"
    found = launch.with_config(in_file(name, "LMCacheConnectorV1"))
    assert found.transfer == {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    assert found.origin("kv-transfer-config") == Origin("s.yaml", 1)


@pytest.mark.parametrize(
    ("options", "doubt"),
    [
        ('--port "$PORT"', ""),
        ("--port $PORT", "$PORT"),
        ('"$MORE"', "$MORE"),
        ("${MORE:-secret}", "$MORE"),
        ('--port=1 "$MORE"', "$MORE"),
        ('--enforce-eager "$MORE"', "$MORE"),
        ("--config $CFG", ""),
        ('--kv-transfer-config "$KV"', "the value of --kv-transfer-config"),
        ('--kv_transfer_config="$KV"', "the value of --kv-transfer-config"),
        ('--kv-transfer-config.kv_role "$X"', "the value of --kv-transfer-config"),
        ('-O "$LEVEL"', "the value of --O"),
        ("`cat options`", "what a command prints"),
    ],
)
def test_options_that_are_put_together_are_not_taken_for_missing(options: str, doubt: str) -> None:
    found = parse_launch(f"vllm serve m {options}")
    assert found.doubt.partition(":")[0] == doubt
    assert found.known is (doubt == "")
    assert (found.transfer, found.problem) == ({}, "")
    assert "secret" not in found.doubt


def test_of_an_option_that_is_not_known_the_files_does_not_count() -> None:
    launch = parse_launch('vllm serve m --kv-cache-dtype "$D" -tp "$N" --kv-transfer-config.a "$X"')
    found = launch.with_config(
        in_file(
            "--kv-cache-dtype", "fp8", "--tensor-parallel-size", "2", "--seed", "1",
            "--kv-transfer-config.kv_connector", "Own",
        )
    )  # fmt: skip
    assert found.flags == {"seed": "1"}
    assert found.transfer == {}


def test_words_of_a_process_are_taken_as_they_are() -> None:
    found = parse_words(["A=1", "vllm", "serve", "$m", "--tp", "2"])
    assert (found.model, found.environ, found.known) == ("$m", {"A": "1"}, True)


def test_a_folder_is_kept() -> None:
    assert from_arguments([Argument("vllm"), Argument("serve")], {}, "/srv").folder == "/srv"


def test_what_is_exported_already_reaches_vllm_as_the_script_sets_it() -> None:
    kept = {"A": Withheld("1"), "B": Withheld("2"), "C": Withheld("3", "sudo")}
    found = Launch({}, {"D": "4"}, withheld=kept).started_with(["A", "C", "D"])
    assert found.environ == {"A": "1", "D": "4"}
    assert found.withheld == {"B": Withheld("2"), "C": Withheld("3", "sudo")}
