"""Rules about the command and the environment, on real releases."""

from __future__ import annotations

import pytest
from kvpatch import rules
from kvpatch.rules import Level
from linted import BARE, BLEND, LMCACHE, ids, only, run

pytestmark = pytest.mark.releases


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
    assert ids(run("", serve=both)) == {"two-connectors"}


def test_gpu_memory_that_does_not_leave_room_for_the_buffer_is_a_warning() -> None:
    text = "gds_path: /mnt/a\ngds_buffer_size: 4096\n"
    # vLLM's default may leave enough: the memory of the GPU is not known.
    for flags, level in (
        ("", Level.NOTE),
        ("--gpu-memory-utilization 0.9", Level.WARNING),
        ("--gpu-memory-utilization 0.8", None),
    ):
        linted = run(text, serve=f"vllm serve m {flags} {LMCACHE % ''}")
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
