"""A lower bound on the bytes of a model's weights."""

from __future__ import annotations

from typing import Any

import pytest
from kvpatch.weights import least

LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "hidden_act": "silu",
    "vocab_size": 128256,
}
# What the model cards say, in parameters of 2 bytes.
LLAMA_8B, QWEN3_30B = 8.03e9, 30.5e9


def bound(text: dict[str, Any], layers: int = 32, heads: int = 32, kv: int = 8) -> int:
    return least(text, layers=layers, heads=heads, kv_heads=kv, head=128)


def test_it_is_near_a_dense_model_and_never_above_it() -> None:
    assert 0.9 * 2 * LLAMA_8B < bound(LLAMA) < 2 * LLAMA_8B


def test_of_experts_one_counts() -> None:
    experts = {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "hidden_act": "silu",
        "vocab_size": 151936,
        "num_experts": 128,
        "moe_intermediate_size": 768,
    }
    assert 0 < bound(experts, layers=48, kv=4) < 2 * QWEN3_30B


@pytest.mark.parametrize("lacking", ["vocab_size", "intermediate_size", "hidden_size"])
def test_what_is_not_said_counts_for_nothing(lacking: str) -> None:
    some = {name: value for name, value in LLAMA.items() if name != lacking}
    assert bound(some) < bound(LLAMA)
    assert bound({**LLAMA, lacking: "many"}) == bound(some)


def test_quantized_weights_take_at_least_half_a_byte() -> None:
    assert 4 * bound({**LLAMA, "quantization_config": {"bits": 4}}) == bound(LLAMA)
