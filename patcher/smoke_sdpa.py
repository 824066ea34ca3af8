"""Attention for LMCache's blender by torch's SDPA, where FlashAttention has no device to run on.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from typing import Any


class SdpaBackend:
    """Attention of one request's picked rows over all its keys, by torch."""

    def __init__(self, attention: Any) -> None:
        self.scale = attention.impl.scale

    def init_attn_metadata(self, input_ids: Any, **_kwargs: Any) -> Any:
        """Every row is picked at first."""
        import torch

        return SdpaMetadata(torch.arange(input_ids.shape[0]))

    def forward_contiguous(
        self, query: Any, key: Any, value: Any, output: Any, metadata: Any, **_kwargs: Any
    ) -> Any:
        """``query``, ``output``: ``[rows, heads, size]``; others ``[tokens, kv_heads, size]``."""
        import torch

        groups = query.shape[1] // key.shape[1]
        rows = query.transpose(0, 1)
        keys = key.repeat_interleave(groups, dim=1).transpose(0, 1)
        values = value.repeat_interleave(groups, dim=1).transpose(0, 1)
        # A picked row sees the keys up to its own place in the prompt, not in the pick.
        seen = torch.arange(key.shape[0])[None, :] <= metadata.rows[:, None]
        made = torch.nn.functional.scaled_dot_product_attention(
            rows, keys, values, attn_mask=seen, scale=self.scale
        )
        output.copy_(made.transpose(0, 1))
        return output


class SdpaMetadata:
    """Which rows of the prompt the queries are."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def update_from_top_indices(self, top_indices: Any) -> None:
        """Only these rows are computed from here on."""
        self.rows = self.rows[top_indices]
