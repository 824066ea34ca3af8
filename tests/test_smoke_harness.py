from __future__ import annotations

import pytest
from odd_kernel import HEAD
from targets import run_in_target

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
harness.layout.watch()
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


@pytest.mark.stack
def test_before_device_ops_the_kernels_of_each_module_are_stood_in_for() -> None:
    assert run_in_target(OLDER) == [True, True, True, "cpu", 1]


@pytest.mark.stack
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
harness.layout.move(plain, whole, slots, False, False)
found.append(bool((plain[:, [0, 1, 3, 4, 5]] == read[:, [0, 1, 3, 4, 5]]).all()))
found.append(bool((plain[0, 2] == key[2].view(-1)).all()))
found += [seen[0], harness.named()]
print(json.dumps(found))
"""
)


@pytest.mark.stack
def test_what_kvpatch_moves_packed_layers_with_is_run_on_copies_in_a_gpus_layout() -> None:
    *right, seen, stood_in = run_in_target(PACKED)
    assert right == [True, True, True]
    # Slots 0 to 11 are in all three blocks of the stand-in.
    assert seen == [[3, 2, 4, 16], "layout"]
    assert [one[:2] for one in stood_in] == ["K:"]


PASSED_ON = (
    HEAD
    + """
from types import SimpleNamespace as Names

def wrong(kernel):
    return kernel

harness = Harness()
whole, key, value, slots = wrote(harness, torch.float32)
module = Names(_kvpatch_layer_transfer=wrong)
harness._on_gpu_connectors(module)
move = module._kvpatch_layer_transfer(harness.transfer)
try:
    move(torch.empty(2, 6, HEADS * SIZE), whole, slots, 1, "layout")
    told = ""
except RuntimeError as error:
    told = f"{type(error).__name__}: {error}"
# The kernel itself is stood in for as before.
harness.transfer(torch.empty(2, 6, HEADS * SIZE), whole, slots, 1, "layout")
print(json.dumps([told, harness.broken, harness.problem]))
"""
)


@pytest.mark.stack
def test_a_patch_that_hands_the_packed_cache_to_the_kernel_is_named_and_not_the_pair() -> None:
    told, broken, problem = run_in_target(PASSED_ON)
    assert told == f"RuntimeError: {broken}"
    assert broken.startswith("KV006 gives a KV cache in a GPU's packed layout to")
    # That would say that the pair can't be carried.
    assert problem is None


MANAGER = """
import json, types
from types import SimpleNamespace as Names
from smoke_harness import Harness

class Manager:
    def _get_device_info(self, current_platform):
        return "cuda" if current_platform.is_cuda_alike() else "none"

    def _create_gpu_connector(self, role, use_mla, device, current_platform):
        return [role, use_mla, device, current_platform.is_cuda_alike(), current_platform.is_xpu()]

class Later:
    def _create_gpu_connector(self, role):
        return role

def untouched(current_platform):
    return current_platform

module = types.ModuleType("lmcache.v1.manager")
vars(module).update(Manager=Manager, Later=Later, untouched=untouched)
harness = Harness()
adapter, other = types.ModuleType("adapter"), types.ModuleType("adapter")
vars(adapter).update(current_platform="cpu", _init_lmcache_engine=untouched)
other.current_platform = "cpu"
asked = [Harness()._on_adapter(adapter), adapter.current_platform.is_cuda_alike()]
asked += [Harness()._on_adapter(other), other.current_platform]
harness._on_manager(module)
here = Names(is_cuda_alike=lambda: False, is_xpu=lambda: False)
late = [Later()._create_gpu_connector("worker"), harness.named()]
print(json.dumps([
    late,
    Manager()._get_device_info(here),
    Manager()._create_gpu_connector("worker", False, device="cpu", current_platform=here),
    untouched("same"),
    harness.named(),
    asked,
]))
"""


@pytest.mark.stack
def test_a_manager_that_asks_the_platform_itself_is_told_cuda_and_no_other_is() -> None:
    late, device, connector, same, named, asked = run_in_target(MANAGER)
    assert asked == [None, True, None, "cpu"]
    assert late == ["worker", []]
    assert (device, connector, same) == ("cuda", ["worker", False, "cpu", True, False], "same")
    (told,) = named
    assert told.startswith("the check that blending runs on cuda")
