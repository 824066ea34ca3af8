"""A model's ``config.json``, as far as the size of its KV cache and blending hang on it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .outcome import ExitCode, KvpatchError
from .probe import probe
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
# What transformers makes of a text part that leaves these out is a number of its own, and not what
# follows from other keys. transformers writes such a part without all that is as by default.
_OWN = {
    "num_key_value_heads": ("gemma", "llama4", "ministral3", "mistral", "qwen"),
    "head_dim": ("gemma", "llama4", "ministral3", "qwen3"),
}
# One layer of so many has full attention where neither the pattern nor the layers are told.
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "gemma3n_text": 5}
_LONGEST = "max_position_embeddings"
_LIMIT_S = 180.0
_TEXTS = ("text_config", "llm_config")
_NEEDED = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    _LONGEST: (_LONGEST, "n_positions", "max_sequence_length"),
}


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
        heads: for queries, of one layer.
        kv_heads: the same for keys and values.
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
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    latent_size: int
    dtype: str
    longest: int
    rope: str = ""
    most: int = 0
    least_weights: int = 0


def read_model(path: Path, *, longest: int | None = None, python: Path | None = None) -> Model:
    """Read a ``config.json`` or that of a folder.

    Args:
        path: the file or the folder.
        longest: tokens of the longest prompt, where the configuration leaves that out.
        python: an interpreter with transformers, asked for what the configuration leaves out.

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
        name = Path(name).name or name
        try:
            return parse_model(data, name, longest)
        except KeyError as error:
            if not data.get("model_type"):
                raise
            keys, problem = error.args, ""
        if python is not None:
            answer = probe("config_probe", [str(file)], limit=_LIMIT_S, python=python)
            problem = answer.problem or str((answer.facts or {}).get("problem", ""))
            if answer.facts and not problem:
                return parse_model(filled(data, answer.facts), name, longest)
        raise _left_out(file, data, keys, problem)
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
        told = str(error)
        if isinstance(error, KeyError):
            told = f"it has no {', '.join(map(repr, error.args))}"
        raise KvpatchError(
            "bad-model",
            f"{file} is not a model's configuration: {told}",
            "give --model the config.json of a transformers model",
            ExitCode.USAGE,
        ) from None


def _left_out(
    file: Path, data: Mapping[str, Any], keys: tuple[str, ...], problem: str
) -> LeftOutError:
    asked = f"; the target's can't be asked: {problem}" if problem else ""
    found = LeftOutError(
        "model-left-out",
        f"{file} leaves out {', '.join(keys)}, which transformers fills in for "
        f"{data['model_type']!a}",
        "write it in; transformers' AutoConfig.from_pretrained on that folder tells the value"
        + asked,
        ExitCode.USAGE,
    )
    found.architecture = _architecture(data)
    return found


def filled(data: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration with what it leaves out, as transformers has it."""
    found = {**whole, **{key: value for key, value in data.items() if value is not None}}
    for name in _TEXTS:
        part, rest = data.get(name), whole.get(name)
        if isinstance(part, dict) and isinstance(rest, dict):
            found[name] = filled(part, rest)
    return found


def _architecture(data: Mapping[str, Any]) -> str:
    named = data.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def served(path: Path) -> Path:
    """The folder that vLLM is given for a model named so: absolute, as it runs elsewhere."""
    folder = path if path.is_dir() else path.parent
    return Path(os.path.abspath(folder))  # noqa: PTH100


def parse_model(data: Mapping[str, Any], name: str, longest: int | None = None) -> Model:
    """The model that a configuration describes.

    Args:
        data: the configuration.
        name: of the model.
        longest: as for :func:`read_model`.

    Raises:
        KeyError: all that it lacks, as the exception's arguments.
        ValueError, TypeError: what it has wrong.
    """
    text = next((data[key] for key in _TEXTS if data.get(key)), data)
    if not isinstance(text, dict):
        raise ValueError("its text_config is no JSON object")
    if longest is not None and not any(text.get(key) is not None for key in _NEEDED[_LONGEST]):
        text = {**text, _LONGEST: longest}
    if lacking := _lacking(text, part=text is not data):
        raise KeyError(*lacking)
    layers, heads, hidden, longest = (_count(text, *names) for names in _NEEDED.values())
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
        heads=heads,
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


def _lacking(text: Mapping[str, Any], *, part: bool) -> list[str]:
    """The needed keys that a configuration leaves out; ``part``: it is one inside of another."""
    found = [key for key, names in _NEEDED.items() if all(text.get(name) is None for name in names)]
    if text.get("kv_lora_rank") or text.get("multi_query"):
        return found
    kind = str(text.get("model_type") or "") if part else ""
    for key, kinds in _OWN.items():
        given = text.get(key) or (key == "num_key_value_heads" and text.get("num_kv_heads"))
        # Where one is left out as by default, so are the others.
        if not given and ((found and part) or kind.startswith(kinds)):
            found.append(key)
    return found


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
    pattern = text.get("sliding_window_pattern") or _PATTERNS.get(str(text.get("model_type")))
    if window and (every := pattern):
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
