"""Sizes of KV caches, by hand and for models whose numbers are public."""

from __future__ import annotations

from typing import Any

import pytest
from kvpatch.kv_size import GIB, kv_size, unshared, utilization, whole_gib, whole_mib
from kvpatch.model_config import Model, parse_model
from kvpatch.outcome import ExitCode, KvpatchError

LLAMA: dict[str, Any] = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_R1: dict[str, Any] = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
}


def model(data: dict[str, Any], **more: Any) -> Model:
    return parse_model({**data, **more}, "m")


def test_deepseek_r1_takes_a_25th_of_what_is_said_without_mla() -> None:
    size = kv_size(model(DEEPSEEK_R1)).of(163840)
    assert round(size / 1e9, 2) == 11.51
    assert round(size / GIB, 2) == 10.72
    without = 2 * 61 * 7168 * 2 * 163840
    assert (int(without / GIB), round(without / 1e9, 1)) == (266, 286.6)
    # MLA's one vector is on every rank.
    assert kv_size(model(DEEPSEEK_R1), 8).of(163840) == size


def test_grouped_heads_are_shared_out_over_the_ranks() -> None:
    assert kv_size(model(LLAMA)).bytes == 128 * 1024
    assert kv_size(model(LLAMA), 8).bytes == 16 * 1024
    assert kv_size(model(LLAMA), 16).bytes == 16 * 1024
    assert "2 * 8 KV heads * 128 * 2 bytes" in kv_size(model(LLAMA)).formula


def test_without_a_number_of_kv_heads_all_heads_have_their_own() -> None:
    plain = {name: value for name, value in LLAMA.items() if name != "num_key_value_heads"}
    assert kv_size(model(plain)).bytes == 4 * 128 * 1024
    assert kv_size(model(plain, multi_query=True)).bytes == 16 * 1024


@pytest.mark.parametrize(("dtype", "part"), [("fp8", 2), ("bfloat16", 1), ("auto", 1)])
def test_the_dtype_of_the_cache_counts(dtype: str, part: int) -> None:
    assert kv_size(model(LLAMA), 1, dtype).bytes == 128 * 1024 // part


def test_layers_with_a_window_forget_in_vllm_and_not_in_lmcache() -> None:
    kinds = ["sliding_attention", "full_attention"] * 16
    size = kv_size(model(LLAMA, layer_types=kinds, sliding_window=1024))
    assert size.of(4096) == 4096 * 128 * 1024
    assert size.in_engine(4096) == (4096 + 1024) * 64 * 1024
    assert size.in_engine(512) == size.of(512)


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ({"layer_types": ["linear_attention", "full_attention"] * 16}, 16),
        ({"full_attention_interval": 4}, 8),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, 4),
        ({"attn_layer_indices": [3, 7, 11]}, 3),
        ({"hybrid_override_pattern": "M*M-" * 8}, 8),
        ({"layers_block_type": ["mamba", "attention"] * 16}, 16),
    ],
)
def test_hybrid_models_count_the_layers_with_attention(more: dict[str, Any], layers: int) -> None:
    found = model(LLAMA, **more)
    assert found.layers == layers
    assert found.other_layers == 32 - layers
    assert kv_size(found).bytes == layers * 4096


@pytest.mark.parametrize(
    ("ranks", "dtype", "told"),
    [(3, "auto", "shared out"), (0, "auto", "0 ranks"), (1, "int3", "no dtype")],
)
def test_what_cannot_be_is_a_usage_error(ranks: int, dtype: str, told: str) -> None:
    with pytest.raises(KvpatchError, match=told) as caught:
        kv_size(model(LLAMA), ranks, dtype)
    assert caught.value.exit_code is ExitCode.USAGE


def test_sizes_are_rounded_up_and_shares_down() -> None:
    assert (whole_mib(1), whole_mib(2**20), whole_mib(2**20 + 1)) == (1, 1, 2)
    assert (whole_gib(1), whole_gib(2**30)) == (1, 1)
    assert utilization(80, 0, 0.9) == 0.9
    assert utilization(80, 4096, 0.9) == 0.85
    assert utilization(80, 4097, 0.9) == 0.84
    with pytest.raises(KvpatchError, match="leaves vLLM nothing") as caught:
        utilization(24, 24 * 1024, 0.9)
    assert caught.value.exit_code is ExitCode.REFUSED


@pytest.mark.parametrize(
    ("heads", "kv_heads", "taken"),
    [
        (28, 4, [1, 2, 4, 28]),
        (32, 8, [1, 2, 4, 8, 16, 32]),
        (12, 8, [1, 2, 4]),
        (6, 1, [1, 2, 3, 6]),
    ],
)
def test_ranks_that_vllm_takes_share_out_heads_and_share_or_repeat_kv_heads(
    heads: int, kv_heads: int, taken: list[int]
) -> None:
    found = model(LLAMA, num_attention_heads=heads, num_key_value_heads=kv_heads)
    assert [ranks for ranks in range(1, 40) if not unshared(found, ranks)] == taken


def test_mla_has_no_kv_heads_to_share_out() -> None:
    latent = model(DEEPSEEK_R1, num_attention_heads=96, num_key_value_heads=64)
    assert not unshared(latent, 96)
    plain = model(LLAMA, num_attention_heads=96, num_key_value_heads=64)
    assert "64 KV heads" in unshared(plain, 96)
    assert "96 attention heads" in unshared(latent, 5)
