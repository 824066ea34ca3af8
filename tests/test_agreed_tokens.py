"""The tokens that tensor-parallel ranks recompute: real LMCache files on gloo ranks (KV012)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kvpatch.patches.kv012_agree_on_tokens import BLENDER
from lmcache_files import patched_text, stock_files
from releases import release_file, vllm_releases
from tensors import load_torch

load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

CHILD = Path(__file__).with_name("agreeing_ranks.py")
STATE = "vllm/distributed/parallel_state.py"
VLLM = vllm_releases()
RELEASES = ["0.3.3", "0.3.9.post2", "0.4.4", "0.5.6"]
"""The newest last."""


Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Found]:
    """What each rank picked at a check layer, and how wrong o_proj's sum is, by what was done."""
    folder = tmp_path_factory.mktemp("ranks")
    orders: dict[str, dict[str, Any]] = {}

    def order(
        name: str, text: str, ranks: int = 2, noise: float = 0.0, vllm: str = VLLM[-1]
    ) -> None:
        orders[name] = {
            "blender": text,
            "parallel_state": release_file("vllm", vllm, STATE).decode(),
            "ranks": ranks,
            "kv_heads": 2,
            "ratio": 0.15,
            "noise": noise,
            "seed": 0,
            "meet": str(folder / f"meet-{len(orders)}"),
        }

    for release in RELEASES:
        stock = stock_files(release)[BLENDER].decode()
        patched = patched_text(release, BLENDER)
        order(f"{release} released", stock)
        order(f"{release} released alone", stock, 1)
        order(f"{release} patched", patched)
        order(f"{release} patched alone", patched, 1)
    order("four", patched, 4)
    order("noise", patched, noise=1e-3)
    order("oldest vLLM", patched, vllm=VLLM[0])
    file = folder / "orders.json"
    file.write_text(json.dumps(orders))
    ended = subprocess.run(
        [sys.executable, CHILD, file], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found: Mapping[str, Found] = json.loads(ended.stdout)
    assert all(len(found[name]) == one["ranks"] for name, one in orders.items())
    return found


def rows(found: Found) -> list[list[int]]:
    return [one["rows"] for one in found]


@pytest.mark.parametrize("release", RELEASES)
def test_as_released_ranks_pick_apart_and_add_up_rows_of_different_tokens(
    layers: Mapping[str, Found], release: str
) -> None:
    first, second = layers[f"{release} released"]
    assert first["rows"] != second["rows"]
    assert first["error"] > 0.1


@pytest.mark.parametrize("release", RELEASES)
def test_patched_they_pick_what_one_rank_would(layers: Mapping[str, Found], release: str) -> None:
    (alone,) = layers[f"{release} patched alone"]
    found = layers[f"{release} patched"]
    assert rows(found) == [alone["rows"]] * 2
    assert max(one["error"] for one in found) < 1e-5


@pytest.mark.parametrize("release", RELEASES)
def test_one_rank_picks_as_released(layers: Mapping[str, Found], release: str) -> None:
    assert layers[f"{release} patched alone"] == layers[f"{release} released alone"]


def test_ranks_that_share_kv_heads_pick_the_same(layers: Mapping[str, Found]) -> None:
    (alone,) = layers["0.5.6 patched alone"]
    assert rows(layers["four"]) == [alone["rows"]] * 4
    assert max(one["error"] for one in layers["four"]) < 1e-5


def test_a_rank_that_rounds_otherwise_takes_the_first_ones_pick(
    layers: Mapping[str, Found],
) -> None:
    first, second = layers["noise"]
    assert first["rows"] == second["rows"]


def test_the_oldest_vllm_reduces_as_the_newest(layers: Mapping[str, Found]) -> None:
    assert layers["oldest vLLM"] == layers["0.5.6 patched"]


@pytest.mark.parametrize("vllm", VLLM)
def test_every_vllm_has_what_the_patch_calls(vllm: str) -> None:
    module = ast.parse(release_file("vllm", vllm, STATE))
    (getter,) = [n for n in module.body if getattr(n, "name", "") == "get_tp_group"]
    (owner,) = [n for n in module.body if getattr(n, "name", "") == "GroupCoordinator"]
    assert isinstance(getter, ast.FunctionDef)
    assert isinstance(owner, ast.ClassDef)
    assert not getter.args.args
    methods = {n.name: n for n in owner.body if isinstance(n, ast.FunctionDef)}
    assert [one.arg for one in methods["all_reduce"].args.args] == ["self", "input_"]
    assert [one.arg for one in methods["broadcast"].args.args] == ["self", "input_", "src"]
    assert [ast.unparse(one) for one in methods["broadcast"].args.defaults] == ["0"]
    assert "self.world_size = " in ast.unparse(methods["__init__"])
