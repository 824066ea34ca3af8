"""A model's ``config.json``, as far as the size of its KV cache and blending hang on it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .outcome import ExitCode, KvpatchError
from .weights import least

_MOST_BYTES = 16 * 1024 * 1024
DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "int8": 1,
}
"""Bytes of one value by vLLM's names of ``--kv-cache-dtype`` and torch's of a model's dtype."""
_ATTENTION = ("attention", "full_attention", "sliding_attention", "chunked_attention", "attn")
# Their max_position_embeddings is what the scaling makes of it.
_SCALED_ALREADY = ("su", "longrope", "llama3", "default")
_WINDOWED = ("sliding_attention", "chunked_attention")


class LeftOutError(KvpatchError):
    """A configuration leaves to transformers what is needed; ``architecture`` is its class."""

    architecture = ""


@dataclass(frozen=True)
class Model:
    """What is needed of a model.

    Attributes:
        name: of its folder, or the name that its configuration has.
        architecture: the class, such as ``LlamaForCausalLM``; empty where none is named.
        layers: with attention, whose keys and values are cached.
        other_layers: with a state of fixed size instead (Mamba, linear attention).
        windowed_layers: those of ``layers`` that look back ``window`` tokens at most.
        window: in tokens; 0 for none.
        kv_heads: of one layer.
        head_size: of keys, in values.
        value_size: of values, in values.
        latent_size: of the one vector that MLA caches for a token and layer; 0 without MLA.
        dtype: the model's own.
        longest: tokens of the longest prompt.
        rope: its scaling type; empty for none.
        most: tokens of the longest prompt that some release of vLLM takes without being forced.
        least_weights: bytes of its weights, at least.
    """

    name: str
    architecture: str
    layers: int
    other_layers: int
    windowed_layers: int
    window: int
    kv_heads: int
    head_size: int
    value_size: int
    latent_size: int
    dtype: str
    longest: int
    rope: str = ""
    most: int = 0
    least_weights: int = 0


def read_model(path: Path) -> Model:
    """Read a ``config.json`` or that of a folder.

    Raises:
        LeftOutError: ``model-left-out`` (exit 2): it is one, without all that is needed.
        KvpatchError: ``no-model`` (exit 4), ``bad-model`` (exit 2).
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise KvpatchError(
            "no-model",
            f"{file} can't be read: {error.strerror}",
            "give --model a config.json or a folder that has one; nothing is downloaded",
            ExitCode.ENVIRONMENT,
        ) from None
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError("it is too large")
        data = json.loads(content)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        name = str(data.get("_name_or_path") or file.resolve().parent.name)
        return parse_model(data, Path(name).name or name)
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
        if isinstance(error, KeyError) and data.get("model_type"):
            raise _left_out(file, data, error.args[0]) from None
        told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise KvpatchError(
            "bad-model",
            f"{file} is not a model's configuration: {told}",
            "give --model the config.json of a transformers model",
            ExitCode.USAGE,
        ) from None


def _left_out(file: Path, data: Mapping[str, Any], key: str) -> LeftOutError:
    found = LeftOutError(
        "model-left-out",
        f"{file} leaves out {key}, which transformers fills in for {data['model_type']!a}",
        "write it in; transformers' AutoConfig.from_pretrained on that folder tells the value",
        ExitCode.USAGE,
    )
    found.architecture = _architecture(data)
    return found


def _architecture(data: Mapping[str, Any]) -> str:
    named = data.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def served(path: Path) -> Path:
    """The folder that vLLM is given for a model named so: absolute, as it runs elsewhere."""
    folder = path if path.is_dir() else path.parent
    return Path(os.path.abspath(folder))  # noqa: PTH100


def parse_model(data: Mapping[str, Any], name: str) -> Model:
    """The model that a configuration describes.

    Raises:
        KeyError, ValueError, TypeError: what it lacks, or has wrong.
    """
    text = data.get("text_config") or data.get("llm_config") or data
    if not isinstance(text, dict):
        raise ValueError("its text_config is no JSON object")
    layers = _count(text, "num_hidden_layers", "n_layer", "num_layers")
    heads = _count(text, "num_attention_heads", "n_head")
    hidden = _count(text, "hidden_size", "n_embd", "d_model")
    kv_heads = text.get("num_key_value_heads") or text.get("num_kv_heads")
    if kv_heads is None:
        kv_heads = 1 if text.get("multi_query") else heads
    head = int(text.get("head_dim") or hidden // heads)
    latent = 0
    if text.get("kv_lora_rank"):
        latent = int(text["kv_lora_rank"]) + int(text["qk_rope_head_dim"])
    kinds = _kinds(text, layers)
    window = int(text.get("sliding_window") or text.get("attention_chunk_size") or 0)
    windowed = sum(kind in _WINDOWED for kind in kinds) if window else 0
    attending = sum(kind in _ATTENTION for kind in kinds)
    longest = _count(text, "max_position_embeddings", "n_positions", "max_sequence_length")
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    rope = str(scaling.get("rope_type") or scaling.get("type") or "") if scaling else ""
    dtype = text.get("torch_dtype") or text.get("dtype") or data.get("torch_dtype")
    return Model(
        name=name,
        architecture=_architecture(data),
        layers=attending,
        other_layers=layers - attending,
        windowed_layers=windowed,
        window=window if windowed else 0,
        kv_heads=int(kv_heads),
        head_size=head,
        value_size=int(text.get("v_head_dim") or head) if not latent else head,
        latent_size=latent,
        dtype=str(dtype or data.get("dtype") or "bfloat16").removeprefix("torch."),
        longest=longest,
        rope="" if rope == "default" else rope,
        most=max(longest, _stretched(text, scaling, rope, longest)),
        least_weights=least(text, layers=attending, heads=heads, kv_heads=int(kv_heads), head=head),
    )


def _stretched(text: Mapping[str, Any], scaling: Any, rope: str, longest: int) -> int:
    """The longest prompt by the most generous way in which a vLLM release counts it."""
    own = text.get("model_max_length")
    told = own if isinstance(own, int) else 0
    factor = scaling.get("factor") if rope not in ("", *_SCALED_ALREADY) else None
    if not isinstance(factor, int | float):
        return told
    base = scaling.get("original_max_position_embeddings") if rope.endswith("yarn") else longest
    return max(told, int(factor * (base if isinstance(base, int) else longest)))


def _count(data: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if data.get(name) is not None:
            found = int(data[name])
            if found <= 0:
                raise ValueError(f"its {name} is {found}")
            return found
    raise KeyError(names[0])


def _kinds(text: Mapping[str, Any], layers: int) -> list[str]:
    """The kind of each layer, by any of the ways that configurations have to say it."""
    given = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(given, list):
        return [str(kind) for kind in given[:layers]]
    if pattern := text.get("hybrid_override_pattern"):
        return ["attention" if char == "*" else "other" for char in str(pattern)]
    if indices := text.get("attn_layer_indices"):
        return ["attention" if place in indices else "other" for place in range(layers)]
    if period := text.get("attn_layer_period"):
        offset = int(text.get("attn_layer_offset") or 0)
        return [
            "attention" if place % int(period) == offset else "other" for place in range(layers)
        ]
    if every := text.get("full_attention_interval"):
        return [
            "full_attention" if (place + 1) % int(every) == 0 else "other"
            for place in range(layers)
        ]
    window = text.get("sliding_window") and text.get("use_sliding_window", True)
    if window and (every := text.get("sliding_window_pattern")):
        return [
            "full_attention" if (place + 1) % int(every) == 0 else "sliding_attention"
            for place in range(layers)
        ]
    if window:
        full = int(text.get("max_window_layers") or 0) if "use_sliding_window" in text else 0
        return ["full_attention"] * min(full, layers) + ["sliding_attention"] * max(
            0, layers - full
        )
    return ["attention"] * layers
