"""The numbers of a profile, computed from the model, each with its formula."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from .kv_size import GIB, KvSize, kv_size, utilization, whole_gib, whole_mib
from .model_config import Model
from .vllm_options import default_utilization

# Llama-3.1-8B with prompts of 32768 tokens: what stands there where no model is named.
_REFERENCE_MIB = 4096
_REFERENCE_BYTES = 131072
_REFERENCE_NAME = "Llama-3.1-8B"
_REFERENCE_TOKENS = 32768
_STAGING_GIB = 5.0
_PROMPTS = 4
_CHUNK = 256
BLOCK = 16
"""Tokens in a block of vLLM's cache where nothing else is said."""


@dataclass(frozen=True)
class Wanted:
    """What the user said of model and machine.

    Attributes:
        model: its configuration; None where none was named.
        model_path: how it was named, for the command.
        ranks: tensor-parallel ranks.
        gpu_gib: memory of a GPU; None where it was not said.
        longest: tokens of the longest prompt; None for the model's own.
        kv_dtype: of the KV cache.
        dtype: that vLLM is to be told to serve the model in; empty for the model's own.
        buffer_mib: of the GDS buffer on a rank, in the place of what a prompt takes.
    """

    model: Model | None = None
    model_path: Path | None = None
    ranks: int = 1
    gpu_gib: float | None = None
    longest: int | None = None
    kv_dtype: str = "auto"
    dtype: str = ""
    buffer_mib: int | None = None


@dataclass(frozen=True)
class Numbers:
    """What is computed.

    Attributes:
        token_bytes: of one token on one rank.
        buffer_mib: of the GDS buffer on one rank.
        cpu_gib: of CPU memory for a tier, on one rank.
        staging_gib: of CPU memory where it is no tier.
        prompt: the formula of the buffer, in words.
        cpu_prompt: the formula of the CPU memory.
        share: vLLM's share of the GPU beside the buffer; None where the GPU's memory is not known.
        whole: that share by default, without a buffer.
        blocks: of ``BLOCK`` tokens that the CPU memory holds.
    """

    token_bytes: int
    buffer_mib: int
    cpu_gib: float
    staging_gib: float
    prompt: str
    cpu_prompt: str
    share: float | None
    whole: float
    blocks: int


def numbers(wanted: Wanted, *, gds: bool, vllm: Version | None = None) -> Numbers:
    """The numbers for a model; for :data:`_REFERENCE_NAME` where none was named.

    Raises:
        KvpatchError: ``bad-dtype``, ``bad-ranks`` (exit 2), ``no-gpu-memory`` (exit 3).
    """
    if wanted.model is None:
        token, buffer = _REFERENCE_BYTES, _REFERENCE_MIB
        tokens = wanted.longest or _REFERENCE_TOKENS
        if wanted.longest:
            buffer = whole_mib(token * _chunked(tokens))
        prompt = (
            "tokens * layers * 2 * KV heads on the rank * head size * bytes per value / 2^20. "
            f"{_REFERENCE_NAME} in bf16 has 128 KiB a token, so {tokens} tokens take {buffer} MiB."
        )
        name = _REFERENCE_NAME
    else:
        size: KvSize = kv_size(wanted.model, wanted.ranks, wanted.kv_dtype)
        token, name = size.bytes, wanted.model.name
        tokens = wanted.longest or wanted.model.longest
        buffer = whole_mib(size.of(_chunked(tokens)))
        prompt = f"{name} has {size.formula} on a rank, so {tokens} tokens take {buffer} MiB."
        if size.window or wanted.model.other_layers:
            prompt += _unlike_engine(wanted.model)
    buffer = wanted.buffer_mib or buffer
    whole = default_utilization(vllm)
    cpu = float(max(_STAGING_GIB, whole_gib(token * _chunked(tokens) * _PROMPTS)))
    return Numbers(
        token_bytes=token,
        buffer_mib=buffer,
        cpu_gib=cpu,
        staging_gib=_STAGING_GIB,
        prompt=prompt,
        cpu_prompt=(
            f"Holds {_PROMPTS} of the longest prompts: {_PROMPTS} * {tokens} tokens * {token} "
            f"bytes a token of {name} = {token * tokens * _PROMPTS / GIB:.1f} GiB, at least "
            f"{_STAGING_GIB:g}."
        ),
        share=utilization(gpu, buffer if gds else 0, whole) if (gpu := wanted.gpu_gib) else None,
        whole=whole,
        blocks=int(cpu * GIB) // (token * BLOCK),
    )


def reference(wanted: Wanted) -> str:
    """What the numbers are of where no model was named."""
    return f"{_REFERENCE_NAME} with prompts of {wanted.longest or _REFERENCE_TOKENS} tokens"


def folder_for(folder: str, wanted: Wanted, lmcache: Version | None) -> str:
    """The folder below the storage that belongs to this model, rank count and LMCache release."""
    name = wanted.model.name if wanted.model else "model"
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "model"
    return f"{folder.rstrip('/')}/{plain}-tp{wanted.ranks}-lmcache{lmcache}"


def _chunked(tokens: int) -> int:
    """Tokens in the chunks that a prompt takes."""
    return -(-tokens // _CHUNK) * _CHUNK


def _unlike_engine(model: Model) -> str:
    parts = []
    if model.windowed_layers:
        parts.append(
            f" vLLM itself keeps {model.window} tokens in {model.windowed_layers} layers with a "
            "sliding window; LMCache stores all."
        )
    if model.other_layers:
        parts.append(f" {model.other_layers} layers have no keys and values, and are not counted.")
    return "".join(parts)
