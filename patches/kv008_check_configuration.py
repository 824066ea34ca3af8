"""Stop at start where blending is configured so that it can't work."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import as_written, find, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target, Transform

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"

CHECK = '''
def _kvpatch_check_blending(config, vllm_config):
    """Stop where blending is configured so that it would not run, or give wrong output."""
    if not config.enable_blending:
        return
    wanted = {
        "use_layerwise": "without it cached segments are used as they are, which is wrong output",
        "blend_check_layers": "without it the first blend dies",
        "blend_recompute_ratios": "without it the first blend dies",
        "blend_special_str": "without a separator there are no segments to blend",
    }
    for key, reason in wanted.items():
        if hasattr(config, key) and not getattr(config, key):
            raise ValueError(
                f"kvpatch: LMCache's configuration has enable_blending but no {key}: {reason}. "
                f"Set {key}, or leave blending off."
            )
    parallel = vllm_config.parallel_config
    unfit = {
        "pipeline_parallel_size": "the blender wants every layer of the model in its process",
        "decode_context_parallel_size": "the connector wants every token on each rank",
    }
    for key, reason in unfit.items():
        number = getattr(parallel, key, 1)
        if number > 1:
            raise ValueError(
                f"kvpatch: enable_blending does not go with a {key} of {number}: {reason}. "
                "Set it to 1, or leave blending off."
            )
    if getattr(vllm_config, "lora_config", None) is not None:
        raise ValueError(
            "kvpatch: enable_blending does not go with LoRA: LMCache keeps no adapter with its "
            "chunks. Serve without LoRA, or leave blending off."
        )
    if vllm_config.cache_config.enable_prefix_caching:
        raise ValueError(
            "kvpatch: enable_blending does not go with vLLM's prefix caching: LMCache can't blend "
            "behind what vLLM has, and the engine dies. Start vLLM with "
            "--no-enable-prefix-caching, or leave blending off."
        )
    window = getattr(vllm_config.cache_config, "sliding_window", None)
    if isinstance(window, int) and window < vllm_config.model_config.max_model_len:
        raise ValueError(
            f"kvpatch: enable_blending does not go with a model whose layers have a sliding window "
            f"({window} tokens): vLLM gives blocks away before a longer prompt is stored, so "
            "chunks would hold what others computed. Start vLLM with --disable-sliding-window, "
            "which takes prompts of that length at most, or leave blending off."
        )
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config or {}
    if int(extra.get("lmcache.max_tokens_per_load") or 0) > 0:
        raise ValueError(
            "kvpatch: enable_blending does not go with lmcache.max_tokens_per_load: it cuts hits "
            "inside of a segment, and the first blend dies. Take it out of "
            "kv_connector_extra_config, or leave blending off."
        )
'''

CALL = """
# kvpatch KV008: what blending needs is asked for before anything starts.
_kvpatch_check_blending(config, vllm_config)
"""
_CALLED = "_kvpatch_check_blending(config, vllm_config)"
_INIT = "LMCacheConnectorV1Impl.__init__"


def _check_after(anchor: str) -> Transform:
    def transform(module: cst.Module) -> cst.Module:
        """Check the configuration as soon as it is complete.

        Raises:
            Refusal: where the anchor is not there exactly once.
        """
        from kvpatch import anchors, rewrite

        call = rewrite.statement(module, CALL)
        module = anchors.replace(module, _INIT, anchor, lambda line: [line, call])
        return rewrite.append_function(module, CHECK)

    return transform


def checks_the_configuration(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether the configuration is checked before the blender is built."""
    init = function(module, _INIT)
    calls = find(init, _CALLED)
    if init is None or not calls:
        return Judgement(False, "a configuration that can't blend is accepted")
    if not as_written(function(module, "_kvpatch_check_blending"), CHECK):
        return Judgement(False, "the function that checks the configuration was edited")
    first = min(node.lineno for node in calls if isinstance(node, ast.expr))
    built = [
        node.lineno
        for node in ast.walk(init)
        if isinstance(node, ast.Name) and node.id == "LMCBlenderBuilder"
    ]
    if any(line < first for line in built):
        return Judgement(False, "the blender is built before the configuration is checked")
    return Judgement(True, "a configuration that can't blend stops the start")


PATCH = Patch(
    id="KV008",
    distribution="lmcache",
    targets=(
        Target(ADAPTER, "<0.3.4", _check_after("self.use_layerwise = config.use_layerwise")),
        Target(ADAPTER, ">=0.3.4", _check_after("self.config = config")),
    ),
    versions=">=0.3.3,<0.5.7.dev0",
    why="LMCache accepts enable_blending without use_layerwise and then uses cached segments "
    "without blending them; without check layers and ratios it dies at the first blend. It can't "
    "blend in pipeline stages, over decode context parallel ranks, with LoRA and with vLLM's "
    "prefix caching, where it dies at the first shared prefix that fills a chunk; nor with "
    "lmcache.max_tokens_per_load, or where every layer has a sliding window shorter than a "
    "prompt, of which vLLM has given blocks away when it is stored.",
    how="Stops at start with a sentence that names the setting; without enable_blending nothing is "
    "looked at.",
    upstream="https://github.com/LMCache/LMCache/pull/4157",
    retire_when="An LMCache release refuses such a configuration itself.",
    post_condition=checks_the_configuration,
    faithful=released_elsewhere,
    proved="run on a CPU: vLLM 0.32.0 with LMCache 0.5.6",
)

_STOCK = """
class LMCacheConnectorV1Impl:
    def __init__(self, vllm_config, role, parent):
        config = lmcache_get_or_create_config()
        self.config = config
        self.blender = LMCBlenderBuilder.get_or_create(ENGINE_NAME, config)
"""

_PATCHED = (
    """
class LMCacheConnectorV1Impl:
    def __init__(self, vllm_config, role, parent):
        config = lmcache_get_or_create_config()
        self.config = config
        # kvpatch KV008: what blending needs is asked for before anything starts.
        _kvpatch_check_blending(config, vllm_config)
        self.blender = LMCBlenderBuilder.get_or_create(ENGINE_NAME, config)

"""
    + CHECK
)

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "checks the configuration as soon as it is complete",
        "0.5.6",
        _STOCK,
        after=_PATCHED,
    ),
    Example(ExampleKind.UNTOUCHED, "leaves a release without blending alone", "0.3.2", _STOCK),
    Example(
        ExampleKind.ABSORBED,
        "sees the check put in by hand",
        "0.5.6",
        _PATCHED.replace("self.config = config", "self.config = config  # by hand"),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the configuration is kept under another name",
        "0.5.6",
        _STOCK.replace("self.config =", "self.configuration ="),
        outcome=Outcome.MISSING,
        reason="self.configuration = config",
    ),
)
