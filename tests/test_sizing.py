"""The numbers of a profile, against the arithmetic written out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvpatch.kv_size import GIB, MIB
from kvpatch.model_config import Model, parse_model
from kvpatch.sizing import BLOCK, Wanted, folder_for, numbers
from kvpatch.vllm_options import default_utilization
from packaging.version import Version

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
R1 = {
    **LLAMA,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
}


def model(given: dict[str, Any], name: str = "m") -> Model:
    return parse_model(json.loads(json.dumps(given)), name)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_buffer_holds_the_longest_prompt_on_a_rank(ranks: int) -> None:
    found = numbers(Wanted(model(LLAMA), ranks=ranks), gds=True)
    token = 32 * 2 * (8 // ranks) * 128 * 2
    assert found.token_bytes == token
    assert found.buffer_mib == token * 131072 // MIB


def test_deepseek_r1_by_mla_is_a_25th_of_what_is_said_elsewhere() -> None:
    found = numbers(Wanted(model(R1)), gds=True)
    total = 163840 * 61 * (512 + 64) * 2
    assert found.token_bytes * 163840 == total
    assert round(total / 1e9, 2) == 11.51
    assert round(total / GIB, 2) == 10.72
    assert round(163840 * 2 * 61 * 7168 * 2 / 1e9, 1) == 286.6


def test_a_prompt_takes_whole_chunks_of_256_tokens() -> None:
    one, two = (numbers(Wanted(model(LLAMA), longest=n), gds=True) for n in (256, 257))
    assert (one.buffer_mib, two.buffer_mib) == (32, 64)


@pytest.mark.parametrize("vllm", [Version("0.19.1"), Version("0.32.0"), None])
@pytest.mark.parametrize("gib", [40.0, 80.0, 141.0])
def test_the_engines_share_leaves_room_for_the_buffer(gib: float, vllm: Version | None) -> None:
    found = numbers(Wanted(model(LLAMA), ranks=8, gpu_gib=gib), gds=True, vllm=vllm)
    assert found.share is not None
    assert found.share * gib + found.buffer_mib / 1024 <= default_utilization(vllm) * gib
    without = numbers(Wanted(model(LLAMA), ranks=8, gpu_gib=gib), gds=False, vllm=vllm)
    assert without.share == without.whole == default_utilization(vllm)
    assert numbers(Wanted(model(LLAMA)), gds=True).share is None


def test_cpu_memory_holds_four_prompts_and_the_blocks_fill_it() -> None:
    found = numbers(Wanted(model(LLAMA), longest=32768), gds=False)
    assert found.cpu_gib == 4 * 32768 * found.token_bytes / GIB
    assert found.blocks == found.cpu_gib * GIB // (found.token_bytes * BLOCK)
    assert numbers(Wanted(model(LLAMA), longest=256), gds=False).cpu_gib == 5.0


def test_every_model_rank_count_and_release_has_a_folder_of_its_own() -> None:
    releases = [Version("0.5.5"), Version("0.5.6")]
    found = {
        folder_for("/mnt/x/", Wanted(model(LLAMA, name), ranks=ranks), release)
        for name in ("Llama-3.1-8B", "Qwen3")
        for ranks in (1, 2)
        for release in releases
    }
    assert len(found) == 8
    assert all(folder.startswith("/mnt/x/") for folder in found)
    odd = folder_for("/mnt/x", Wanted(model(LLAMA, "../a b_c/$d")), releases[0])
    assert odd == "/mnt/x/a-b-c-d-tp1-lmcache0.5.5"
