"""Move single layers to and from the packed KV cache of vLLM 0.26 and newer."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import as_written, find, function, released_elsewhere, since
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

CONNECTORS = "lmcache/v1/gpu_connector/gpu_connectors.py"

TRANSFER = '''
# kvpatch KV006: vLLM 0.26 packs keys and values of a head side by side.
def _kvpatch_layer_transfer(kernel):
    """The kernel for the layouts it knows, torch operations for the packed one."""

    def transfer(tokens, cache, slot_mapping, direction, layout, token_major=False):
        name = str(getattr(layout, "name", layout))
        if cache.dim() == 5 and name.endswith("NB_NH_BS_TWO_HS"):
            cache = cache.flatten(3)
        if cache.dim() != 4:
            return kernel(
                tokens, cache, slot_mapping, direction, layout, token_major=token_major
            )
        known = (torch.bfloat16, torch.float16, torch.float32)
        if cache.dtype not in known or tokens.dtype != cache.dtype:
            raise NotImplementedError(
                f"kvpatch: blending can't use a packed KV cache of {cache.dtype} with chunks of "
                f"{tokens.dtype}"
            )
        if not token_major:
            tokens = tokens.transpose(0, 1)
        size = cache.shape[3] // 2
        heads = tokens.shape[2] // size
        heads_first = cache.shape[1] == heads
        if heads_first and cache.shape[2] == heads and cache.stride(1) >= cache.stride(2):
            # As many heads as tokens in a block: only the name says which axis is which.
            if name.endswith("_TWO_HS"):
                raise NotImplementedError(
                    f"kvpatch: this LMCache can't tell {heads} heads from blocks of {heads} "
                    "tokens; take LMCache 0.5.3 or newer"
                )
            heads_first = not name.endswith("_BS_NH_CS")
        if heads_first:
            cache = cache.transpose(1, 2)
        if cache.shape[2] != heads:
            raise ValueError(
                f"kvpatch: a KV cache of {tuple(cache.shape)} does not hold {heads} heads of {size}"
            )
        slots = slot_mapping.to(device=cache.device, dtype=torch.long)
        kept, rows = slots >= 0, slice(None)
        skips = not kept.all()
        if skips:
            slots, rows = slots[kept], kept.nonzero()[:, 0].to(tokens.device)
        at = [slots // cache.shape[1], slots % cache.shape[1]]
        # Both as [token, head, key or value, size].
        paged = cache.unflatten(3, (2, size))
        flat = tokens.unflatten(2, (heads, size)).transpose(1, 2)
        if direction.name == "H2D":
            paged[tuple(at)] = flat[rows].to(cache.device)
        elif skips or flat.device != cache.device:
            flat[rows] = paged[tuple(at)].to(flat.device)
        else:
            torch.ops.aten.index.Tensor_out(paged, at, out=flat)

    return transfer
'''

_OPERATION = "___.single_layer_kv_transfer"
EDITS = (
    ("VLLMBufferLayerwiseGPUConnector.batched_to_gpu", 1),
    ("VLLMBufferLayerwiseGPUConnector.batched_from_gpu", 1),
    ("VLLMPagedMemLayerwiseGPUConnector.batched_to_gpu", 2),
    ("VLLMPagedMemLayerwiseGPUConnector.batched_from_gpu", 2),
)
"""The functions that move a layer of vLLM's cache, and how often they call the kernel."""


def transfer_packed(module: cst.Module) -> cst.Module:
    """Put the torch operations beside the kernel wherever a layer of vLLM's cache is moved.

    Raises:
        Refusal: where the kernel is not called as often as expected.
    """
    import libcst as cst
    from kvpatch import anchors, rewrite

    def beside(kernel: cst.BaseExpression) -> str:
        return f"_kvpatch_layer_transfer({cst.Module(body=[]).code_for_node(kernel)})"

    for name, times in EDITS:
        module = anchors.replace_expression(module, name, _OPERATION, beside, times=times)
    return rewrite.append_function(module, TRANSFER)


def moves_packed_layers(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether no layer of vLLM's cache goes to the kernel unseen."""
    for name, _ in EDITS:
        mover = function(module, name)
        if mover is None:
            return Judgement(False, f"{name} is not defined here")
        kernels = find(mover, _OPERATION)
        wrapped = find(mover, f"_kvpatch_layer_transfer({_OPERATION})(*___)")
        if not kernels or len(kernels) != len(wrapped):
            return Judgement(
                False, f"{name} gives a packed KV cache to a kernel that can't read it"
            )
    if not as_written(function(module, "_kvpatch_layer_transfer"), TRANSFER):
        return Judgement(False, "the function that moves packed layers was edited")
    return Judgement(True, "layers of a packed KV cache are moved by torch operations")


PATCH = Patch(
    id="KV006",
    distribution="lmcache",
    targets=(Target(CONNECTORS, ">=0.4.7.dev0", transfer_packed),),
    versions=">=0.4.7.dev0,<0.5.7.dev0",
    why="vLLM 0.26 packs the KV cache as (blocks, heads, tokens, 2 * size); LMCache's kernel for "
    "single layers can't read that, so the first stored request fails with layerwise or "
    "blending.",
    how="Moves layers of a packed cache by torch operations on the cache's device, in both "
    "directions, with any strides; every other layout keeps the kernel. fp8 storage is "
    "refused by name. LMCache before 0.4.7 does not recognise such a cache at all.",
    upstream="https://github.com/LMCache/LMCache/issues/4111",
    retire_when="LMCache's single-layer kernel reads the packed KV cache.",
    post_condition=moves_packed_layers,
    faithful=released_elsewhere,
    cures=("K",),
    when=since("0.26.0"),
    proved="run on a CPU, on copies of the cache in a GPU's layout: vLLM 0.32.0 with LMCache "
    "0.5.6; equal to a reference loop; not run on a GPU",
)


def _connectors(kernel: str) -> str:
    call = f"{kernel}(buffer, cache, slots, direction, layout, token_major={{}})"
    return f"""
import torch


class VLLMBufferLayerwiseGPUConnector:
    def batched_to_gpu(self):
        {call.format(False)}

    def batched_from_gpu(self):
        {call.format(False)}


class VLLMPagedMemLayerwiseGPUConnector:
    def batched_to_gpu(self):
        {call.format(True)}
        {call.format(True)}

    def batched_from_gpu(self):
        {call.format(True)}
        {call.format(True)}
"""


_STOCK = _connectors("device_ops.single_layer_kv_transfer")
_PATCHED = _connectors("_kvpatch_layer_transfer(device_ops.single_layer_kv_transfer)") + (
    "\n\n" + TRANSFER.lstrip("\n")
)

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "puts torch operations beside the kernel",
        "0.5.6",
        _STOCK,
        after=_PATCHED,
        beside="0.32.0",
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves LMCache alone beside a vLLM whose cache the kernel knows",
        "0.5.6",
        _STOCK,
        beside="0.25.1",
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the torch operations put in by hand",
        "0.5.6",
        _PATCHED.replace("import torch\n", "import torch  # by hand\n", 1),
        beside="0.32.0",
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the kernel is called more often than expected",
        "0.5.6",
        _STOCK + "        device_ops.single_layer_kv_transfer(buffer, cache)\n",
        outcome=Outcome.AMBIGUOUS,
        reason="in 3 places",
        beside="0.32.0",
    ),
)
