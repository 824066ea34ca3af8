"""Resume preempted requests with their own tokens and blocks, or compute them anew."""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING

from kvpatch.blending import Function, find, follow, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target
from packaging.version import Version

if TYPE_CHECKING:
    import libcst as cst
    from kvpatch.rewrite import Statement

ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"

_ASKED = "LMCacheConnectorV1Impl.get_num_new_matched_tokens"
_SCHEDULED = "LMCacheConnectorV1Impl.build_connector_meta"
_TRACKED = "RequestTracker.update"
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
_BORROWED = "self.allocated_block_ids = new_block_ids"
_OWN_BLOCKS = """
# kvpatch KV016: vLLM adds each later block to its list, and LMCache adds it to its own.
self.allocated_block_ids = list(new_block_ids)
"""
_COPIED = ("self.allocated_block_ids = list(___)", "self.allocated_block_ids = ___.copy()")
_EXPECTED = "expected = max(lmcache_cached_tokens, load_spec.vllm_cached_tokens)"
_NOT_LOADED = """
# kvpatch KV016: vLLM may load nothing of a hit, as where it needs log probs of the whole prompt.
if load_spec is not None and not load_spec.can_load:
    lmcache_cached_tokens = min(lmcache_cached_tokens, request.num_computed_tokens)
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
    """Give a resumed request a list of its blocks, and the tokens that it has after this step.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    from kvpatch import anchors, rewrite

    own, by_list = (rewrite.statement(module, text) for text in (_OWN, _OWN_BY_LIST))
    module = anchors.replace(module, _SCHEDULED, _UPDATED, lambda old: [old, own])
    module = anchors.replace(module, _SCHEDULED, _UPDATED_BY_LIST, lambda old: [old, by_list])
    return _own_blocks(module)


def restore_and_allow(module: cst.Module) -> cst.Module:
    """Do so, and let vLLM have more of it than LMCache has, or load nothing of it.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    return _allow(restore_tokens(module), 0)


def allow_whole(module: cst.Module) -> cst.Module:
    """Let vLLM compute the last token of a prompt that is stored whole, or load nothing of it.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    return _allow(_own_blocks(module), 1)


def allow_unloaded(module: cst.Module) -> cst.Module:
    """Give a resumed request a list of its blocks, and let vLLM load nothing of it.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    from kvpatch import anchors

    return anchors.replace(
        _own_blocks(module),
        _SCHEDULED,
        _EXPECTED,
        lambda old: anchors.like(old, module, _NOT_LOADED, _EXPECTED),
    )


def _own_blocks(module: cst.Module) -> cst.Module:
    from kvpatch import anchors

    return anchors.replace(
        module, _TRACKED, _BORROWED, lambda old: anchors.like(old, module, _OWN_BLOCKS)
    )


def _allow(module: cst.Module, form: int) -> cst.Module:
    import libcst
    from kvpatch import anchors

    def widened(old: Statement) -> list[Statement]:
        limited, new = anchors.like(old, module, _NOT_LOADED, f"{_MAY_HAVE_MORE}\npass")
        line = libcst.ensure_type(old, libcst.SimpleStatementLine)
        asserted = libcst.ensure_type(line.body[0], libcst.Assert)
        wide = asserted.with_changes(test=libcst.parse_expression(_WIDE[form]))
        return [limited, line.with_changes(leading_lines=new.leading_lines, body=[wide])]

    return anchors.replace(module, _SCHEDULED, f"assert {_STRICT[form]}, ___", widened)


def resumes(module: ast.Module, version: Version) -> Judgement:
    """Judge whether a preempted request is computed anew, or loaded with what is its own."""
    scheduled = function(module, _SCHEDULED)
    if version.release < (0, 3, 10):
        return _computes_anew(module, scheduled)
    tracked = function(module, _TRACKED)
    if scheduled is None or tracked is None:
        return Judgement(False, "what a step adds to a request is told elsewhere")
    if find(tracked, _BORROWED) or not any(find(tracked, text) for text in _COPIED):
        return Judgement(False, "blocks of a resumed request are counted twice: its list is vLLM's")
    restored = version.release >= (0, 3, 11) or (
        follow(scheduled, _UPDATED, _OWN) and follow(scheduled, _UPDATED_BY_LIST, _OWN_BY_LIST)
    )
    if not restored:
        return Judgement(False, "a resumed request is stored with the tokens of the steps before")
    if version >= Version("0.3.10.post1") and not _allows(scheduled, version):
        return Judgement(False, "an assertion of a resumed request ends the engine")
    return Judgement(True, "a preempted request is resumed with its own tokens and blocks")


def _allows(scheduled: Function, version: Version) -> bool:
    if any(find(scheduled, f"assert {text}, ___") for text in _STRICT):
        return False
    if version >= Version("0.4.3.dev0"):
        return follow(scheduled, _NOT_LOADED, _EXPECTED)
    return any(follow(scheduled, _NOT_LOADED, f"assert {text}, ___") for text in _WIDE)


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
        Target(ADAPTER, ">=0.3.11.dev0,<0.4.3.dev0", allow_whole),
        Target(ADAPTER, ">=0.4.3.dev0", allow_unloaded),
    ),
    versions=">=0.3.3,<0.5.7.dev0",
    why="When vLLM resumes a request that it preempted, LMCache up to 0.3.9.post2 reports what is "
    "stored of its prompt as a hit, and loads it for new requests alone: vLLM answers from keys "
    "and values that nothing wrote, without an error, and what LMCache stores of the request from "
    "there on it reads from blocks that the request lost. Up to 0.3.10.post2 it loads and stores "
    "by the tokens of the steps before. From 0.3.10 on its list of the request's blocks is vLLM's "
    "own where both are in one process, so that later blocks are in it twice: LMCache stores what "
    "other requests computed, and answers from that. From 0.3.10.post1 on an assertion ends the "
    "engine where vLLM loads nothing of the hit, as for prompt_logprobs; up to 0.4.2 also where "
    "vLLM's own cache has more of the request than LMCache, or LMCache has all of it.",
    how="Reports no hit for a request that was scheduled before, so that vLLM computes it anew, "
    "and forgets the blocks that it had; from 0.3.10 on gives it its own tokens and a list of its "
    "own blocks, and lets vLLM have more of it, or load nothing.",
    upstream="https://github.com/LMCache/LMCache/pull/2007",
    retire_when="An LMCache release keeps blocks of resumed requests in a list of its own.",
    post_condition=resumes,
    faithful=released_elsewhere,
    proved="run on a CPU under preemption: vLLM 0.11.0 with LMCache 0.3.9.post2, vLLM 0.32.0 with "
    "LMCache 0.5.6",
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


def _told(
    own: str = "",
    by_list: str = "",
    checked: str = f"assert {_STRICT[0]}, req_id",
    blocks: str = _BORROWED,
) -> str:
    asserted = textwrap.indent(checked.strip("\n"), " " * 16)
    tracked = textwrap.indent(blocks.strip("\n"), " " * 12)
    listed = textwrap.indent((_UPDATED_BY_LIST + by_list.lstrip()).strip("\n"), " " * 16)
    update = textwrap.indent((_UPDATED + own.lstrip()).strip("\n"), " " * 12)
    return f"""
class RequestTracker:
    def update(self, new_token_ids, new_block_ids, preempted=False):
        if preempted:
{tracked}
        else:
            self.allocated_block_ids.extend(new_block_ids)


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


def _allowed(form: int) -> str:
    return f"{_NOT_LOADED}{_MAY_HAVE_MORE}\nassert {_WIDE[form]}, req_id"


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
        "leaves a release alone that it was not made for",
        "0.5.7",
        _told(checked=_EXPECTED),
    ),
    Example(
        ExampleKind.REWRITTEN,
        "gives a resumed request what is its own, whichever of both caches has more of it",
        "0.3.10.post2",
        _told(),
        after=_told(_OWN, _OWN_BY_LIST, _allowed(0), _OWN_BLOCKS),
    ),
    Example(
        ExampleKind.REWRITTEN,
        "lets the last token of a prompt be computed that is stored whole",
        "0.4.2",
        _told(checked=f"assert {_STRICT[1]}, req_id"),
        after=_told(checked=_allowed(1), blocks=_OWN_BLOCKS),
    ),
    Example(
        ExampleKind.REWRITTEN,
        "lets vLLM load nothing of a hit",
        "0.5.6",
        _told(checked=_EXPECTED),
        after=_told(checked=_NOT_LOADED + _EXPECTED, blocks=_OWN_BLOCKS),
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
