"""FlashAttention's kernel for LMCache's blender by torch's SDPA, where no device can run it.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

_KERNELS = "vllm.vllm_flash_attn"
_BACKEND = "lmcache.v1.compute.attention.flash_attn"


def attend(
    q: Any,
    k: Any,
    v: Any,
    *,
    out: Any,
    softmax_scale: float,
    causal: bool,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    block_table: Any = None,
    scheduler_metadata: Any = None,  # noqa: ARG001
    fa_version: int = 2,  # noqa: ARG001
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
) -> Any:
    """``flash_attn_varlen_func`` of one sequence, with the mask that its docstring gives.

    ``q``, ``out``: ``[rows, heads, size]``; ``k``, ``v``: ``[tokens, kv_heads, size]``. The mask is
    aligned to the bottom right: rows are taken for the last ones of the tokens. What one of vLLM's
    kernels takes and LMCache doesn't give is no argument here.

    Raises:
        ValueError: what the kernel is told of the rows and tokens isn't what it is handed.
        NotImplementedError: more than that mask is asked for.
    """
    import torch

    if softcap or alibi_slopes is not None or block_table is not None:
        raise NotImplementedError("the stand-in knows no soft cap, no ALiBi and no block table")
    for name, part, ends, most in (
        ("q", q, cu_seqlens_q, max_seqlen_q),
        ("k", k, cu_seqlens_k, max_seqlen_k),
    ):
        told = ends.tolist()
        if ends.dtype != torch.int32 or told != [0, len(part)] or most < len(part):
            raise ValueError(f"{name} has {len(part)} rows, told: {ends.dtype} {told}, {most}")
    for scale in (q_descale, k_descale, v_descale):
        if scale is not None and tuple(scale.shape) != (1, k.shape[1]):
            raise ValueError(f"a scale of {tuple(scale.shape)} for {k.shape[1]} KV heads")
    groups = q.shape[1] // k.shape[1]
    keys = k.repeat_interleave(groups, dim=1).transpose(0, 1)
    values = v.repeat_interleave(groups, dim=1).transpose(0, 1)
    places = torch.arange(k.shape[0])[None, :]
    rows = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    seen = places <= rows if causal else torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    if window_size[0] >= 0:
        seen &= places >= rows - window_size[0]
    made = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1), keys, values, attn_mask=seen, scale=softmax_scale
    )
    out.copy_(made.transpose(0, 1))
    return out


@contextlib.contextmanager
def kernels() -> Iterator[None]:
    """Lets modules be imported that take FlashAttention's functions from vLLM by their names."""
    before = sys.modules.get(_KERNELS)
    module = ModuleType(_KERNELS)
    vars(module).update(flash_attn_varlen_func=attend, get_scheduler_metadata=None)
    sys.modules[_KERNELS] = module
    try:
        yield
    finally:
        del sys.modules[_KERNELS]
        if before is not None:
            sys.modules[_KERNELS] = before


def backend(attention: Any) -> Any:
    """LMCache's own back end for a layer of vLLM, but for the kernel.

    Raises:
        ImportError: as on a GPU, where LMCache looks for vLLM's class in another home.
    """
    import torch

    with kernels():
        module = importlib.import_module(_BACKEND)
    made = object.__new__(module.LMCFlashAttnBackend)
    window = getattr(attention, "sliding_window", None)
    scale = torch.ones(1)
    implementation = SimpleNamespace(
        scale=attention.impl.scale,
        alibi_slopes=getattr(attention.impl, "alibi_slopes", None),
        sliding_window=(-1, -1) if window is None else (window - 1, 0),
        logits_soft_cap=getattr(attention.impl, "logits_soft_cap", 0) or 0,
        vllm_flash_attn_version=2,
    )
    vars(made).update(
        vllm_attn=SimpleNamespace(
            impl=implementation, _q_scale=scale, _k_scale=scale, _v_scale=scale
        ),
        vllm_attn_impl=implementation,
        aot_schedule=False,
        flash_attn_varlen_func=attend,
        get_scheduler_metadata=None,
    )
    return made
