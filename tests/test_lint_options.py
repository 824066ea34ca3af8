"""Words at which vLLM stops before it looks at any configuration."""

from __future__ import annotations

import pytest
from kvpatch import rules
from kvpatch.key_history import load
from kvpatch.launch_script import parse_launch
from kvpatch.lint import lint
from kvpatch.rules import Level
from kvpatch.serve_config import converted
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import parse_yaml
from linted import BARE, LMCACHE, run, schema
from packaging.version import Version

pytestmark = pytest.mark.releases

GIVEN = LMCACHE % BARE


def told(words: str, vllm: str = "0.32.0") -> list[str]:
    """What is said of a command's words, with the level."""
    found = run("chunk_size: 256\n", serve=f"vllm serve {words} {GIVEN}", vllm=vllm).findings
    return [f"{one.level.value}: {one.message}" for one in found if one.rule is rules.SERVE_CONFIG]


@pytest.mark.parametrize(
    ("words", "vllm", "said"),
    [
        ("m --enforce-eagr", "0.32.0", "warning: vLLM 0.32.0 has no option --enforce-eagr"),
        ("m --enforce-eagr", "0.32.0", "the nearest is --enforce-eager"),
        ("m --optimization-level 1", "0.11.0", "warning: vLLM 0.11.0 has no option"),
        ("m --enforce-eager true", "0.32.0", "error: vLLM stops at true"),
        ("m --trust-remote-code true", "0.32.0", "error: vLLM stops at true"),
        ("m --enable-chunked-prefill True", "0.32.0", "error: vLLM stops at True"),
        ("m --disable-log-stats true", "0.32.0", "error: vLLM stops at true"),
        ("--enforce-eager m n", "0.11.0", "error: vLLM stops at n"),
        ("--model m", "0.11.0", "error: vLLM 0.11.0 stops at --model"),
        ("n --model m", "0.32.0", "stops at n besides"),
        ("--served-model-name x m", "0.32.0", "the model has to come first"),
        ("m -tp x", "0.32.0", "stops at -tp x: write a whole number"),
        ("m --tensor-parallel-size", "0.32.0", "--tensor-parallel-size without a value"),
        ("m -O '{}'", "0.32.0", "write JSON behind -cc"),
        ("m -cc '{}'", "0.11.0", "has no -cc"),
        ("m -O.cudagraph_mode=NONE", "0.32.0", "write -cc.cudagraph_mode"),
        ("m --compilation-config 3", "0.32.0", "a level is -O3"),
        (
            "m --kv-transfer-config.kv_connector_extra_config.x --no-enable-prefix-caching",
            "0.32.0",
            "takes --no-enable-prefix-caching as the value of",
        ),
    ],
)
def test_what_vllm_stops_at_is_told(words: str, vllm: str, said: str) -> None:
    assert said in " ".join(told(words, vllm))


@pytest.mark.parametrize("vllm", ["0.11.0", "0.32.0", "99.0"])
@pytest.mark.parametrize(
    "words",
    [
        "m --enforce --port 1 --served-model-name a b",
        "--enforce-eager m",
        "m --no-enforce -tp 2 -O3 --api-key '--x y'",
        'm --enforce-eager "$MORE"',
        'm -tp "$N" "$MODEL"',
    ],
)
def test_what_vllm_takes_is_not_told(words: str, vllm: str) -> None:
    assert told(words, vllm) == []


def test_each_spelling_of_dotted_forms_is_a_connector_of_its_own() -> None:
    serve = "vllm serve m --kv-tr.kv_connector LMCacheConnectorV1 --kv-transfer-config.kv_role X"
    found = run("chunk_size: 256\n", serve=serve, vllm="0.32.0").findings
    assert any("kv_role is missing in one of several" in one.message for one in found)


def test_an_option_of_the_file_is_told_at_its_place() -> None:
    text = "port: 1\nenforce-eagr: true\ncompilation-config: 3\n"
    launch = parse_launch(f"vllm serve m --config s.yaml {GIVEN}")
    config = converted(parse_yaml(text, "s.yaml"), launch.args, Version("0.32.0"))
    around = Surroundings(launch=launch.with_config(config), vllm=Version("0.32.0"))
    linted = lint(parse_yaml("chunk_size: 256\n"), schema("0.5.6"), load(), around)
    places = {(one.line, one.level) for one in linted.findings if one.path == "s.yaml"}
    assert places == {(2, Level.WARNING), (3, Level.ERROR)}


@pytest.mark.parametrize(
    ("words", "vllm", "said"),
    [
        ("--model m --bogus 1", "0.32.0", ["warning: vLLM 0.32.0 has no option --bogus"]),
        ("--model m --trust-remote-code true", "0.32.0", ["warning: vLLM's module does not read"]),
        ("m --port 1 --enforce-eager n", "0.32.0", ["error: vLLM stops at n"]),
        ("m --port 1", "0.9.2", ["error: vLLM stops at m"]),
        ("--model m --served-model-name a b --port 1", "0.9.2", []),
        ("--served-model-name a --model m", "0.32.0", []),
    ],
)
def test_words_of_the_module_are_judged_as_it_takes_them(
    words: str, vllm: str, said: list[str]
) -> None:
    serve = f"python -m vllm.entrypoints.openai.api_server {words} {GIVEN}"
    found = run("chunk_size: 256\n", serve=serve, vllm=vllm).findings
    told = [f"{x.level.value}: {x.message}" for x in found if x.rule is rules.SERVE_CONFIG]
    assert len(told) == len(said)
    assert all(one.startswith(begin) for one, begin in zip(told, said, strict=True))
