"""Commands, scripts and units: which of their commands is taken, and with what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kvpatch.launch import Launch
from kvpatch.launch_script import parse_launch, parse_script
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.script_file import ScriptFile

SCRIPT = """#!/usr/bin/env bash
# Don't read this line: it has one quotation mark.
set -eu
export PYTHONHASHSEED=0
LMCACHE_USE_EXPERIMENTAL=True
set -a
LMCACHE_CONFIG_FILE='/etc/a b.yaml'
. /srv/vllm.env
exec {vllm} serve /models/m \\
  --no-enable-prefix-caching \\
  --kv-transfer-config '{{"kv_connector":
    "LMCacheConnectorV1"}}'
"""


@pytest.mark.parametrize("vllm", ["vllm", "/opt/v/bin/vllm", '"$VLLM_BIN"', '"$venv/bin/vllm"'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_command_is_found_in_a_script_with_what_is_set_before_it(vllm: str, end: str) -> None:
    found = parse_script(SCRIPT.format(vllm=vllm).replace("\n", end))
    assert found is not None
    assert found.model == "/models/m"
    assert found.args[0] == "serve"
    assert found.on("enable-prefix-caching") is False
    assert found.in_process
    assert found.known
    assert found.environ == {"PYTHONHASHSEED": "0", "LMCACHE_CONFIG_FILE": "/etc/a b.yaml"}


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("cd /srv && A=1 vllm serve m --tp 2 && echo --tp 3", "2"),
        ("nohup python -m vllm.entrypoints.openai.api_server --model m --tp 4 &", "4"),
        ("vllm serve m --tp 5 # --tp 6", "5"),
        ("vllm serve m --tp 7 | tee --tp 8", "7"),
        ("vllm serve m --tp 9; wait --tp 1", "9"),
    ],
)
@pytest.mark.parametrize("parse", [parse_script, parse_launch])
def test_the_command_is_one_of_several_on_a_line(
    parse: Callable[[str], Launch | None], line: str, flag: str
) -> None:
    found = parse(f"{line}\n")
    assert found is not None
    assert found.flags["tp"] == flag
    assert found.model == "m"


def test_what_a_script_computes_is_not_taken_for_a_value() -> None:
    script = 'here=$(pwd)\nexport A="$here/a" B=1\nC=`pwd`\nvllm serve m\n'
    found = parse_script(script)
    assert found is not None
    assert found.environ == {"B": "1"}


@pytest.mark.parametrize("text", ["", "A=1\n", "pip install vllm\n", "vllm 'serve m\n", "\0\n"])
def test_a_script_that_does_not_start_vllm_has_no_command(text: str) -> None:
    assert parse_script(text) is None


def test_a_command_that_no_shell_reads_is_a_usage_error() -> None:
    with pytest.raises(KvpatchError, match="No closing quotation") as caught:
        parse_launch("vllm serve 'm")
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_command_that_lost_its_backslashes_is_one() -> None:
    found = parse_launch("vllm serve m\n  --tp 2 \\\n --port 3\n")
    assert (found.flags["tp"], found.flags["port"]) == ("2", "3")


def test_of_several_the_last_that_runs_in_any_case_is_taken() -> None:
    script = "if x; then\n vllm serve a\nfi\nvllm serve b &\n[ -x y ] && vllm serve c\n"
    found = parse_script(script)
    assert found is not None
    assert (found.model, found.lines) == ("b", (2, 5, 4))
    assert "3 commands" in found.several
    assert "line 4 was looked at" in found.several
    only = parse_script("vllm serve --help || exit 1\nvllm serve a\n")
    assert only is not None
    assert (only.model, only.several) == ("a", "")


def test_two_on_one_line_are_told() -> None:
    found = parse_launch("vllm serve a & vllm serve b; wait")
    assert (found.model, found.lines) == ("b", (1, 1))
    assert "2 commands" in found.several


@pytest.mark.parametrize(
    "command",
    [
        "docker run -v ./prod:/cfg IMAGE vllm serve m --config /abs/bad.yaml",
        "podman exec c sh -c 'vllm serve m --config /abs/bad.yaml'",
        "ssh HOST vllm serve m --config /abs/bad.yaml",
        "$RUN vllm serve m --config /abs/bad.yaml",
    ],
)
def test_a_file_that_is_elsewhere_is_not_read_here(command: str) -> None:
    found = parse_launch(command)
    assert found.config is not None
    assert found.config.path == "/abs/bad.yaml"
    assert not found.known
    assert found.args == ()
    assert "config" not in found.flags


def test_another_program_is_given_options() -> None:
    found = parse_launch("cd x && A=1 docker run vllm/vllm-openai --model m $MORE; echo --tp 2")
    assert (found.model, found.environ, found.args) == ("m", {}, ("--model", "m", "$MORE"))
    assert "tp" not in found.flags
    assert not found.known


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("export LMCACHE_CONFIG_FILE=a.yaml\ncd /srv", "/srv/a.yaml"),
        ("export LMCACHE_CONFIG_FILE=/a.yaml\ncd /srv", "/a.yaml"),
        ("export LMCACHE_CONFIG_FILE=a.yaml", "a.yaml"),
        ("export LMCACHE_CONFIG_FILE=a.yaml\ncd $X", None),
        ("export LMCACHE_CONFIG_FILE=a.yaml\n[ x ] && export LMCACHE_CONFIG_FILE=b.yaml", None),
    ],
)
def test_lmcaches_file_is_named_from_where_vllm_runs(script: str, name: str | None) -> None:
    found = parse_script(f"{script}\nvllm serve m\n")
    assert found is not None
    assert found.environ.get("LMCACHE_CONFIG_FILE") == name


def test_a_unit_is_read_as_one() -> None:
    found = parse_script("[Service]\nWorkingDirectory=/srv\nExecStart=/v/bin/vllm serve m\n")
    assert found is not None
    assert (found.model, found.folder) == ("m", "/srv")


CRLF = "export A=1\r\nvllm serve m \\\r\n  --port 1\r\n"


def test_carriage_returns_are_told_where_a_shell_reads_them() -> None:
    found = parse_script(CRLF)
    assert found is not None
    assert (found.returned, found.flags) == (("the script",), {"port": "1"})
    assert parse_launch(CRLF).returned == ("the command",)
    clean = parse_script(CRLF.replace("\r", ""))
    assert clean is not None
    assert clean.returned == ()
    sourced = parse_script(
        ". ./x.env\nvllm serve m\n", "", lambda _: ScriptFile("", "", returned=True)
    )
    assert sourced is not None
    assert sourced.returned == ("./x.env",)
    # systemd ends a line with them.
    unit = parse_script("[Service]\r\nExecStart=/v/bin/vllm serve m \\\r\n --port 1\r\n")
    assert unit is not None
    assert (unit.returned, unit.flags) == ((), {"port": "1"})


def test_a_script_that_is_too_long_is_a_usage_error() -> None:
    for parse in (parse_script, parse_launch):
        with pytest.raises(KvpatchError, match="more commands than") as caught:
            parse("A=" + "$( " * 3000 + ")" * 3000 + "\nvllm serve m\n")
        assert caught.value.exit_code is ExitCode.USAGE


def test_variables_of_a_container_are_told_and_not_where_its_file_is() -> None:
    found = parse_launch(
        "docker run -e LMCACHE_CHUNK_SIZE=8 -e LMCACHE_CONFIG_FILE=/x vllm/vllm-openai --model m"
    )
    assert found.environ == {"LMCACHE_CHUNK_SIZE": "8"}
    assert found.unsure.names == {"LMCACHE_CONFIG_FILE"}


@pytest.mark.parametrize("front", ["taskset -c $CPUS", "timeout $T", "env PATH=/opt/bin:$PATH"])
def test_a_value_in_front_is_no_program_that_starts_vllm_elsewhere(front: str) -> None:
    found = parse_launch(f"{front} vllm serve m --config s.yaml")
    assert (found.config, found.flags["config"]) == (None, "s.yaml")


def test_braces_of_json_without_quotes_are_what_bash_makes_of_them() -> None:
    found = parse_launch('vllm serve m --kv-transfer-config {"kv_connector":"A","kv_role":"b"}')
    assert found.flags["kv-transfer-config"] == "kv_connector:A"
    assert "not JSON" in found.problem
