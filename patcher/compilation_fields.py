"""What vLLM's class CompilationConfig takes, and stops at, by release.

Read from ``config/compilation.py``, before 0.10.2 from ``config.py``, of every release from 0.8.5
to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from .lifespan import Lifespan, lives
from .rules import Level, one_line
from .secrecy import shown

_V = Version
_EACH = (
    *("backend", "cache_dir", "compile_sizes", "cudagraph_capture_sizes", "cudagraph_copy_inputs"),
    *("cudagraph_num_of_warmups", "custom_ops", "debug_dump_path", "inductor_compile_config"),
    *("inductor_passes", "pass_config", "splitting_ops"),
)
FIELDS: Mapping[str, Lifespan] = {
    **dict.fromkeys(_EACH, (None, None)),
    "use_cudagraph": (None, _V("0.11.1")),
    "use_inductor": (None, _V("0.12.0")),
    "level": (None, _V("0.18.0")),
    "full_cuda_graph": (_V("0.9.0"), _V("0.11.1")),
    "cudagraph_mode": (_V("0.10.1"), None),
    "use_inductor_graph_partition": (_V("0.11.0"), None),
    "compile_cache_save_format": (_V("0.11.1"), None),
    "compile_mm_encoder": (_V("0.11.1"), None),
    "cudagraph_specialize_lora": (_V("0.11.1"), None),
    "max_cudagraph_capture_size": (_V("0.11.1"), None),
    "mode": (_V("0.11.1"), None),
    "dynamic_shapes_config": (_V("0.12.0"), None),
    "compile_ranges_split_points": (_V("0.13.0"), _V("0.18.0")),
    "fast_moe_cold_start": (_V("0.16.0"), None),
    "compile_ranges_endpoints": (_V("0.18.0"), None),
    "cudagraph_mm_encoder": (_V("0.19.0"), None),
    "encoder_cudagraph_max_images_per_batch": (_V("0.19.0"), _V("0.20.0")),
    "encoder_cudagraph_token_budgets": (_V("0.19.0"), None),
    "encoder_cudagraph_max_frames_per_batch": (_V("0.20.0"), None),
    "encoder_cudagraph_max_vision_items_per_batch": (_V("0.20.0"), None),
    "ir_enable_torch_wrap": (_V("0.20.0"), None),
    "cudagraph_decoder_replay": (_V("0.32.0"), None),
    "decoder_replay_cudagraph_capture_sizes": (_V("0.32.0"), None),
    "decoder_replay_trim_threshold": (_V("0.32.0"), None),
}
"""Each with the release that brought it and the one that has it no longer."""
MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
FORBIDS = Version("0.13.0")
"""From here on vLLM stops at a field that it does not have; before, it leaves it unread."""
NEWEST = Version("0.33.0")
"""The newest release that was looked at; a newer one may have more."""
_NOW = {
    "level": "mode",
    "use_cudagraph": "cudagraph_mode",
    "full_cuda_graph": "cudagraph_mode",
    "max_capture_size": "max_cudagraph_capture_size",
    "use_inductor": "backend",
}
"""What does the same today."""


def faults(given: Mapping[str, Any], vllm: Version | None) -> Iterator[tuple[str, Level]]:
    """What is wrong with an object for compiling; an error where vLLM stops.

    Args:
        given: the object.
        vllm: its release; None where it is not known, and only what none takes is told.
    """
    for key in given:
        if has(key, vllm):
            continue
        right = _NOW.get(key, "")
        hint = f"it is {right} here" if right and has(right, vllm) else "leave it out"
        if vllm is None:
            told = f"vLLM has no field {one_line(key)}, and stops at it from {FORBIDS} on"
            yield f"{told}: {hint}", Level.WARNING
        elif vllm >= FORBIDS:
            yield f"vLLM {vllm} stops at {one_line(key)}: it has no such field; {hint}", Level.ERROR
        else:
            yield f"vLLM {vllm} does not read {one_line(key)}; {hint}", Level.WARNING
    mode = given.get("cudagraph_mode")
    if isinstance(mode, str) and has("cudagraph_mode", vllm) and mode.upper() not in MODES:
        told = f"vLLM stops at cudagraph_mode {shown('', mode)}"
        yield f"{told}: it is one of {', '.join(MODES)}", Level.ERROR


def has(key: str, vllm: Version | None) -> bool:
    """Whether a release has a field, or may have it."""
    if vllm is not None and vllm > NEWEST:
        return True
    return key in FIELDS and (vllm is None or lives(FIELDS[key], vllm))
