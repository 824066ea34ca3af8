"""Rows of vLLM's paged KV cache, found as vLLM's own attention finds them.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import importlib
from typing import Any

# What releases and back ends call it.
_TABLES = ("block_table", "prefill_block_tables", "block_tables", "block_table_tensor")


class Paged:
    """vLLM's cache while one request runs, and after it until the next.

    ``layout`` is that of vLLM's kernel for CPUs (a ``KvLayout``), None on a GPU. ``blocks`` are
    those of the request, ``[blocks]``.
    """

    def __init__(self, layout: Any = None) -> None:
        self.layout = layout
        self.blocks: Any = None

    def find(self, attention: Any) -> None:
        """Note the blocks of the request, once.

        Args:
            attention: vLLM's, of one layer.

        Raises:
            ValueError: vLLM does not say.
        """
        if self.blocks is None:
            self.blocks = blocks_of(attention)

    def read(self, attention: Any, places: Any) -> tuple[Any, Any]:
        """Keys and values of the tokens at these places, each ``[tokens, kv_heads * head_size]``.

        Args:
            attention: vLLM's, of one layer.
            places: int64 places in the request, ``[tokens]``.

        Raises:
            ValueError: the cache is of no known shape.
        """
        import torch

        cache = attention.kv_cache
        cache = cache[0] if isinstance(cache, (list, tuple)) else cache
        heads, size = attention.num_kv_heads, attention.head_size
        if self.layout is None:
            keys, values = halves(cache, heads, size)
            block, inner = self._at(places, keys.shape[1], cache.device)
            return keys[block, inner].flatten(1), values[block, inner].flatten(1)
        if cache.data_ptr() not in self.layout.views:
            raise ValueError("vLLM never wrote into this layer's KV cache")
        length = self.layout.order()[0].shape[0]
        block, inner = self._at(places, length, cache.device)
        found = torch.empty(2, len(places), heads * size, dtype=cache.dtype)
        self.layout.move(found, cache, block * length + inner, False, False)
        return found[0], found[1]

    def _at(self, places: Any, length: int, device: Any) -> tuple[Any, Any]:
        """Blocks of so many tokens, and places in them."""
        import torch

        places = places.to(device)
        blocks = self.blocks.to(device, torch.int64)
        return blocks[torch.div(places, length, rounding_mode="floor")], places % length


def blocks_of(attention: Any) -> Any:
    """The blocks that hold the only request that runs now, as this layer's attention is told them.

    Args:
        attention: vLLM's, of one layer.

    Returns:
        A copy, int, ``[blocks]``: vLLM fills its own with the next request's.

    Raises:
        ValueError: vLLM does not say.
    """
    told = importlib.import_module("vllm.forward_context").get_forward_context().attn_metadata
    told = told[0] if isinstance(told, list) else told
    told = told.get(attention.layer_name) if isinstance(told, dict) else told
    for name in _TABLES:
        table = getattr(told, name, None)
        if table is not None and len(table):
            return table[0].clone()
    raise ValueError(f"{type(told).__name__} names no blocks of vLLM's KV cache")


def halves(cache: Any, heads: int, size: int) -> tuple[Any, Any]:
    """Keys and values of a GPU's cache, each a view ``[blocks, block_size, kv_heads, head_size]``.

    The shapes are those of vLLM 0.8.5 to 0.33.0; see ``smoke_gpu``.

    Raises:
        ValueError: it is none of them.
    """
    shape = list(cache.shape)
    if len(shape) == 5 and shape[3:] == [heads, size] and 2 in shape[:2]:
        keys, values = cache.unbind(1 if shape[1] == 2 else 0)
        return keys, values
    if len(shape) == 4 and cache.shape[3] == 2 * size and heads in cache.shape[1:3]:
        cache = cache.transpose(1, 2) if cache.shape[1] == heads else cache
        return cache[..., :size], cache[..., size:]
    raise ValueError(f"a KV cache of {shape} is of no known shape")
