"""How many bytes a model's weights take at least, from its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LEAST_QUANTIZED = 0.5
"""Bytes of a weight in the narrowest format that vLLM serves: four bits."""


def least(text: Mapping[str, Any], *, layers: int, heads: int, kv_heads: int, head: int) -> int:
    """A lower bound: the embedding once, and in each layer attention and one dense MLP.

    What a configuration does not say counts for nothing, and of several experts one does.

    Args:
        text: the configuration of the language model.
        layers: with attention.
        heads: for queries, in one layer.
        kv_heads: the same for keys and values.
        head: values in a head.
    """
    hidden = _number(text, "hidden_size", "n_embd", "d_model")
    inner = _number(text, "intermediate_size")
    # A gated MLP has three matrices.
    matrices = 3 if text.get("hidden_act") in ("silu", "swish") else 2
    attention = 0 if text.get("kv_lora_rank") else 2 * hidden * head * (heads + kv_heads)
    count = _number(text, "vocab_size") * hidden + layers * (attention + matrices * hidden * inner)
    return int(count * (_LEAST_QUANTIZED if text.get("quantization_config") else 2))


def _number(text: Mapping[str, Any], *names: str) -> int:
    found = (text.get(name) for name in names)
    return next((one for one in found if isinstance(one, int) and one > 0), 0)
