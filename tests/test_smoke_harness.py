from __future__ import annotations

from targets import run_in_target

# A kernel that packs a block as it likes, which the harness may only learn by probing.
HEAD = """
import json, torch
from smoke_harness import Harness, HarnessError
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
    harness.views[key_cache.data_ptr()] = (key_cache, value_cache)
    harness.last_write = (kernel, given)
    return whole, key, value, slots
"""
ROUND = (
    HEAD
    + """
found = []
for dtype in (torch.float32, torch.bfloat16):
    harness = Harness()
    whole, key, value, slots = wrote(harness, dtype)
    read = torch.empty(2, 6, HEADS * SIZE, dtype=dtype)
    harness.transfer(read, whole, slots, 1)
    found.append(bool((read[0] == key.view(6, -1)).all() and (read[1] == value.view(6, -1)).all()))
    before = whole.clone()
    whole.zero_()
    harness.transfer(read, whole, slots, 0)
    found.append(bool((whole == before).all()))
    majors = torch.empty(6, 2, HEADS * SIZE, dtype=dtype)
    harness.transfer(majors, whole, slots, 1, token_major=True)
    found.append(bool((majors[:, 0] == key.view(6, -1)).all()))
    skipping = torch.tensor([-1, 1, -1, 6, 9, 11])
    part = torch.full((2, 6, HEADS * SIZE), 7.0, dtype=dtype)
    harness.transfer(part, whole, skipping, 1)
    found.append(bool((part[:, 0] == 7).all() and (part[0, 1] == key[1].view(-1)).all()))
    found.append(harness.named()[0].startswith("K:"))
print(json.dumps(found))
"""
)
LOSSY = (
    HEAD
    + """
harness = Harness()
wrote(harness, torch.float32)
harness.last_write = (lambda **_: None, harness.last_write[1])
try:
    harness._probe("key")
except HarnessError as error:
    print(json.dumps([error.step, harness.problem["step"]]))
"""
)
UNKNOWN = (
    HEAD
    + """
harness = Harness()
try:
    harness.transfer(torch.zeros(2, 1, 16), layer(torch.float32)[0], torch.tensor([0]), 1)
except HarnessError as error:
    print(json.dumps(error.why))
"""
)


def test_what_a_kernel_packs_its_own_way_is_read_and_written_by_what_was_probed() -> None:
    found = run_in_target(ROUND)
    assert found == [True] * 10


def test_a_kernel_that_loses_something_is_not_carried() -> None:
    assert run_in_target(LOSSY) == ["kv-layout", "kv-layout"]


def test_a_cache_that_vllm_never_wrote_to_is_not_guessed_at() -> None:
    assert "never wrote" in run_in_target(UNKNOWN)


OLDER = (
    HEAD
    + """
import sys, types

class Paged:
    @staticmethod
    def write_to_paged_cache(key, value, key_cache, value_cache, slot_mapping, kind, *args):
        assert (kind, args) == ("auto", ("k", "v"))
        kernel(key, value, key_cache, value_cache, slot_mapping, "odd")

def module(name, **names):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(names, __path__=[])

for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
    module(name)
module("vllm._custom_ops")
module("vllm.v1.attention.backends.cpu_attn", _get_paged_attn_impl=lambda: Paged)
harness = Harness()
harness._watch_cache_writes()
whole, key_cache, value_cache = layer(torch.float32)
key = torch.randn(6, HEADS, SIZE)
slots = torch.tensor([0, 1, 5, 6, 9, 11])
Paged.write_to_paged_cache(key, key + 1, key_cache, value_cache, slots, "auto", "k", "v")
connector = types.ModuleType("lmcache.v1.gpu_connector")
connector.VLLMBufferLayerwiseGPUConnector = object
harness._on_gpu_connector(connector)
read = torch.empty(6, 2, HEADS * SIZE, device="cuda:0")
connector.lmc_ops.single_layer_kv_transfer(read, whole, slots, True, True, False)
before = whole.clone()
whole.zero_()
planes = read.transpose(0, 1).contiguous()
connector.lmc_ops.single_layer_kv_transfer(planes, whole, slots, False, False, True)
print(json.dumps([bool((read[:, 0] == key.view(6, -1)).all()),
                  bool((read[:, 1] == key.view(6, -1) + 1).all()),
                  bool((whole == before).all()), str(read.device), torch.cuda.device_count()]))
"""
)
NOTHING = (
    HEAD
    + """
import sys, types
for name in ("vllm", "vllm._custom_ops"):
    sys.modules[name] = types.ModuleType(name)
try:
    Harness().install()
except HarnessError as error:
    print(json.dumps([error.step, error.why]))
"""
)
ROUNDED = """
import json, types
from types import SimpleNamespace as Names
from smoke_harness import Harness

def trial(rope, *rest):
    rope.cos_sin_cache = "rounded"
    return rest

module = types.ModuleType("lmcache.v1.compute.positional_encoding")
module.validate_reverse_correctness = trial
Harness()._on_rope(module)
rope = Names(cos_sin_cache="table")
print(json.dumps([module.validate_reverse_correctness(rope, 1), rope.cos_sin_cache]))
"""


def test_before_device_ops_the_kernels_of_each_module_are_stood_in_for() -> None:
    assert run_in_target(OLDER) == [True, True, True, "cpu", 1]


def test_a_vllm_whose_writer_is_unknown_is_not_carried() -> None:
    step, why = run_in_target(NOTHING)
    assert step == "kv-layout"
    assert "nothing known writes" in why


def test_the_trial_of_a_rope_leaves_vllms_table_as_it_was() -> None:
    assert run_in_target(ROUNDED) == [[1], "table"]


PACKED = (
    HEAD
    + """
import types
from types import SimpleNamespace as Names

def stock(kernel):
    def move(tokens, cache, slots, direction, layout, token_major=False):
        # As kvpatch does it on a GPU: keys and values of a head side by side.
        seen.append([list(cache.shape), layout])
        for row, slot in enumerate(slots.tolist()):
            if slot < 0:
                continue
            place = cache[slot // TOKENS, :, slot % TOKENS].unflatten(-1, (2, SIZE)).transpose(0, 1)
            if direction == 0:
                place.copy_(tokens[:, row].view(2, HEADS, SIZE))
            else:
                tokens[:, row] = place.reshape(2, HEADS * SIZE)
    return move

seen = []
harness = Harness()
whole, key, value, slots = wrote(harness, torch.float32)
module = Names(_kvpatch_layer_transfer=stock)
harness._on_gpu_connectors(module)
move = module._kvpatch_layer_transfer("kernel")
read = torch.empty(2, 6, HEADS * SIZE)
move(read, whole, slots, 1, "layout")
found = [bool((read[0] == key.view(6, -1)).all() and (read[1] == value.view(6, -1)).all())]
before = whole.clone()
skipping = slots.clone()
skipping[2] = -1
read += 1
move(read, whole, skipping, 0, "layout")
plain = torch.empty(2, 6, HEADS * SIZE)
harness._move(plain, whole, slots, False, False)
found.append(bool((plain[:, [0, 1, 3, 4, 5]] == read[:, [0, 1, 3, 4, 5]]).all()))
found.append(bool((plain[0, 2] == key[2].view(-1)).all()))
found += [seen[0], harness.named()]
print(json.dumps(found))
"""
)


def test_what_kvpatch_moves_packed_layers_with_is_run_on_copies_in_a_gpus_layout() -> None:
    *right, seen, stood_in = run_in_target(PACKED)
    assert right == [True, True, True]
    # Slots 0 to 11 are in all three blocks of the stand-in.
    assert seen == [[3, 2, 4, 16], "layout"]
    assert [one[:2] for one in stood_in] == ["K:"]
