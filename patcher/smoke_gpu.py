"""What a release of vLLM takes on a GPU, to set against what a smoke on a CPU ran with.

From vLLM's released sources (0.8.5 to 0.33.0): the KV cache's shape, and the CUDA graphs that a
bare ``use_layerwise`` in the connector's settings leads to.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from .model_runner import second_runner_since

# NB blocks, BS their tokens, NH KV heads, HS their size.
_SHAPES = (
    (Version("0.26.0"), "[NB, NH, BS, 2*HS]"),
    (Version("0.23.0"), "[NB, 2, BS, NH, HS]"),
    (Version("0"), "[2, NB, BS, NH, HS]"),
)
_PIECEWISE = Version("0.17.0")


def takes_graphs(vllm: Version) -> bool:
    """Whether blending goes with graphs: from 0.17 on, a bare ``use_layerwise`` makes them fit."""
    return Version(vllm.base_version) >= _PIECEWISE


def on_a_gpu(vllm: Version, arch: str | None) -> Mapping[str, str]:
    """The same facts that a smoke reports of its engine, for that release on an NVIDIA GPU.

    ``arch`` is None for a user's model, of which the default runner may then not be known.
    """
    base = Version(vllm.base_version)
    return {
        "runner": "Model Runner V2" if base >= second_runner_since(arch) else "GPUModelRunner (V1)",
        "graph_mode": "PIECEWISE" if takes_graphs(vllm) else "NONE (run with --enforce-eager)",
        "attention": "FlashAttentionImpl",
        "kv_shape": next(shape for since, shape in _SHAPES if base >= since),
        "executor": "a process of its own for each worker",
        "dtype": "bfloat16",
    }
