"""Split prompts at the separator whatever the tokenizer puts in front of it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from kvpatch.blending import as_written, find, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

DATABASE = "lmcache/v1/token_database.py"
OLD_CONNECTORS = "lmcache/v1/gpu_connector.py"
CONNECTORS = "lmcache/v1/gpu_connector/gpu_connectors.py"

_ENCODED = "self.sep_tokens = self.tokenizer.encode(config.blend_special_str)[1:]"
_PLAIN = """
# kvpatch KV007: the separator is its own tokens, whether or not the tokenizer adds one.
self.sep_tokens = self.tokenizer.encode(config.blend_special_str, add_special_tokens=False)
"""
_EMPTY = """
if not self.sep_tokens:
    raise ValueError("kvpatch: blend_special_str is no token; blending needs a separator")
"""

_SHORT = """
if self.sep_len == 0 or len(tokens) < self.sep_len:
    yield tokens
"""
_SHORT_ENDS = """
if self.sep_len == 0 or len(tokens) < self.sep_len:
    yield tokens
    # kvpatch KV007: fewer tokens than the separator has can't be searched for it.
    return
"""

_LOOP = """
for idx in matches:
    yield tokens[start:idx]
    start = idx + self.sep_len
"""
_LOOP_APART = """
for idx in matches:
    # kvpatch KV007: a match that overlaps the last separator is no separator.
    if idx < start:
        continue
    yield tokens[start:idx]
    start = idx + self.sep_len
"""

_WANTED = "start_idx >= num_falses"
_NOT_EMPTY = "token_chunk_len and start_idx >= num_falses"


FIRST = '''
# kvpatch KV007: a prompt may start with a separator, which is no segment.
def _kvpatch_first(connector, starts, given):
    """Where the buffer starts: with the prompt, unless vLLM itself holds whole chunks of it.

    Before LMCache 0.4.2 nothing tells what vLLM holds: there a first segment that starts later than
    a chunk is long is taken for what is left.
    """
    chunk_size = connector.lmc_model.blender.cache_engine.config.chunk_size
    return 0 if given.get("vllm_cached_tokens", starts[0]) < chunk_size else starts[0]
'''
_FROM = "starts[0]"
_MOVED_BY = "VLLMBufferLayerwiseGPUConnector.batched_to_gpu"


def start_with_prompt(module: cst.Module) -> cst.Module:
    """Let the buffer that is blended start with the prompt, not with its first segment.

    Raises:
        Refusal: where the start is not asked for as often as expected.
    """
    from kvpatch import anchors, rewrite

    module = anchors.replace_expression(
        module, _MOVED_BY, _FROM, lambda _: "_kvpatch_first(self, starts, kwargs)", times=5
    )
    return rewrite.append_function(module, FIRST)


def split_segments(module: cst.Module) -> cst.Module:
    """Encode the separator alone, and yield no empty or half-searched segment.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    from kvpatch import anchors

    def put(where: str, anchor: str, *texts: str) -> cst.Module:
        return anchors.replace(
            module,
            f"SegmentTokenDatabase.{where}",
            anchor,
            lambda found: anchors.like(found, module, *texts),
        )

    module = put("__init__", _ENCODED, _PLAIN, _EMPTY)
    module = put("_fast_split_by_subtensor", _SHORT, _SHORT_ENDS)
    module = put("_fast_split_by_subtensor", _LOOP, _LOOP_APART)
    return anchors.replace_expression(
        module, "SegmentTokenDatabase.process_tokens", _WANTED, lambda _: _NOT_EMPTY
    )


def splits_at_the_separator(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether the separator keeps its tokens and every segment has some."""
    if moving := function(module, _MOVED_BY):
        if find(moving, _FROM) or not find(moving, "_kvpatch_first(self, starts, kwargs)"):
            return Judgement(False, "a prompt that starts with a separator can't be blended")
        if not as_written(function(module, "_kvpatch_first"), FIRST):
            return Judgement(False, "the function that finds the buffer's start was edited")
        return Judgement(True, "what is blended starts with the prompt")
    init = function(module, "SegmentTokenDatabase.__init__")
    split = function(module, "SegmentTokenDatabase._fast_split_by_subtensor")
    process = function(module, "SegmentTokenDatabase.process_tokens")
    encoded = find(init, "self.tokenizer.encode(*___)")
    alone = find(init, "self.tokenizer.encode(___, add_special_tokens=False)")
    if not encoded or encoded != alone or find(init, f"{ast.unparse(alone[0])}[1:]"):
        return Judgement(False, "the separator loses a token where the tokenizer adds none")
    if not any(_raises_without(node) for node in ast.walk(init) if isinstance(node, ast.If)):  # type: ignore[arg-type]
        return Judgement(False, "an empty separator is not refused")
    guards = [n for n in ast.walk(split) if isinstance(n, ast.If)] if split else []
    if not any("sep_len" in ast.unparse(n.test) and _ends(n.body) for n in guards):
        return Judgement(False, "a prompt shorter than the separator is searched for it")
    if not any(ast.unparse(n.test) == "idx < start" and _ends(n.body) for n in guards):
        return Judgement(False, "separators that overlap give a segment of less than no tokens")
    tests = (
        [ast.unparse(n.test) for n in ast.walk(process) if isinstance(n, ast.If)] if process else []
    )
    if _NOT_EMPTY not in tests or _WANTED in tests:
        return Judgement(False, "a segment without tokens is stored and looked up")
    return Judgement(True, "prompts are split at the separator's own tokens, into real segments")


def _raises_without(node: ast.If) -> bool:
    return "sep_" in ast.unparse(node.test) and isinstance(node.body[-1], ast.Raise)


def _ends(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Continue))


PATCH = Patch(
    id="KV007",
    distribution="lmcache",
    targets=(
        Target(DATABASE, ">=0.3.3", split_segments),
        Target(OLD_CONNECTORS, "<0.3.14.dev0", start_with_prompt),
        Target(CONNECTORS, ">=0.3.14.dev0", start_with_prompt),
    ),
    versions=">=0.3.3,<0.5.7.dev0",
    why="LMCache drops the first token of the separator because it takes it for a BOS token, so "
    "tokenizers without one (Qwen) lose a real token or the whole separator; short prompts, "
    "separators side by side and at the start give broken segments or none.",
    how="Encodes the separator without special tokens, refuses an empty one at start, and yields "
    "neither empty segments nor overlapping ones; what is blended starts with the prompt.",
    upstream="https://github.com/LMCache/LMCache/pull/3228",
    retire_when="An LMCache release encodes the separator without special tokens.",
    post_condition=splits_at_the_separator,
    faithful=released_elsewhere,
    proved="run on a CPU, without a BOS token: vLLM 0.32.0 with LMCache 0.5.6",
)

_STOCK = """
class SegmentTokenDatabase:
    def __init__(self, config, metadata):
        # The first token is taken for a special one.
        self.sep_tokens = self.tokenizer.encode(config.blend_special_str)[1:]
        self.sep_tokens = torch.tensor(self.sep_tokens, device="cpu")
        self.sep_len = len(self.sep_tokens)

    def _fast_split_by_subtensor(self, tokens):
        if self.sep_len == 0 or len(tokens) < self.sep_len:
            yield tokens

        start = 0
        for idx in matches:
            yield tokens[start:idx]
            start = idx + self.sep_len
        yield tokens[start:]

    def process_tokens(self, tokens):
        for token_chunk in self._fast_split_by_subtensor(tokens):
            token_chunk_len = len(token_chunk)
            if start_idx >= num_falses:
                yield start_idx
"""

_PATCHED = """
class SegmentTokenDatabase:
    def __init__(self, config, metadata):
        # The first token is taken for a special one.
        # kvpatch KV007: the separator is its own tokens, whether or not the tokenizer adds one.
        self.sep_tokens = self.tokenizer.encode(config.blend_special_str, add_special_tokens=False)
        if not self.sep_tokens:
            raise ValueError("kvpatch: blend_special_str is no token; blending needs a separator")
        self.sep_tokens = torch.tensor(self.sep_tokens, device="cpu")
        self.sep_len = len(self.sep_tokens)

    def _fast_split_by_subtensor(self, tokens):
        if self.sep_len == 0 or len(tokens) < self.sep_len:
            yield tokens
            # kvpatch KV007: fewer tokens than the separator has can't be searched for it.
            return

        start = 0
        for idx in matches:
            # kvpatch KV007: a match that overlaps the last separator is no separator.
            if idx < start:
                continue
            yield tokens[start:idx]
            start = idx + self.sep_len
        yield tokens[start:]

    def process_tokens(self, tokens):
        for token_chunk in self._fast_split_by_subtensor(tokens):
            token_chunk_len = len(token_chunk)
            if token_chunk_len and start_idx >= num_falses:
                yield start_idx
"""

_STOCK_CONNECTOR = """
class VLLMBufferLayerwiseGPUConnector:
    def batched_to_gpu(self, starts, ends, **kwargs):
        num_all_tokens = ends[-1] - starts[0]
        slots = slot_mapping[starts[0] : ends[-1]]
        buf_offset = starts[0]
        self.gaps = find_gaps(buf_offset)
        buf_offset = starts[0]
        positions = torch.arange(starts[0], ends[-1])
"""

_PATCHED_CONNECTOR = (
    _STOCK_CONNECTOR.replace(_FROM, "_kvpatch_first(self, starts, kwargs)")
    + "\n\n"
    + FIRST.lstrip("\n")
)

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "encodes the separator alone and yields real segments",
        "0.5.6",
        _STOCK,
        after=_PATCHED,
        path=DATABASE,
    ),
    Example(
        ExampleKind.REWRITTEN,
        "starts the buffer with the prompt",
        "0.5.6",
        _STOCK_CONNECTOR,
        after=_PATCHED_CONNECTOR,
        path=CONNECTORS,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release without segments alone",
        "0.3.2",
        _STOCK,
        path=DATABASE,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.5.6",
        "\n".join(line for line in _PATCHED.splitlines() if "#" not in line),
        path=DATABASE,
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the separator is encoded in another way",
        "0.5.6",
        _STOCK.replace("[1:]", "[2:]"),
        outcome=Outcome.MISSING,
        reason="[2:]",
        path=DATABASE,
    ),
)
