"""Rules about CUDA graphs, on real releases."""

from __future__ import annotations

import re

import pytest
from kvpatch import key_history, rules
from kvpatch.launch_script import parse_launch
from kvpatch.lint import lint
from kvpatch.rules import Level
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import parse_yaml
from linted import BARE, BLEND, LMCACHE, NEWEST, ids, only, run, schema
from packaging.version import Version
from releases import release_file

pytestmark = pytest.mark.releases

CPU = "chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 5\n"
PIECEWISE = """-cc '{"cudagraph_mode": "PIECEWISE"}'"""
OFF, ON = {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}


def graphs_of(text: str, flags: str, vllm: str | None, **more: object) -> list[Level]:
    linted = run(text, serve=f"vllm serve m {flags}", vllm=vllm, **more)  # type: ignore[arg-type]
    return [one.level for one in linted.findings if one.rule is rules.GRAPHS]


@pytest.mark.parametrize(
    ("vllm", "level"),
    [
        ("0.21.0", None),
        ("0.22.0", Level.WARNING),
        ("0.25.1", Level.WARNING),
        ("0.26.0", Level.WARNING),
        ("0.29.0", Level.ERROR),
        ("0.33.0", Level.ERROR),
    ],
)
def test_with_full_graphs_the_newer_runner_skips_the_load_of_any_cached_prompt(
    vllm: str, level: Level | None
) -> None:
    serve = LMCACHE % ""
    # In a whole environment the variable is known not to be set.
    assert graphs_of(CPU, serve, vllm, environ={"A": "1"}) == [level] * bool(level)
    assert graphs_of(CPU, serve, vllm) == [Level.WARNING] * bool(level)
    assert graphs_of(CPU, serve, vllm, environ=OFF) == []
    assert graphs_of(CPU, serve, vllm, environ=ON) == [Level.ERROR]
    for right in ("--enforce-eager", "-O0", PIECEWISE):
        assert graphs_of(CPU, f"{right} {serve}", vllm, environ=ON) == []
    assert graphs_of(CPU, LMCACHE % BARE, vllm, environ=ON) == []


def test_where_the_variable_may_be_set_otherwise_the_skipped_load_is_no_error() -> None:
    serve = f"vllm serve m {LMCACHE % ''}"
    told = only(run(CPU, serve=serve, vllm="0.32.0"), rules.GRAPHS).message
    assert "skips the load there: give " in told
    assert "VLLM_USE_V2_MODEL_RUNNER=0 (give --env-file or --pid" in told
    script = f"#!/bin/bash\nexport VLLM_USE_V2_MODEL_RUNNER=$RUNNER\n{serve}\n"
    around = Surroundings(launch=parse_launch(script), vllm=Version("0.32.0"))
    found = lint(parse_yaml(CPU), schema(NEWEST), key_history.load(), around).findings
    assert [one.level for one in found if one.rule is rules.GRAPHS] == [Level.WARNING]


def test_without_vllms_release_the_skipped_load_is_a_note() -> None:
    assert graphs_of(CPU, LMCACHE % "", None) == [Level.NOTE]
    assert graphs_of(CPU, LMCACHE % "", None, environ=OFF) == []
    assert graphs_of(CPU, LMCACHE % BARE, None) == []


@pytest.mark.parametrize(("vllm", "found"), [("0.14.1", []), ("0.15.0", [Level.ERROR])])
def test_the_newer_runner_that_is_asked_for_skips_the_load_since_it_has_connectors(
    vllm: str, found: list[Level]
) -> None:
    assert graphs_of(CPU, LMCACHE % "", vllm, environ=ON) == found
    # Before 0.17 the bare setting is not read.
    assert graphs_of(CPU, LMCACHE % BARE, vllm, environ=ON) == found


def test_another_connector_and_a_vllm_for_cpus_skip_nothing() -> None:
    other = """--kv-transfer-config '{"kv_connector": "%s", "kv_role": "kv_both"}'"""
    for name in ("LMCacheMPConnector", "NixlConnector"):
        assert graphs_of(CPU, other % name, "0.32.0", environ=ON) == []
    launch = parse_launch(f"vllm serve m {LMCACHE % ''}")
    for text in (CPU, f"{CPU}use_layerwise: true\n"):
        around = Surroundings(launch=launch, vllm=Version("0.32.0"), on_cpu=True)
        found = lint(parse_yaml(text), schema(NEWEST), key_history.load(), around).findings
        (told,) = (one for one in found if one.rule is rules.GRAPHS)
        assert told.level is Level.NOTE
        assert "built for the CPU" in told.message


@pytest.mark.parametrize("lower", ["", BARE])
def test_a_class_that_is_not_asked_is_not_sent_to_the_setting(lower: str) -> None:
    module = lower[:-1] if lower else ', "kv_connector_extra_config": {'
    module += '}, "kv_connector_module_path": "lmcache.integration.vllm.x"'
    module = module.replace("{}", '{"a": 1}')
    for vllm in ("0.25.1", "0.32.0"):
        serve = f"vllm serve m {LMCACHE % module}"
        told = only(run(CPU, serve=serve, vllm=vllm, environ=ON), rules.GRAPHS).message
        assert told.endswith(f"give {PIECEWISE}, or set VLLM_USE_V2_MODEL_RUNNER=0")


def test_the_backend_of_offloading_that_is_lmcaches_connector_skips_it_too() -> None:
    flags = "--kv-offloading-backend lmcache --kv-offloading-size 4"
    assert graphs_of(CPU, flags, "0.22.1", environ=ON) == [Level.ERROR]
    assert graphs_of(CPU, flags, "0.23.0", environ=ON) == []


@pytest.mark.parametrize(
    ("vllm", "right"), [("0.16.0", "--enforce-eager"), ("0.25.1", '{"use_layerwise": true}')]
)
def test_layer_by_layer_without_blending_wants_no_full_graphs_either(vllm: str, right: str) -> None:
    text = f"{CPU}use_layerwise: true\n"
    serve = f"vllm serve m {LMCACHE % ''}"
    for environ in (None, OFF):
        found = only(run(text, serve=serve, vllm=vllm, environ=environ), rules.GRAPHS)
        assert found.level is Level.ERROR
        assert f"give {right}" in found.message.replace('"kv_connector_extra_config": ', "")
    assert graphs_of(text, f"{PIECEWISE} {LMCACHE % ''}", vllm) == []


@pytest.mark.parametrize("release", ["0.15.0", "0.22.0", "0.29.0", "0.32.0", "0.33.0"])
def test_in_full_graphs_that_runner_loads_without_what_attention_is_told(release: str) -> None:
    runner = release_file("vllm", release, "vllm/v1/worker/gpu/model_runner.py").decode()
    branch = r"if (?:batch_desc\.cg_mode == CUDAGraphMode\.FULL|use_cudagraph):\n"
    replayed = branch + r"(?:(?!set_forward_context|else:)[\s\S])*?\.pre_forward\("
    assert re.search(replayed, runner)
    connector = release_file("vllm", release, "vllm/v1/worker/gpu/kv_connector.py").decode()
    assert re.search(r"else:\s+with set_forward_context\(None, ", connector)


def test_before_them_it_calls_no_connector() -> None:
    runner = release_file("vllm", "0.14.1", "vllm/v1/worker/gpu/model_runner.py")
    assert b"kv_connector.pre_forward" not in runner


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


@pytest.mark.parametrize(
    ("flags", "vllm", "levels"),
    [
        ("-O0", "0.32.0", []),
        ("-O 0", "0.32.0", []),
        ("-O=1", "0.12.0", []),
        ("--optimization-level 0", "0.32.0", []),
        ("-O2", "0.32.0", [Level.ERROR]),
        ("-O0", "0.11.2", [Level.NOTE]),
        ("-O0", None, [Level.NOTE]),
        ("""-O0 -cc '{"cudagraph_mode": "FULL"}'""", "0.32.0", [Level.ERROR]),
    ],
)
def test_an_optimization_level_chooses_the_graphs(
    flags: str, vllm: str | None, levels: list[Level]
) -> None:
    serve = f"vllm serve m --no-enable-prefix-caching {flags} {LMCACHE % ''}"
    linted = run(BLEND, serve=serve, vllm=vllm)
    assert [one.level for one in linted.findings if one.rule is rules.GRAPHS] == levels


MULTI = """--kv-transfer-config '{"kv_connector": "MultiConnector", "kv_role": "kv_both",
"kv_connector_extra_config": {%s"connectors": [
{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_connector_extra_config": {%s}},
{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_connector_extra_config": {%s}}
]}}'"""


@pytest.mark.parametrize(
    ("inside", "found"),
    [
        (('"use_layerwise": true, ', "", ""), {"cuda-graphs"}),
        (("", '"use_layerwise": true', ""), {"cuda-graphs"}),
        (("", "", '"use_layerwise": true'), set()),
        (("", "", '"use_layerwise": "True"'), set()),
        (("", "", '"use_layerwise": 0'), {"cuda-graphs"}),
        (("", "", '"use_layerwise": 1, "lmcache.chunk_sizes": 1'), {"unknown-override"}),
        (('"lmcache.chunk_sizes": 1, ', "", '"use_layerwise": 1'), set()),
    ],
)
def test_each_connector_inside_of_multiconnector_has_its_own_settings(
    inside: tuple[str, str, str], found: set[str]
) -> None:
    serve = f"vllm serve m --no-enable-prefix-caching {MULTI % inside}"
    assert ids(run(BLEND, serve=serve, vllm="0.32.0")) == found


def test_use_layerwise_of_lmcaches_own_class_is_not_asked_for() -> None:
    module = BARE + ', "kv_connector_module_path": "lmcache.integration.vllm.x"'
    serve = f"vllm serve m --no-enable-prefix-caching {LMCACHE % module}"
    assert only(run(BLEND, serve=serve, vllm="0.32.0"), rules.GRAPHS).level is Level.WARNING
    piecewise = f"""{serve} -cc '{{"cudagraph_mode": "PIECEWISE"}}'"""
    assert not ids(run(BLEND, serve=piecewise, vllm="0.32.0"), Level.WARNING) & {"cuda-graphs"}


def test_the_older_runner_alone_keeps_full_graphs() -> None:
    serve = f"vllm serve m --no-enable-prefix-caching {LMCACHE % ''}"
    environ = {"LMCACHE_CONFIG_FILE": "-", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    for given in (environ, {**environ, "VLLM_USE_V2_MODEL_RUNNER": "1"}):
        found = only(run(BLEND, serve=serve, vllm="0.32.0", environ=given), rules.GRAPHS)
        assert ("=0 keeps full CUDA graphs" in found.message) is (given is environ)
    front = f"VLLM_USE_V2_MODEL_RUNNER=0 {serve}"
    assert "=0 keeps" in only(run(BLEND, serve=front, vllm="0.32.0"), rules.GRAPHS).message


def test_inside_another_connector_the_setting_is_the_inner_ones() -> None:
    inner = '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'
    extra = f'"kv_connector_extra_config": {{"connectors": [{inner}]}}'
    multi = f'{{"kv_connector": "MultiConnector", "kv_role": "kv_both", {extra}}}'
    serve = f"vllm serve m --kv-transfer-config '{multi}'"
    for text in (CPU, f"{CPU}use_layerwise: true\n"):
        message = only(run(text, serve=serve, vllm="0.32.0", environ=ON), rules.GRAPHS).message
        assert '{"use_layerwise": true} of LMCacheConnectorV1, inside connectors' in message
    plain = run(CPU, serve=f"vllm serve m {LMCACHE % ''}", vllm="0.32.0", environ=ON)
    assert "inside connectors" not in only(plain, rules.GRAPHS).message
