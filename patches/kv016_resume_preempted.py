"""Resume preempted requests with their own tokens, or compute them anew."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING

from kvpatch.blending import Function, find, follow, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from kvpatch.rewrite import Statement
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

_UPDATED = """
request_tracker.update(
    new_token_ids,
    new_block_ids,
    preempted=preempted,
    lmcache_cached_tokens=lmcache_cached_tokens,
)
"""
_OWN = """
# kvpatch KV016: the tokens of the steps before may be more or fewer than what is computed now.
if preempted:
    request_tracker.token_ids = request.all_token_ids[: num_current_tokens + num_new_tokens]
"""
_UPDATED_BY_LIST = """
request_tracker.update(
    req.new_token_ids,
    req.new_block_ids,
    req.resumed_from_preemption,
    lmcache_cached_tokens=lmcache_cached_tokens,
)
"""
_OWN_BY_LIST = """
# kvpatch KV016: the tokens of the steps before may be more or fewer than what is computed now.
if req.resumed_from_preemption:
    scheduled = self._unfinished_requests[req.req_id]
    computed = req.num_computed_tokens + len(req.new_token_ids)
    request_tracker.token_ids = scheduled.all_token_ids[:computed]
"""
_COMPUTED = "request.num_computed_tokens"
_STRICT = (
    f"{_COMPUTED} == lmcache_cached_tokens",
    f"{_COMPUTED} == max(lmcache_cached_tokens, load_spec.vllm_cached_tokens)",
)
_WIDE = tuple(f"{text.replace('==', '>=')} - 1" for text in _STRICT)
_MAY_HAVE_MORE = (
    "# kvpatch KV016: vLLM may have more, and computes the last token of what is stored whole."
)


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


def restore_tokens(module: cst.Module) -> cst.Module:
    """Give a resumed request the tokens that it has once this step is computed.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    from kvpatch import anchors, rewrite

    own, by_list = (rewrite.statement(module, text) for text in (_OWN, _OWN_BY_LIST))
    module = anchors.replace(module, _SCHEDULED, _UPDATED, lambda old: [old, own])
    return anchors.replace(module, _SCHEDULED, _UPDATED_BY_LIST, lambda old: [old, by_list])


def restore_and_allow(module: cst.Module) -> cst.Module:
    """Do so, and let vLLM have more of it than LMCache has.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    return _allow(restore_tokens(module), 0)


def allow_whole(module: cst.Module) -> cst.Module:
    """Let vLLM compute the last token of a prompt that is stored whole.

    Raises:
        Refusal: where the anchor is not there exactly once.
    """
    return _allow(module, 1)


def _allow(module: cst.Module, form: int) -> cst.Module:
    import libcst
    from kvpatch import anchors

    def widened(old: Statement) -> list[Statement]:
        (new,) = anchors.like(old, module, f"{_MAY_HAVE_MORE}\npass")
        line = libcst.ensure_type(old, libcst.SimpleStatementLine)
        asserted = libcst.ensure_type(line.body[0], libcst.Assert)
        wide = asserted.with_changes(test=libcst.parse_expression(_WIDE[form]))
        return [line.with_changes(leading_lines=new.leading_lines, body=[wide])]

    return anchors.replace(module, _SCHEDULED, f"assert {_STRICT[form]}, ___", widened)


def resumes(module: ast.Module, version: Version) -> Judgement:
    """Judge whether a preempted request is computed anew, or loaded with its own tokens."""
    scheduled = function(module, _SCHEDULED)
    if version.release < (0, 3, 10):
        return _computes_anew(module, scheduled)
    if scheduled is None:
        return Judgement(False, "what a step adds to a request is told elsewhere")
    restored = version.release >= (0, 3, 11) or (
        follow(scheduled, _UPDATED, _OWN) and follow(scheduled, _UPDATED_BY_LIST, _OWN_BY_LIST)
    )
    if not restored:
        return Judgement(False, "a resumed request is stored with the tokens of the steps before")
    if any(find(scheduled, text) for text in _STRICT):
        return Judgement(False, "an assertion of a resumed request ends the engine")
    return Judgement(True, "a preempted request is resumed with its own tokens")


def _computes_anew(module: ast.Module, scheduled: Function | None) -> Judgement:
    asked = function(module, _ASKED)
    if asked is None or len(find(scheduled, _GROWS)) != 1:
        return Judgement(False, "what a step adds to a request is told elsewhere")
    first = asked.body[1:2] if ast.get_docstring(asked) is not None else asked.body[:1]
    if find(asked, _ANEW) != first:
        return Judgement(False, "vLLM takes for loaded what nothing loads after a preemption")
    return Judgement(True, "a preempted request is computed anew")


PATCH = Patch(
    id="KV016",
    distribution="lmcache",
    targets=(
        Target(ADAPTER, "<0.3.10.dev0", compute_anew),
        Target(ADAPTER, ">=0.3.10.dev0,<0.3.10.post1", restore_tokens),
        Target(ADAPTER, ">=0.3.10.post1,<0.3.11.dev0", restore_and_allow),
        Target(ADAPTER, ">=0.3.11.dev0", allow_whole),
    ),
    versions=">=0.3.3,<0.4.3.dev0",
    why="When vLLM resumes a request that it preempted, LMCache up to 0.3.9.post2 reports what is "
    "stored of its prompt as a hit, and loads it for new requests alone: vLLM answers from keys "
    "and values that nothing wrote, without an error, and what LMCache stores of the request from "
    "there on it reads from blocks that the request lost. Up to 0.3.10.post2 it loads and stores "
    "by the tokens of the steps before. From 0.3.10.post1 to 0.4.2 an assertion ends the engine "
    "where vLLM's own cache has more of the request than LMCache, or LMCache has all of it.",
    how="Reports no hit for a request that was scheduled before, so that vLLM computes it anew, "
    "and forgets the blocks that it had; from 0.3.10 on gives it its own tokens, and lets vLLM "
    "have more of it.",
    upstream="https://github.com/LMCache/LMCache/pull/2007",
    retire_when="Support for LMCache 0.4.2 and older ends.",
    post_condition=resumes,
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


def _told(own: str = "", by_list: str = "", computed: str = _STRICT[0]) -> str:
    comment = f"{_MAY_HAVE_MORE}\n" if computed in _WIDE else ""
    asserted = textwrap.indent(f"{comment}assert {computed}, req_id", " " * 16)
    listed = textwrap.indent((_UPDATED_BY_LIST + by_list.lstrip()).strip("\n"), " " * 16)
    update = textwrap.indent((_UPDATED + own.lstrip()).strip("\n"), " " * 12)
    return f"""
class LMCacheConnectorV1Impl:
    def build_connector_meta(self, scheduler_output):
        if isinstance(cached_reqs, list):
            for i, req in enumerate(cached_reqs):
{listed}
            return meta
        for i, req_id in enumerate(cached_reqs.req_ids):
            if preempted:
{asserted}
{update}
"""


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
        "leaves a release alone that takes less of a resumed request than vLLM has",
        "0.4.3",
        _told(),
    ),
    Example(
        ExampleKind.REWRITTEN,
        "gives a resumed request its own tokens, whichever of both caches has more of it",
        "0.3.10.post2",
        _told(),
        after=_told(_OWN, _OWN_BY_LIST, _WIDE[0]),
    ),
    Example(
        ExampleKind.REWRITTEN,
        "lets the last token of a prompt be computed that is stored whole",
        "0.4.2",
        _told(computed=_STRICT[1]),
        after=_told(computed=_WIDE[1]),
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
