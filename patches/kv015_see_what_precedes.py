"""Let each recomputed token attend to what precedes it, and to nothing that follows."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING

from kvpatch.blending import as_written, find, follow, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

BLENDER = "lmcache/v1/compute/blend/blender.py"
FLASH = "lmcache/v1/compute/attention/flash_attn.py"

ATTEND = '''
# kvpatch KV015: FlashAttention's causal mask takes any rows for the last ones of the prompt.
def _kvpatch_attend(impl, rows, query, key, value, output):
    """Attention of picked rows of a prompt, each to the keys up to its own place."""
    if impl.alibi_slopes is not None or impl.logits_soft_cap:
        raise NotImplementedError("kvpatch: blending knows neither ALiBi nor a soft cap of logits")
    before = impl.sliding_window[0]
    heads, tokens = key.shape[1], key.shape[0]
    groups = query.shape[1] // heads
    # Each KV head with its query heads by itself, so that neither keys nor mask are repeated.
    keys, values = (
        one.transpose(0, 1)[:, None].expand(-1, groups, -1, -1) for one in (key, value)
    )
    places = torch.arange(tokens, device=key.device)
    # The mask of so many rows takes 64 MiB.
    several = max(1, (1 << 26) // tokens)
    parts = (part.split(several) for part in (rows, query, output))
    for own, asking, answer in zip(*parts):
        last = own[:, None]
        seen = places <= last
        if before >= 0:
            seen &= places >= last - before
        asking = asking.unflatten(1, (heads, groups)).permute(1, 2, 0, 3)
        found = torch.nn.functional.scaled_dot_product_attention(
            asking, keys, values, attn_mask=seen, scale=impl.scale
        )
        answer.copy_(found.permute(2, 0, 1, 3).flatten(1, 2))
    return output
'''

_PROCESS = "LMCBlender.process_qkv"
_PICKED = "self.metadata.imp_indices = top_indices"
_TOLD = """
# kvpatch KV015: attention has to know which rows of the prompt they are.
attn_metadata.kvpatch_rows = top_indices
"""

_FORWARD = "LMCFlashAttnBackend.forward_contiguous"
_BEGINS = "cu_seqlens_q = attn_metadata.query_start_loc"
_ROWS = """
# kvpatch KV015: picked rows are not the last ones of the prompt.
rows = getattr(attn_metadata, "kvpatch_rows", None)
"""
_APART = """
if rows is not None:
    return _kvpatch_attend(self.vllm_attn_impl, rows, query, key, value, output)
"""


def tell_rows(module: cst.Module) -> cst.Module:
    """Tell attention which rows of the prompt were picked.

    Raises:
        Refusal: where the anchor is not there exactly once.
    """
    from kvpatch import anchors

    return anchors.replace(
        module, _PROCESS, _PICKED, lambda old: anchors.like(old, module, _PICKED, _TOLD)
    )


def attend_apart(module: cst.Module) -> cst.Module:
    """Compute picked rows by torch's attention, with a mask of their own.

    Raises:
        Refusal: where the anchor is not there exactly once.
    """
    from kvpatch import anchors, rewrite

    module = anchors.replace(
        module, _FORWARD, _BEGINS, lambda old: anchors.like(old, module, _ROWS, _APART, _BEGINS)
    )
    return rewrite.append_function(module, ATTEND)


def sees_what_precedes(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether picked rows are told, or attend to the keys up to their own places alone."""
    forward = function(module, _FORWARD)
    if forward is None:
        process = function(module, _PROCESS)
        told = follow(process, _PICKED, _TOLD) and len(find(process, _PICKED)) == 1
        sentence = "attention is told which tokens are recomputed"
        return Judgement(told, sentence if told else "attention can't know which rows were picked")
    if not as_written(function(module, "_kvpatch_attend"), ATTEND):
        return Judgement(False, "recomputed tokens attend to tokens that follow them")
    if not follow(forward, _ROWS, _APART, _BEGINS):
        return Judgement(False, "picked rows go to a kernel that takes them for the last ones")
    return Judgement(True, "recomputed tokens attend to what precedes them alone")


PATCH = Patch(
    id="KV015",
    distribution="lmcache",
    targets=(
        Target(BLENDER, ">=0.3.3", tell_rows),
        Target(FLASH, ">=0.3.3", attend_apart),
    ),
    versions=">=0.3.3",
    why="From the check layer on LMCache hands FlashAttention the recomputed tokens alone, whose "
    "causal mask takes them for the last tokens of the prompt: most attend to tokens that follow "
    "them, and what is kept of them in vLLM's KV cache is wrong without a word.",
    how="Tells attention which rows they are, and computes them by torch's attention with a mask "
    "of their places, in parts of bounded memory. Layers in which all tokens are computed keep "
    "FlashAttention. The sparse back ends (enable_sparse) are left as they are.",
    upstream="https://github.com/LMCache/LMCache/issues/1152",
    retire_when="An LMCache release masks recomputed tokens by their places in the prompt.",
    post_condition=sees_what_precedes,
    faithful=released_elsewhere,
    proved="run on a CPU, where FlashAttention is stood in for by its documented mask: vLLM "
    "0.32.0 with LMCache 0.5.6; not run on a GPU",
)


def _blender(picked: str = _PICKED) -> str:
    lines = textwrap.indent(picked.strip("\n"), " " * 12)
    return f"""
class LMCBlender:
    def process_qkv(self, q, k, v, layer_id, attn_metadata):
        if layer_id in self.common_metadata.check_layers:
            top_indices = torch.topk(diff_k, k=topk_num).indices
{lines}
            self.metadata.positions = self.metadata.positions[top_indices]
        return q, k, v, attn_metadata
"""


def _attention(begins: str = _BEGINS, more: str = "") -> str:
    lines = textwrap.indent(begins.strip("\n"), " " * 8)
    return f"""
class LMCFlashAttnBackend:
    def forward_contiguous(self, query, key, value, output, attn_metadata, **kwargs):
        assert isinstance(attn_metadata, LMCFlashAttnMetadata)

{lines}
        flash_attn_varlen_func(q=query, k=key, v=value, out=output, cu_seqlens_q=cu_seqlens_q)
        return output
{more}"""


_BY_HAND = f"{_ROWS.strip()}\n{_APART.strip()}\n{_BEGINS}"

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "tells which tokens were picked",
        "0.5.6",
        _blender(),
        after=_blender(_PICKED + _TOLD),
        path=BLENDER,
    ),
    Example(
        ExampleKind.REWRITTEN,
        "computes picked tokens by a mask of their own",
        "0.5.6",
        _attention(),
        after=_attention(_BY_HAND, f"\n{ATTEND}"),
        path=FLASH,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release without blending alone",
        "0.3.2",
        _attention(),
        path=FLASH,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.5.6",
        _attention(_BY_HAND.replace("# kvpatch KV015: p", "# P"), f"\n{ATTEND}"),
        path=FLASH,
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the rows are told in another way",
        "0.5.6",
        _blender("self.metadata.imp_indices = list(top_indices)"),
        outcome=Outcome.MISSING,
        reason="nowhere",
        path=BLENDER,
    ),
)
