"""Code for the target: a KV cache kernel of its own kind, and writes that went through it."""

from __future__ import annotations

# A kernel that packs a block as it likes, which the harness may only learn by probing.
HEAD = """
import json, torch
from smoke_harness import Harness
from smoke_layout import HarnessError
BLOCKS, HEADS, TOKENS, SIZE = 3, 2, 4, 8
shuffled = torch.randperm(TOKENS * SIZE, generator=torch.Generator().manual_seed(5))

def kernel(key, value, key_cache, value_cache, slot_mapping, isa):
    assert isa == "odd"
    for source, cache in ((key, key_cache), (value, value_cache)):
        for token, slot in enumerate(slot_mapping.tolist()):
            for head in range(HEADS):
                block = cache[slot // TOKENS, head].view(-1)
                places = shuffled[slot % TOKENS * SIZE : (slot % TOKENS + 1) * SIZE]
                block[places] = source[token, head].to(cache.dtype)

def layer(dtype):
    whole = torch.zeros(BLOCKS, HEADS, 2 * TOKENS, SIZE, dtype=dtype)
    key_cache, value_cache = whole.chunk(2, dim=2)
    return whole, key_cache, value_cache

def wrote(harness, dtype):
    whole, key_cache, value_cache = layer(dtype)
    key = torch.randn(6, HEADS, SIZE).to(dtype)
    value = torch.randn(6, HEADS, SIZE).to(dtype)
    slots = torch.tensor([0, 1, 5, 6, 9, 11])
    given = dict(key=key, value=value, key_cache=key_cache, value_cache=value_cache,
                 slot_mapping=slots, isa="odd")
    kernel(**given)
    harness.layout.views[key_cache.data_ptr()] = (key_cache, value_cache)
    harness.layout.last_write = (kernel, given)
    return whole, key, value, slots
"""
