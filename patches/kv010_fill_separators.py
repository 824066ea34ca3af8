"""Keep the separators' keys and values in the layers before the check layer."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import find, function, released_elsewhere
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


def fill_separators(module: cst.Module) -> cst.Module:
    """Put the computed keys and values in the places of separators.

    Raises:
        Refusal: where the anchor is not there exactly once.
    """
    from kvpatch import anchors

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
        suite
        for node in ast.walk(process)
        for suite in (getattr(node, "body", None), getattr(node, "orelse", None))
        if isinstance(suite, list) and any(find(item, returned) == [item] for item in suite)
    ]
    gaps = "gaps = self.gpu_connector.current_gap_positions"
    if ways and all(_has(way, _KEPT) and _has(way, gaps) for way in ways):
        return Judgement(True, "separators keep what was computed for them")
    return Judgement(False, "separators are zeros in the layers before the check layer")


def _has(suite: list[ast.stmt], pattern: str) -> bool:
    return any(find(item, pattern) for item in suite)


PATCH = Patch(
    id="KV010",
    distribution="lmcache",
    targets=(Target(BLENDER, ">=0.3.3", fill_separators),),
    versions=">=0.3.3",
    why="Separators are not stored; in the layers before the check layer LMCache computes their "
    "keys and values and then leaves zeros in the KV cache, which every later token attends to.",
    how="Puts the keys and values that were computed for separators in their places.",
    upstream="https://github.com/LMCache/LMCache/pull/2329",
    retire_when="An LMCache release keeps what it computes for separators.",
    post_condition=fills_separators,
    faithful=released_elsewhere,
    proved="run on a CPU: vLLM 0.32.0 with LMCache 0.5.6",
)


def _blender(tail: str) -> str:
    lines = "\n".join(f"        {line}" if line else line for line in tail.strip("\n").split("\n"))
    return f"""
class LMCBlender:
    def process_qkv(self, q, k, v, residual, layer_id, attn_output, attn_metadata):
        old_k, old_v = self.gpu_connector.get_kv(layer_id)
{lines}
"""


EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "keeps what was computed for separators",
        "0.5.6",
        _blender(_PICKED),
        after=_blender(_FILLED),
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release without blending alone",
        "0.3.2",
        _blender(_PICKED),
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.5.6",
        _blender(_FILLED.replace("# kvpatch KV010: s", "# S")),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where something else is returned",
        "0.5.6",
        _blender(_PICKED.replace("return q, k, v,", "return q, k, old_v,")),
        outcome=Outcome.MISSING,
        reason="nowhere",
    ),
)
