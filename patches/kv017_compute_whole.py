"""Compute prompts whole that LMCache can't blend, or whose log probs are asked for."""

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

COMPUTED_WHOLE = '''
def _kvpatch_computed_whole(connector, request):
    """Whether nothing is loaded of a prompt: its log probs are asked for, or it is too long."""
    # kvpatch KV017: of what is loaded nothing is computed. Newer vLLM says so of a request itself.
    skips = getattr(request, "skip_reading_prefix_cache", None)
    if skips is None:
        skips = getattr(request.sampling_params, "prompt_logprobs", None) is not None
    if skips:
        return True
    if not connector.config.enable_blending:
        return False
    cache = connector._parent._vllm_config.cache_config
    # kvpatch KV017: LMCache blends in two buffers of a prompt's length, both taken from the room of
    # one layer of the KV cache. By whole blocks, for the bytes of each are rounded up.
    if 2 * -(-request.num_tokens // cache.block_size) <= cache.num_gpu_blocks:
        return False
    if not getattr(connector, "_kvpatch_told", False):
        connector._kvpatch_told = True
        logger.warning(
            "kvpatch: a prompt of %d tokens takes more than half of the KV cache (%d tokens), "
            "which is more than LMCache can blend: vLLM computes it whole. Told once.",
            request.num_tokens,
            cache.num_gpu_blocks * cache.block_size,
        )
    return True
'''

_MATCHED = "LMCacheConnectorV1Impl.get_num_new_matched_tokens"
_LOOKUP = "self.lookup_client.lookup(*___)"
_UNLESS_WHOLE = f"0 if _kvpatch_computed_whole(self, request) else {_LOOKUP}"


def _guard(lookups: int) -> Transform:
    def transform(module: cst.Module) -> cst.Module:
        """Take what is to be computed whole for a prompt without hits.

        All else goes on as after a lookup: LMCache asserts that it noted the hits of a request
        that was preempted.

        Raises:
            Refusal: where hits are not looked up in as many places.
        """
        from kvpatch import anchors, rewrite

        module = anchors.replace_expression(module, _MATCHED, _LOOKUP, _guarded, times=lookups)
        return rewrite.append_function(module, COMPUTED_WHOLE)

    return transform


def _guarded(call: cst.BaseExpression) -> cst.BaseExpression:
    import libcst

    whole = libcst.parse_expression(_UNLESS_WHOLE.replace("*___", ""))
    return libcst.ensure_type(whole, libcst.IfExp).with_changes(orelse=call)


def computes_whole(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether hits are looked up of no prompt that has to be computed whole."""
    matched = function(module, _MATCHED)
    lookups = find(matched, _LOOKUP)
    if not lookups:
        return Judgement(False, "hits are looked up elsewhere")
    guarded = find(matched, _UNLESS_WHOLE)
    written = as_written(function(module, "_kvpatch_computed_whole"), COMPUTED_WHOLE)
    if len(guarded) != len(lookups) or not written:
        return Judgement(
            False,
            "a hit of more than half of the KV cache ends the engine, and where log probs of a "
            "prompt are asked for, those of a hit are whatever was in memory",
        )
    return Judgement(True, "what can't be loaded is computed by vLLM")


PATCH = Patch(
    id="KV017",
    distribution="lmcache",
    targets=(
        Target(ADAPTER, "<0.3.6", _guard(2)),
        Target(ADAPTER, ">=0.3.6", _guard(1)),
    ),
    versions=">=0.3.4,<0.5.7.dev0",
    why="LMCache blends in two buffers of a hit's length, and takes both from the room of one "
    "layer of vLLM's KV cache. A hit of more than half of that cache, which vLLM admits, ends the "
    "engine: Failed to allocate GPU buffer in GPUConnector. And where a request asks for the log "
    "probs of its prompt (prompt_logprobs, or echo with logprobs), vLLM before 0.31 loads a hit "
    "all the same, blending or not: it computes none for what is loaded, and answers with what "
    "happens to be in memory, or ends with an OverflowError.",
    how="Such a prompt gets no hits: vLLM computes it whole, and it is stored as usual. The first "
    "one that is too long is told in the log.",
    upstream="https://github.com/LMCache/LMCache/blob/v0.5.6/"
    "lmcache/v1/gpu_connector/gpu_connectors.py",
    retire_when="An LMCache release blends hits of any length that vLLM admits, and support for "
    "vLLM 0.30 and older ends.",
    post_condition=computes_whole,
    faithful=released_elsewhere,
    proved="run on a CPU: vLLM 0.32.0 with LMCache 0.5.6; log probs of prompts: vLLM 0.11.0 with "
    "LMCache 0.3.9.post2",
)


_FOUND = "self.lookup_client.lookup({}, lookup_id=request.request_id)"
_GUARD = "0 if _kvpatch_computed_whole(self, request) else "


def _adapter(guard: str = "", ids: str = "token_ids") -> str:
    return f"""
class LMCacheConnectorV1Impl:
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        token_ids = request.prompt_token_ids
        num_external_hit_tokens = {guard}{_FOUND.format(ids)}
        return num_external_hit_tokens - num_computed_tokens
"""


def _older(guard: str = "") -> str:
    return f"""
class LMCacheConnectorV1Impl:
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        token_ids = torch.tensor(request.prompt_token_ids)
        if self.skip_last_n_tokens > 0:
            found = {guard}{_FOUND.format("token_ids[:-1]")}
        else:
            found = {guard}{_FOUND.format("token_ids")}
        return found - num_computed_tokens
"""


_ADDED = "\n" + COMPUTED_WHOLE

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "looks up no hits of a prompt that is too long to blend",
        "0.5.6",
        _adapter(),
        after=_adapter(_GUARD) + _ADDED,
    ),
    Example(
        ExampleKind.REWRITTEN,
        "does so in both places of an older release",
        "0.3.5",
        _older(),
        after=_older(_GUARD) + _ADDED,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release alone whose buffers are of a fixed length",
        "0.3.3",
        _older(),
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.5.6",
        _adapter(_GUARD, "request.all_token_ids") + _ADDED.replace("kvpatch KV017: ", ""),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where hits are looked up in one more place",
        "0.5.6",
        _older(),
        outcome=Outcome.AMBIGUOUS,
        reason="in 2 places",
    ),
)
