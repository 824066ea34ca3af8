"""Compute the separators' keys and values in every layer."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING

from kvpatch.blending import find, follow, function, released_elsewhere, suites
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

BLENDER = "lmcache/v1/compute/blend/blender.py"

_PICKED = """
if self.metadata.imp_indices is not None:
    old_k[self.metadata.imp_indices] = k
    old_v[self.metadata.imp_indices] = v
    return q, old_k, old_v, residual, attn_output, attn_metadata
else:
    return q, k, v, residual, attn_output, attn_metadata
"""

_FILLED = """
if self.metadata.imp_indices is not None:
    old_k[self.metadata.imp_indices] = k
    old_v[self.metadata.imp_indices] = v
    return q, old_k, old_v, residual, attn_output, attn_metadata
else:
    # kvpatch KV010: separators are not stored, so what was loaded has zeros in their places.
    gaps = self.gpu_connector.current_gap_positions
    if gaps is not None and gaps.numel():
        old_k[gaps], old_v[gaps] = k[gaps], v[gaps]
    return q, k, v, residual, attn_output, attn_metadata
"""
_PROCESS = "LMCBlender.process_qkv"
_KEPT = "old_k[gaps], old_v[gaps] = k[gaps], v[gaps]"

_PICK = "top_indices = torch.topk(diff_k, k=topk_num).indices"
_GAPS = """
# kvpatch KV010: separators are not stored, so they are picked first, beside the ratio's share.
gaps = self.gpu_connector.current_gap_positions
"""
_FIRST = """
if gaps is not None and gaps.numel():
    diff_k[gaps] = float("inf")
    topk_num = min(topk_num + gaps.numel(), total_len)
"""


def fill_separators(module: cst.Module) -> cst.Module:
    """Keep what is computed for separators up to the check layer, and go on computing it there.

    Raises:
        Refusal: where an anchor is not there exactly once.
    """
    from kvpatch import anchors

    module = anchors.replace(
        module,
        _PROCESS,
        _PICK,
        lambda old: [
            *anchors.like(old, module, _GAPS, _FIRST),
            old.with_changes(leading_lines=[]),
        ],
    )
    return anchors.replace(
        module, _PROCESS, _PICKED, lambda old: anchors.like(old, module, _FILLED)
    )


def fills_separators(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether every path that returns what was computed keeps it for separators."""
    process = function(module, _PROCESS)
    if process is None:
        return Judgement(False, "no blender is defined here")
    returned = "return q, k, v, residual, attn_output, attn_metadata"
    ways = [
        suite for suite in suites(process) if any(find(item, returned) == [item] for item in suite)
    ]
    gaps = "gaps = self.gpu_connector.current_gap_positions"
    if not ways or not all(_has(way, _KEPT) and _has(way, gaps) for way in ways):
        return Judgement(False, "separators are zeros in the layers before the check layer")
    if not follow(process, _GAPS, _FIRST, "top_indices = ___"):
        return Judgement(False, "separators are zeros from the check layer on")
    return Judgement(True, "separators are computed in every layer")


def _has(suite: list[ast.stmt], pattern: str) -> bool:
    return any(find(item, pattern) for item in suite)


PATCH = Patch(
    id="KV010",
    distribution="lmcache",
    targets=(Target(BLENDER, ">=0.3.3", fill_separators),),
    versions=">=0.3.3",
    why="Separators are not stored, and LMCache leaves zeros in the KV cache for those that it "
    "does not happen to pick for recomputing, which every later token attends to.",
    how="Keeps what is computed for separators in the layers before the check layer, and picks "
    "them there for the layers behind it, beside the share that the ratio names.",
    upstream="https://github.com/LMCache/LMCache/pull/2329",
    retire_when="An LMCache release keeps what it computes for separators.",
    post_condition=fills_separators,
    faithful=released_elsewhere,
    proved="run on a CPU: vLLM 0.32.0 with LMCache 0.5.6",
)


def _blender(pick: str, tail: str) -> str:
    return f"""
class LMCBlender:
    def process_qkv(self, q, k, v, residual, layer_id, attn_output, attn_metadata):
        old_k, old_v = self.gpu_connector.get_kv(layer_id)
        if layer_id in self.common_metadata.check_layers:
            diff_k = torch.sum((k.float() - old_k.float()) ** 2, dim=[1])
            total_len = diff_k.shape[0]
            topk_num = int(total_len * self.common_metadata.recomp_ratios[0])
{_indented(pick, 12)}
            self.metadata.imp_indices = top_indices
{_indented(tail, 8)}
"""


def _indented(text: str, width: int) -> str:
    return textwrap.indent(text.strip("\n"), " " * width)


_PATCHED_PICK = f"{_GAPS.strip()}\n{_FIRST.strip()}\n{_PICK}"


EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "keeps what was computed for separators",
        "0.5.6",
        _blender(_PICK, _PICKED),
        after=_blender(_PATCHED_PICK, _FILLED),
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release without blending alone",
        "0.3.2",
        _blender(_PICK, _PICKED),
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.5.6",
        _blender(_PATCHED_PICK, _FILLED).replace("# kvpatch KV010: s", "# S"),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where something else is returned",
        "0.5.6",
        _blender(_PICK, _PICKED.replace("return q, k, v,", "return q, k, old_v,")),
        outcome=Outcome.MISSING,
        reason="nowhere",
    ),
)
