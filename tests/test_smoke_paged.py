"""Reading vLLM's KV cache, over caches of every shape that a GPU's releases have."""

from __future__ import annotations

import pytest
from odd_kernel import HEAD
from targets import run_in_target

READ = """
import json, sys, torch
from types import ModuleType, SimpleNamespace as Names
from smoke_paged import Paged, halves

HEADS, SIZE, TOKENS, BLOCKS = 2, 3, 4, 6
keys = torch.randn(BLOCKS, TOKENS, HEADS, SIZE)
values = torch.randn(BLOCKS, TOKENS, HEADS, SIZE)
packed = torch.cat([keys, values], dim=-1)
caches = {
    "[2, NB, BS, NH, HS]": torch.stack([keys, values]),
    "[NB, 2, BS, NH, HS]": torch.stack([keys, values], dim=1),
    "heads first in memory": torch.stack([keys, values], dim=1).transpose(2, 3).contiguous()
        .transpose(2, 3),
    "[NB, NH, BS, 2*HS]": packed.transpose(1, 2),
    "[NB, BS, NH, 2*HS]": packed,
}

context = sys.modules["vllm.forward_context"] = ModuleType("vllm.forward_context")
sys.modules["vllm"] = ModuleType("vllm")
table = torch.tensor([[4, 1, 0], [2, 2, 2]], dtype=torch.int32)
places = torch.tensor([0, 3, 4, 6])
block, inner = [4, 4, 1, 1], [0, 3, 0, 2]
right = {}
for name, cache in caches.items():
    for held in (cache, [cache]):
        attention = Names(kv_cache=held, num_kv_heads=HEADS, head_size=SIZE, layer_name="a")
        told = Names(block_table=table.clone())
        context.get_forward_context = lambda: Names(attn_metadata={"a": told})
        paged = Paged()
        paged.find(attention)
        # vLLM goes on to the next request.
        told.block_table.zero_()
        paged.find(attention)
        found = paged.read(attention, places)
        wanted = [one[block, inner].flatten(1) for one in (keys, values)]
        right[name] = [bool((one == other).all()) for one, other in zip(found, wanted)]
told = []
for metadata in (Names(), Names(block_table=None), {"b": Names(block_table=table)}, None):
    context.get_forward_context = lambda: Names(attn_metadata=metadata)
    try:
        Paged().find(attention)
    except ValueError as error:
        told.append(str(error))
firsts = []
for metadata in (Names(prefill_block_tables=table), [{"a": Names(block_tables=table)}]):
    context.get_forward_context = lambda: Names(attn_metadata=metadata)
    paged = Paged()
    paged.find(attention)
    firsts.append(paged.blocks.tolist())
try:
    halves(torch.zeros(2, 3), HEADS, SIZE)
except ValueError as error:
    told.append(str(error))
print(json.dumps([right, told, firsts]))
"""


@pytest.mark.stack
def test_rows_are_read_from_the_blocks_that_vllm_names_whatever_the_shape() -> None:
    right, told, firsts = run_in_target(READ)
    assert len(right) == 5
    assert all(all(parts) for parts in right.values()), right
    assert [one.split(" names")[0] for one in told[:4]] == ["SimpleNamespace"] * 2 + [
        "NoneType"
    ] * 2
    assert told[4:] == ["a KV cache of [2, 3] is of no known shape"]
    assert firsts == [[4, 1, 0]] * 2


ON_A_CPU = (
    HEAD
    + """
from types import SimpleNamespace as Names
from smoke_paged import Paged
harness = Harness()
whole, key, value, slots = wrote(harness, torch.float32)
paged = Paged(harness.layout)
paged.blocks = torch.tensor([0, 1, 2])
found = paged.read(Names(kv_cache=[whole], num_kv_heads=HEADS, head_size=SIZE), slots)
right = [bool((one == other.flatten(1)).all()) for one, other in zip(found, (key, value))]
paged.blocks = torch.tensor([1, 0, 2])
found = paged.read(Names(kv_cache=whole, num_kv_heads=HEADS, head_size=SIZE), slots)
right.append(bool((found[0][:2] == key[:2].flatten(1)).any()))
try:
    paged.read(Names(kv_cache=whole.clone(), num_kv_heads=HEADS, head_size=SIZE), slots)
except ValueError as error:
    told = str(error)
# It says nothing of whether the pair can be carried.
print(json.dumps([right, told, harness.problem]))
"""
)


@pytest.mark.stack
def test_on_a_cpu_they_are_read_as_the_kernel_was_seen_to_write_them() -> None:
    right, told, problem = run_in_target(ON_A_CPU)
    assert right == [True, True, False]
    assert told == "vLLM never wrote into this layer's KV cache"
    assert problem is None
