"""Leave chunks pinned that a waiting request was promised."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import as_written, find, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

ENGINE = "lmcache/v1/cache_engine.py"
ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"

_RETRIEVE = "LMCacheEngine.retrieve_layer"
_LOCATED = "self.storage_manager.layerwise_batched_get(___, location=location)"
_UNPINNED = """
for mem_obj in to_count_down:
    if mem_obj.is_pinned:
        mem_obj.unpin()
"""
_OWN_UNPINNED = """
# kvpatch KV018: what lies in the CPU tier is pinned by lookups alone, and each gives back its own.
for mem_obj in to_count_down:
    if location != "LocalCPUBackend" and mem_obj.is_pinned:
        mem_obj.unpin()
"""

_MATCH = "LMCacheConnectorV1Impl.get_num_new_matched_tokens"
_REMEMBERED = "self.lookup_client.lookup_cache(lookup_id=req_id)"
_PROMISED = "_kvpatch_promised(self, req_id)"

PROMISED = '''
def _kvpatch_promised(self, req_id):
    """The hit that a waiting request was told; -1 where it is to be looked up, or anew."""
    from time import monotonic

    # kvpatch KV018: LMCache gives pins up after pin_timeout_sec, and another lookup renews them.
    promised = self.lookup_client.lookup_cache(lookup_id=req_id)
    if promised is None or not self.config.use_layerwise:
        return promised
    patience, now = self.config.pin_timeout_sec, monotonic()
    asked = vars(self).setdefault("_kvpatch_asked", {})
    if promised != -1 and now - asked.get(req_id, float("-inf")) <= patience / 3:
        return promised
    for gone in [one for one, at in asked.items() if now - at > patience]:
        del asked[gone]
    asked[req_id] = now
    self.lookup_client.clear_lookup_status(req_id)
    return -1
'''


def keep_pins(module: cst.Module) -> cst.Module:
    """Take the pin back of what was loaded to the CPU's memory alone, not of what lies there.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    from kvpatch import anchors

    module = anchors.replace_expression(module, _RETRIEVE, _LOCATED, lambda call: call)
    return anchors.replace(
        module, _RETRIEVE, _UNPINNED, lambda loop: anchors.like(loop, module, _OWN_UNPINNED)
    )


def renew_pins(module: cst.Module) -> cst.Module:
    """Look a request up anew that waits, before the pins of its chunks are given up.

    Raises:
        Refusal: where the anchor is not there exactly once.
    """
    import libcst
    from kvpatch import anchors, rewrite

    call = libcst.parse_expression(_PROMISED)
    module = anchors.replace_expression(module, _MATCH, _REMEMBERED, lambda _: call)
    return rewrite.append_function(module, PROMISED)


def keeps_pins(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether each pin is given back once, and renewed while its request waits."""
    matching = function(module, _MATCH)
    if matching is not None:
        return _renews(module, matching)
    retrieving = function(module, _RETRIEVE)
    if not find(retrieving, _LOCATED):
        return Judgement(False, "chunks are loaded in another way")
    if len(find(retrieving, "___.unpin()")) != 1 or not find(retrieving, _OWN_UNPINNED):
        return Judgement(False, "a load unpins chunks that another request was promised")
    return Judgement(True, "lookups alone give back their pins of the CPU tier")


def _renews(module: ast.Module, matching: ast.AST) -> Judgement:
    if find(matching, _REMEMBERED) or not find(matching, _PROMISED):
        return Judgement(False, "a hit is remembered after the pins of its chunks are given up")
    if not as_written(function(module, "_kvpatch_promised"), PROMISED):
        return Judgement(False, "the function that looks up anew was edited")
    return Judgement(True, "a request that waits is looked up anew before pins are given up")


PATCH = Patch(
    id="KV018",
    distribution="lmcache",
    targets=(
        Target(ENGINE, ">=0.4.3.dev0", keep_pins),
        Target(ADAPTER, ">=0.4.3.dev0", renew_pins),
    ),
    versions=">=0.4.3.dev0,<0.5.7.dev0",
    why="Layer by layer, a load unpins each chunk that it got. That is meant for copies of what "
    "lies elsewhere; of the CPU tier it takes the pin with which a lookup keeps the chunk for "
    "another request. Where that one waits and the tier is full, its chunks are dropped, and the "
    "hit that vLLM was told is never looked up again: the engine ends with an error about sizes "
    "of tensors. Each load also logs Pin count of MemoryObj ... is negative, once for each chunk "
    "and layer. Pins are also given up after pin_timeout_sec (300 seconds), with the same end for "
    "a request that waits longer for room in vLLM's KV cache.",
    how="Unpins only what was loaded from another place than the CPU tier; each lookup's own pins "
    "are given back at the end of the step that loads, as before. A request that still waits after "
    "a third of pin_timeout_sec is looked up anew, which renews them.",
    upstream="https://github.com/LMCache/LMCache/issues/2954",
    retire_when="An LMCache release leaves the pins of lookups alone when it loads by layer.",
    post_condition=keeps_pins,
    faithful=released_elsewhere,
    proved="run on a CPU: vLLM 0.32.0 with LMCache 0.5.6",
)


def _engine(unpinned: str, got: str = "keys_layer_major, location=location") -> str:
    loop = "\n".join(f"        {line}" for line in unpinned.strip().splitlines())
    return f"""
class LMCacheEngine:
    def retrieve_layer(self, tokens):
        get_generator = self.storage_manager.layerwise_batched_get({got})
        for layer_id in range(self.num_layers):
            to_count_down.extend(next(get_generator).result())
        yield None

        # Unpin staging objects.
{loop}

        yield ret_mask
"""


def _adapter(promised: str = _REMEMBERED) -> str:
    return f"""
class LMCacheConnectorV1Impl:
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        req_id = request.request_id
        if (
            num_external_hit_tokens := {promised}
        ) != -1:
            logger.debug("Found it in the lookup cache.")
        else:
            num_external_hit_tokens = self.lookup_client.lookup(request.all_token_ids)
        return num_external_hit_tokens - num_computed_tokens
"""


EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "unpins what was loaded from another place than the CPU tier",
        "0.5.6",
        _engine(_UNPINNED),
        after=_engine(_OWN_UNPINNED),
        path=ENGINE,
    ),
    Example(
        ExampleKind.REWRITTEN,
        "looks a request up anew that waits",
        "0.5.6",
        _adapter(),
        after=_adapter(_PROMISED) + "\n" + PROMISED,
        path=ADAPTER,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release alone whose loads unpin nothing",
        "0.4.2",
        _engine("pass"),
        path=ENGINE,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.5.3",
        _engine(_OWN_UNPINNED.split("\n", 2)[2]),
        path=ENGINE,
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the place is known by another name",
        "0.4.4",
        _engine(_UNPINNED, "keys_layer_major, location=place"),
        path=ENGINE,
        outcome=Outcome.MISSING,
        reason="nowhere",
    ),
)
