"""Which model runner a release of vLLM takes by default, and how the older one is taken.

From vLLM's released sources; ``VllmConfig.use_v2_model_runner`` asks the variable before the model.
"""

from __future__ import annotations

from packaging.version import Version

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
SKIPS = "with full CUDA graphs a fully cached prompt skips the load"
"""What comes of the newer one with LMCache's connector: letter V, in its words."""
BARE = "a bare use_layerwise in kv_connector_extra_config"
"""What keeps from that, in every release that has that default."""
WAY = f"{BARE}, which gives piecewise CUDA graphs; {VARIABLE}=0 alone keeps full ones"
"""What blending needs: as it stores layer by layer, full ones are wrong with the older one too."""
_ALL = "all models"
_SINCE = (("0.22", "Qwen3"), ("0.23", "Llama"), ("0.25", "Qwen2"), ("0.29", _ALL))


def second_runner_for(vllm: Version | None) -> str:
    """The models that this vLLM takes Model Runner V2 for by default; empty for none."""
    found = [who for since, who in _SINCE if vllm is not None and vllm >= Version(since)]
    return _ALL if _ALL in found else ", ".join(found)


def second_runner_since(arch: str | None) -> Version:
    """The first vLLM that takes Model Runner V2 for an architecture such as ``qwen3`` by default.

    None stands for one that is not known: the first that takes it for all models.
    """
    since = {who.lower(): Version(first) for first, who in _SINCE}
    return since.get(arch or _ALL, since[_ALL])
