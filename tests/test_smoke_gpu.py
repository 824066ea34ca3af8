from __future__ import annotations

import pytest
from kvpatch.smoke_gpu import on_a_gpu
from packaging.version import Version


@pytest.mark.parametrize(
    ("version", "shape"),
    [
        ("0.22.1", "[2, NB, BS, NH, HS]"),
        ("0.23.0", "[NB, 2, BS, NH, HS]"),
        ("0.25.1", "[NB, 2, BS, NH, HS]"),
        ("0.26.0", "[NB, NH, BS, 2*HS]"),
        ("0.33.0.dev1", "[NB, NH, BS, 2*HS]"),
    ],
)
def test_the_shape_of_the_kv_cache_follows_the_release(version: str, shape: str) -> None:
    assert on_a_gpu(Version(version), "llama")["kv_shape"] == shape


@pytest.mark.parametrize(
    ("version", "arch", "second"),
    [
        ("0.22.0", "qwen3", True),
        ("0.22.0", "llama", False),
        ("0.23.0", "llama", True),
        ("0.24.0", "qwen2", False),
        ("0.28.0", None, False),
        ("0.29.0", None, True),
    ],
)
def test_the_runner_follows_release_and_model(version: str, arch: str | None, second: bool) -> None:
    assert ("V2" in on_a_gpu(Version(version), arch)["runner"]) is second


def test_piecewise_graphs_come_with_0_17() -> None:
    assert on_a_gpu(Version("0.17.0"), "llama")["graph_mode"] == "PIECEWISE"
    assert on_a_gpu(Version("0.16.0"), "llama")["graph_mode"].startswith("NONE")
