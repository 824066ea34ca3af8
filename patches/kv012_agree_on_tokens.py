"""Recompute the same tokens on every tensor-parallel rank."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import as_written, find, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

BLENDER = "lmcache/v1/compute/blend/blender.py"

PICK = '''
def _kvpatch_pick(diff_k, count):
    """The tokens to recompute: by the heads of all tensor-parallel ranks, the same on each."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return torch.topk(diff_k, k=count).indices
    picked = torch.topk(group.all_reduce(diff_k), k=count).indices
    # Equal sums, and sums that a rank rounds otherwise, may stand in another order there.
    return group.broadcast(picked)
'''

_PICKED = "top_indices = torch.topk(diff_k, k=topk_num).indices"
_AGREED = """
# kvpatch KV012: o_proj adds up the rows of all ranks, so they have to be of the same tokens.
top_indices = _kvpatch_pick(diff_k, topk_num)
"""
_PROCESS = "LMCBlender.process_qkv"
_SORTED = "top_indices, _ = torch.sort(top_indices)"


def agree_on_tokens(module: cst.Module) -> cst.Module:
    """Let all tensor-parallel ranks pick the tokens to recompute together.

    Raises:
        Refusal: where the anchor is not there exactly once.
    """
    from kvpatch import anchors, rewrite

    module = anchors.replace(
        module, _PROCESS, _PICKED, lambda old: anchors.like(old, module, _AGREED)
    )
    return rewrite.append_function(module, PICK)


def agrees_on_tokens(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether the tokens to recompute are picked once, by all ranks together."""
    process = function(module, _PROCESS)
    if process is None:
        return Judgement(False, "no blender is defined here")
    if not as_written(function(module, "_kvpatch_pick"), PICK):
        return Judgement(False, "each tensor-parallel rank picks tokens by its own heads")
    picked = find(process, _AGREED)
    bound = [*find(process, "top_indices = ___"), *find(process, _SORTED)]
    named = [
        node
        for node in ast.walk(process)
        if isinstance(node, ast.Name)
        and node.id == "top_indices"
        and isinstance(node.ctx, ast.Store)
    ]
    if len(picked) != 1 or len(bound) != 2 or len(named) != len(bound):
        return Judgement(False, "tokens are picked by something else than all ranks together")
    return Judgement(True, "every tensor-parallel rank recomputes the same tokens")


PATCH = Patch(
    id="KV012",
    distribution="lmcache",
    targets=(Target(BLENDER, ">=0.3.3", agree_on_tokens),),
    versions=">=0.3.3",
    why="Each tensor-parallel rank picks the tokens to recompute by its own heads, and the model "
    "adds up the ranks' rows one by one: rows of different tokens, so wrong answers without "
    "an error.",
    how="Adds up the differences of all ranks' heads, picks by the sum, and takes the first rank's "
    "pick on all; with one rank nothing changes.",
    upstream="https://github.com/LMCache/LMCache/issues/191",
    retire_when="An LMCache release picks the same tokens on every tensor-parallel rank.",
    post_condition=agrees_on_tokens,
    faithful=released_elsewhere,
    proved="run on a CPU: vLLM 0.32.0 with LMCache 0.5.6 on two and four ranks, vLLM 0.11.0 with "
    "LMCache 0.3.9.post2 on two",
)

_STOCK = """
class LMCBlender:
    def process_qkv(self, q, k, v, residual, layer_id, attn_output, attn_metadata):
        if layer_id in self.common_metadata.check_layers:
            diff_k = torch.sum((k.float() - old_k.float()) ** 2, dim=[1])
            topk_num = int(diff_k.shape[0] * self.common_metadata.recomp_ratios[0])

            # The most changed ones.
            top_indices = torch.topk(diff_k, k=topk_num).indices
            top_indices, _ = torch.sort(top_indices)
            k, v = k[top_indices], v[top_indices]
        return k, v
"""

_TOGETHER = (
    _STOCK.replace(
        f"            {_PICKED}",
        "".join(f"            {line}\n" for line in _AGREED.strip().split("\n")).rstrip("\n"),
    )
    + "\n"
    + PICK
)

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "picks by the heads of all ranks",
        "0.5.6",
        _STOCK,
        after=_TOGETHER,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release without blending alone",
        "0.3.2",
        _STOCK,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.5.6",
        _TOGETHER.replace("# kvpatch KV012: o_proj", "# o_proj"),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where tokens are picked in another way",
        "0.5.6",
        _STOCK.replace(_PICKED, "top_indices = torch.topk(diff_k.abs(), k=topk_num).indices"),
        outcome=Outcome.MISSING,
        reason="abs()",
    ),
)
