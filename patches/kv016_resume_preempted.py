"""Compute a preempted request anew, for which LMCache reports a hit and loads nothing."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import find, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"

_ASKED = "LMCacheConnectorV1Impl.get_num_new_matched_tokens"
_SCHEDULED = "LMCacheConnectorV1Impl.build_connector_meta"
_PRODUCES = """
if self.kv_role == "kv_producer" and not hasattr(
    self.lookup_client, "supports_producer_reuse"
):
    return 0
"""
_GROWS = "request_tracker.update(new_token_ids, new_block_ids)"

_ANEW = """
# kvpatch KV016: a preempted request has lost its blocks, and nothing is loaded for it again.
if request.request_id in self._request_trackers:
    tracker = self._request_trackers[request.request_id]
    scheduled = self._unfinished_requests[request.request_id]
    tracker.token_ids = scheduled.all_token_ids[:num_computed_tokens]
    tracker.allocated_block_ids = []
    return 0
"""


def compute_anew(module: cst.Module) -> cst.Module:
    """Report no hit for a request that was scheduled before, and forget the blocks it had.

    vLLM asks for a hit when it starts a request and when it resumes one; what it adds to a request
    then is all of its blocks, and the tokens from those on that its own cache has.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    from kvpatch import anchors

    module = anchors.replace(module, _SCHEDULED, _GROWS, lambda old: [old])
    return anchors.replace(
        module, _ASKED, _PRODUCES, lambda old: anchors.like(old, module, _ANEW, _PRODUCES)
    )


def computes_anew(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether nothing is reported as a hit for a request that was scheduled before."""
    asked, scheduled = function(module, _ASKED), function(module, _SCHEDULED)
    if asked is None or len(find(scheduled, _GROWS)) != 1:
        return Judgement(False, "what a step adds to a request is told elsewhere")
    first = asked.body[1:2] if ast.get_docstring(asked) is not None else asked.body[:1]
    if find(asked, _ANEW) != first:
        return Judgement(False, "vLLM takes for loaded what nothing loads after a preemption")
    return Judgement(True, "a preempted request is computed anew")


PATCH = Patch(
    id="KV016",
    distribution="lmcache",
    targets=(Target(ADAPTER, ">=0.3.3", compute_anew),),
    versions=">=0.3.3,<0.3.10.dev0",
    why="When vLLM resumes a request that it preempted, LMCache reports what is stored of its "
    "prompt as a hit, and loads it for new requests alone: vLLM answers from keys and values that "
    "nothing wrote, without an error. What LMCache stores of the request from there on it reads "
    "from the blocks that the request lost.",
    how="Reports no hit for a request that was scheduled before, so that vLLM computes it anew, "
    "and forgets the blocks that it had.",
    upstream="https://github.com/LMCache/LMCache/pull/2007",
    retire_when="Support for LMCache 0.3.9.post2 and older ends; 0.3.10 loads the hit again.",
    post_condition=computes_anew,
    faithful=released_elsewhere,
    proved="run on a CPU: vLLM 0.11.0 with LMCache 0.3.9.post2",
)


def _adapter(
    anew: str = "", produces: str = _PRODUCES, grows: str = "new_token_ids, new_block_ids"
) -> str:
    body = "\n".join(f"        {line}" for line in (anew + produces).strip().splitlines())
    return f"""
class LMCacheConnectorV1Impl:
    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        \"\"\"Check for external KV cache hit.\"\"\"
{body}

        return self.lookup_client.lookup(request.prompt_token_ids) - num_computed_tokens

    def build_connector_meta(self, scheduler_output):
        for i, req_id in enumerate(cached_reqs.req_ids):
            request_tracker.update({grows})
"""


_STOCK = _adapter()

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "reports no hit for a request that has a tracker",
        "0.3.9.post2",
        _STOCK,
        after=_adapter(_ANEW.rstrip()),
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release alone that loads for preempted requests",
        "0.3.10",
        _STOCK,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.3.3",
        _adapter(_ANEW.split("\n", 2)[2].rstrip()),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where a tracker is told of preemptions",
        "0.3.9",
        _adapter(grows="new_token_ids, new_block_ids, preempted"),
        outcome=Outcome.MISSING,
        reason="nowhere",
    ),
)
