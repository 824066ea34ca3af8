"""Load all of a blended hit, and store whole segments, where a prompt takes several steps."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import follow, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"

_MAKING = "ReqMeta.from_request_tracker"
_BEGINS = "skip_leading_tokens = tracker.num_saved_tokens"
_NOTHING = """
if skip_save and load_spec is None:
    return None
"""
_COUNTED = """
if not skip_save:
    tracker.num_saved_tokens = num_tokens_to_save
"""

_LOADED = """
# kvpatch KV013: what vLLM takes for loaded is loaded, for the hits of segments end anywhere.
if load_spec is not None and load_spec.can_load:
    num_tokens_to_save = max(num_tokens_to_save, load_spec.lmcache_cached_tokens)
"""
_BLENDS = """
# kvpatch KV013: a segment may begin in one step and end in another, so the last one stores all.
blends = tracker.disagg_spec is None and lmcache_get_or_create_config().enable_blending
"""
_ENDS = """
if blends and input_token_len == tracker.prompt_len:
    # A last step of one token is none that decodes.
    tracker.is_decode_phase = False
"""
_WAITS = "skip_save = skip_save or (blends and input_token_len < tracker.prompt_len)"


def load_hits(module: cst.Module) -> cst.Module:
    """Give the tokens of a hit to the load, however few of the prompt this step computes.

    Raises:
        Refusal: where the anchor is not there exactly once.
    """
    return _put_before(module, _COUNTED, _LOADED)


def load_and_store(module: cst.Module) -> cst.Module:
    """Do so, and store a prompt that is blended in its last step alone.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    module = _put_before(module, _BEGINS, _BLENDS, _ENDS)
    module = _put_before(module, _NOTHING, _WAITS)
    return load_hits(module)


def _put_before(module: cst.Module, anchor: str, *texts: str) -> cst.Module:
    from kvpatch import anchors

    return anchors.replace(
        module, _MAKING, anchor, lambda old: anchors.like(old, module, *texts, anchor)
    )


def loads_whole_hits(module: ast.Module, version: Version) -> Judgement:
    """Judge whether hits are loaded whole, and from 0.3.7 on segments are stored whole too."""
    making = function(module, _MAKING)
    if making is None:
        return Judgement(False, "what a request loads and stores is told elsewhere")
    wanted = [(_LOADED, _COUNTED, "a hit that ends behind what a step computes is loaded in part")]
    if version.release >= (0, 3, 7):
        lost = "segments that begin in one step and end in another are not stored"
        wanted += [
            (_BLENDS, _ENDS, lost),
            (_ENDS, _BEGINS, lost),
            (_WAITS, _NOTHING, lost),
        ]
    for text, follower, fault in wanted:
        if not follow(making, text, follower):
            return Judgement(False, fault)
    return Judgement(True, "hits are loaded whole, in however many steps a prompt is computed")


PATCH = Patch(
    id="KV013",
    distribution="lmcache",
    targets=(
        Target(ADAPTER, "<0.3.7", load_hits),
        Target(ADAPTER, ">=0.3.7", load_and_store),
    ),
    versions=">=0.3.4,<0.5.7.dev0",
    why="While vLLM computes a prompt in several steps (chunked prefill, its default), LMCache "
    "cuts what it loads to whole chunks. Blended hits end anywhere: the engine dies under load, "
    "or answers from keys and values that nothing wrote. Segments that begin in one step and end "
    "in another are never stored.",
    how="Loads all that vLLM takes for loaded; while blending, stores a prompt in the step that "
    "ends it (LMCache 0.3.7 and newer).",
    upstream="https://github.com/LMCache/LMCache/blob/v0.5.6/"
    "lmcache/integration/vllm/vllm_v1_adapter.py",
    retire_when="An LMCache release loads hits whole that end inside of a chunk.",
    post_condition=loads_whole_hits,
    faithful=released_elsewhere,
    proved="run on a CPU: vLLM 0.32.0 with LMCache 0.5.6",
)


def _adapter(begins: str = _BEGINS, nothing: str = _NOTHING, counted: str = _COUNTED) -> str:
    lines = f"""
input_token_ids = tracker.token_ids
input_token_len = len(input_token_ids)
{begins}
skip_save = tracker.disagg_spec is None and tracker.skip_save

{nothing}
num_tokens_to_save = input_token_len // lmcache_chunk_size * lmcache_chunk_size

{counted}
token_ids = input_token_ids[:num_tokens_to_save]
"""
    body = "\n".join(f"        {line}" if line else "" for line in lines.splitlines())
    return f"""
class ReqMeta:
    def from_request_tracker(tracker, lmcache_chunk_size=256, load_spec=None):
{body}
"""


_STOCK = _adapter()

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "loads hits and stores segments whole",
        "0.5.6",
        _STOCK,
        after=_adapter(
            (_BLENDS.rstrip() + _ENDS).strip() + "\n" + _BEGINS,
            f"\n{_WAITS}{_NOTHING}",
            f"{_LOADED.rstrip()}{_COUNTED}",
        ),
    ),
    Example(
        ExampleKind.REWRITTEN,
        "loads hits whole",
        "0.3.6",
        _STOCK,
        after=_adapter(counted=f"{_LOADED.rstrip()}{_COUNTED}"),
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release alone that cuts nothing while a prompt is computed",
        "0.3.3",
        _STOCK,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.3.6",
        _adapter(counted=_LOADED.split("\n", 2)[2].rstrip() + _COUNTED),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where what is saved is counted in another way",
        "0.5.6",
        _adapter(counted="tracker.num_saved_tokens = num_tokens_to_save"),
        outcome=Outcome.MISSING,
        reason="nowhere",
    ),
)
