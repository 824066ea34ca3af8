"""Leave chunks pinned that a waiting request was promised."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import find, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

ENGINE = "lmcache/v1/cache_engine.py"

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


def keeps_pins(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether a load takes no pin of a lookup back, and each pin of its own."""
    retrieving = function(module, _RETRIEVE)
    if not find(retrieving, _LOCATED):
        return Judgement(False, "chunks are loaded in another way")
    if len(find(retrieving, "___.unpin()")) != 1 or not find(retrieving, _OWN_UNPINNED):
        return Judgement(False, "a load unpins chunks that another request was promised")
    return Judgement(True, "lookups alone give back their pins of the CPU tier")


PATCH = Patch(
    id="KV018",
    distribution="lmcache",
    targets=(Target(ENGINE, ">=0.4.3.dev0", keep_pins),),
    versions=">=0.4.3.dev0,<0.5.7.dev0",
    why="Layer by layer, a load unpins each chunk that it got. That is meant for copies of what "
    "lies elsewhere; of the CPU tier it takes the pin with which a lookup keeps the chunk for "
    "another request. Where that one waits and the tier is full, its chunks are dropped, and the "
    "hit that vLLM was told is never looked up again: the engine ends with an error about sizes "
    "of tensors. Each load also logs Pin count of MemoryObj ... is negative, once for each chunk "
    "and layer.",
    how="Unpins only what was loaded from another place than the CPU tier; each lookup's own pins "
    "are given back at the end of the step that loads, as before.",
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


EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "unpins what was loaded from another place than the CPU tier",
        "0.5.6",
        _engine(_UNPINNED),
        after=_engine(_OWN_UNPINNED),
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release alone whose loads unpin nothing",
        "0.4.2",
        _engine("pass"),
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.5.3",
        _engine(_OWN_UNPINNED.split("\n", 2)[2]),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the place is known by another name",
        "0.4.4",
        _engine(_UNPINNED, "keys_layer_major, location=place"),
        outcome=Outcome.MISSING,
        reason="nowhere",
    ),
)
