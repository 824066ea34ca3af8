"""The letters that keep a pair from blending, each derived from the two packages' source."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from .codebase import Codebase, Place
from .contract import (
    ADAPTER,
    COMPUTE,
    IMPL,
    connector_class,
    failures,
    failures_of_requests,
    failures_of_start,
    meetings,
)
from .model_runner import VARIABLE, WAY
from .needs import Failure, Pair
from .reach import reached
from .symbols import Function, Read

_ROPE = "lmcache/v1/compute/positional_encoding.py"
_MODELS = "lmcache.v1.compute.models"
_FLASH = "vllm.v1.attention.backends.flash_attn"
_SPECS = "vllm.v1.kv_cache_interface"
_CONNECTORS = ("lmcache.v1.gpu_connector.gpu_connectors", "lmcache.v1.gpu_connector")
_LAYERWISE = "VLLMBufferLayerwiseGPUConnector"
_PLAIN = ("VLLMPagedMemGPUConnectorV2", "VLLMPagedMemGPUConnectorV3")
_STORAGE = "lmcache.v1.storage_backend.storage_manager"
_BLENDED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class When(str, Enum):
    """When a failure strikes, the first moment first."""

    START = "engine start"
    BLENDER = "blender is built"
    REQUEST = "first request"
    STORED = "first stored request"
    BLENDED = "first blended request"
    SILENT = "silently"


class Scope(str, Enum):
    """Whom a finding concerns: everybody who blends, only with GDS, only at default settings."""

    ALWAYS = "always"
    PLAIN = "without blending"
    GDS = "with GDS"
    SETTINGS = "at default settings"


@dataclass(frozen=True)
class Finding:
    """One reason why a pair does not blend, where it stands and when it strikes."""

    letter: str
    when: When
    path: str
    line: int
    sentence: str
    scope: Scope = Scope.ALWAYS


class Shape(str, Enum):
    """The KV cache shapes that vLLM's flash attention has had."""

    KEYS_FIRST = "(2, blocks, block size, heads, head size)"
    BLOCKS_FIRST = "(blocks, 2, block size, heads, head size)"
    PACKED = "(blocks, heads, block size, 2 * head size)"


def start_findings(pair: Pair) -> Iterator[Finding]:
    """X, C, A and R: what fails while the engine starts, the registration left out."""
    broken = list(failures_of_start(pair))
    for failure in broken:
        if failure.kind == "import":
            yield Finding("X", When.START, failure.path, failure.line, failure.why)
    for failure in broken:
        if failure.kind != "import":
            yield Finding("C", When.START, failure.path, failure.line, failure.why)
    yield from blender_findings(pair)


def blender_findings(pair: Pair) -> Iterator[Finding]:
    """A and R: what fails when LMCache builds its model beside vLLM's."""
    attention: list[Failure] = []
    rope: list[Failure] = []
    place = pair.own.resolve(ADAPTER, IMPL)
    for meeting in meetings(pair, [place]) if place else ():
        if not meeting.computes:
            continue
        for failure in failures(pair, meeting):
            if failure.path.startswith(COMPUTE):
                (rope if failure.path == _ROPE else attention).append(failure)
    for letter, found in (("A", attention), ("R", rope)):
        for failure in dict.fromkeys(found):
            yield Finding(letter, When.BLENDER, failure.path, failure.line, failure.why)


def request_findings(pair: Pair) -> Iterator[Finding]:
    """C, K and E: what fails at the first requests."""
    for failure in failures_of_requests(pair):
        yield Finding("C", When.REQUEST, failure.path, failure.line, failure.why)
    yield from transfer_findings(pair.other, pair.own)
    yield from embedding_findings(pair.other, pair.own)


def transfer_findings(vllm: Codebase, lmcache: Codebase) -> Iterator[Finding]:
    """K: the KV cache shape that LMCache's layerwise transfer does not know."""
    shape = kv_shape(vllm)
    place = _connector(lmcache, _LAYERWISE)
    if place is None or shape is Shape.KEYS_FIRST:
        return
    methods = list(_methods(lmcache, place))
    calls = [
        call.line
        for _, function in methods
        for call in function.calls
        if call.callee.endswith("single_layer_kv_transfer")
    ]
    line = min(calls, default=place.line)
    if shape is None:
        told = "the KV cache shape of this vLLM can't be read from its source"
    elif shape is Shape.PACKED:
        told = f"single_layer_kv_transfer does not know the KV cache shape {shape.value}"
    elif any(_knows_shapes(function.reads) for _, function in methods):
        return
    else:
        told = f"the layerwise connector takes the KV cache shape {shape.value} for another one"
    yield Finding("K", When.STORED, place.path, line, told)


def embedding_findings(vllm: Codebase, lmcache: Codebase) -> Iterator[Finding]:
    """E: the method of vLLM's model that LMCache's asks for the embeddings."""
    model = vllm.resolve("vllm.model_executor.models.llama", "LlamaForCausalLM")
    members = vllm.members(model) if model else None
    if model is None or members is None:
        return
    for module in (f"{_MODELS}.base", f"{_MODELS}.llama"):
        facts = lmcache.module(module)
        for name, function in (facts.functions if facts else {}).items():
            if not name.endswith(".compute_layer"):
                continue
            asked = [read for read in function.reads if read.owner == "self.vllm_model"]
            plain = [r for r in asked if not r.guarded and r.name not in (*members, "model")]
            guarded = [read for read in function.reads if read.guarded]
            if guarded and not any(_there(read, members) for read in guarded):
                plain += guarded[:1]
            for read in plain[:1]:
                yield Finding(
                    "E",
                    When.BLENDED,
                    lmcache.path(module),
                    read.line,
                    f"vLLM's LlamaForCausalLM has no {read.name}",
                )


def silent_findings(vllm: Codebase, lmcache: Codebase) -> Iterator[Finding]:
    """S and V: what goes wrong without an error."""
    if kv_shape(vllm) is Shape.BLOCKS_FIRST:
        for name in _PLAIN:
            place = _connector(lmcache, name)
            if place is None or not place.name:
                continue
            methods = list(_methods(lmcache, place))
            sizes = [
                read for _, f in methods for read in f.reads if read.name == "page_buffer_size"
            ]
            if sizes and not any(_knows_shapes(function.reads) for _, function in methods):
                told = f"{name} takes the KV cache shape {Shape.BLOCKS_FIRST.value} for another one"
                yield Finding("S", When.SILENT, place.path, place.line, told, Scope.PLAIN)
                break
    yield from lmcache.once("storage", lambda: tuple(storage_findings(lmcache)))
    yield from vllm.once("runner", lambda: tuple(runner_findings(vllm)))


def storage_findings(lmcache: Codebase) -> Iterator[Finding]:
    """S with GDS: keys counted off from the front although some were passed over."""
    facts = lmcache.module(_STORAGE)
    function = facts.functions.get("allocate_and_copy_objects") if facts else None
    if function is not None and any("keys[:len(" in text for text in function.returns):
        yield Finding(
            "S",
            When.SILENT,
            lmcache.path(_STORAGE),
            function.line,
            "allocate_and_copy_objects pairs chunks with wrong keys where some are there already",
            Scope.GDS,
        )


def runner_findings(vllm: Codebase) -> Iterator[Finding]:
    """V: whether this vLLM takes Model Runner V2 unless told otherwise."""
    module = "vllm.config.vllm"
    facts = vllm.module(module)
    function = facts.functions.get("VllmConfig.use_v2_model_runner") if facts else None
    if facts is None or function is None or "True" not in function.returns:
        return
    named = [
        call for call in function.calls if call.callee.endswith("default_v2_model_runner_model")
    ]
    models = tuple(w for w in facts.words.get("DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES", ()))
    ours = [model for model in models if model in _BLENDED]
    which = f"for {', '.join(ours)} " if named and ours else ""
    place = vllm.resolve(*connector_class())
    hooked = place is not None and "requires_piecewise_for_cudagraph" in (vllm.members(place) or {})
    yield Finding(
        "V",
        When.SILENT,
        vllm.path(module),
        function.line,
        f"Model Runner V2 is the default {which}and with full CUDA graphs a fully cached prompt "
        f"skips the load; it needs {WAY if hooked else f'{VARIABLE}=0'}",
        Scope.SETTINGS,
    )


def kv_shape(vllm: Codebase) -> Shape | None:
    """The shape of one layer's KV cache under flash attention; None where it can't be told."""
    return vllm.once("kv shape", lambda: _kv_shape(vllm))


def _kv_shape(vllm: Codebase) -> Shape | None:
    place = vllm.resolve(_FLASH, "FlashAttentionBackend")
    members = vllm.members(place) if place else None
    told = (members or {}).get("get_kv_cache_shape")
    function = vllm.function_at(told) if told else None
    if function is None:
        facts = vllm.module(_SPECS)
        function = (facts.functions if facts else {}).get("compute_layer_kv_cache_shape_bytes")
    for text in reversed(function.returns if function else ()):
        shape = ast.parse(text, mode="eval").body
        if isinstance(shape, ast.Tuple):
            twos = [
                i for i, e in enumerate(shape.elts) if isinstance(e, ast.Constant) and e.value == 2
            ]
            if len(shape.elts) == 4 and not twos:
                return Shape.PACKED
            if len(shape.elts) == 5 and twos in ([0], [1]):
                return (Shape.KEYS_FIRST, Shape.BLOCKS_FIRST)[twos[0]]
    return None


def _connector(lmcache: Codebase, name: str) -> Place | None:
    """A GPU connector of LMCache, in whichever of its modules."""
    places = (lmcache.resolve(module, name) for module in _CONNECTORS)
    return next((place for place in places if place is not None), None)


def registers_itself(lmcache: Codebase) -> bool:
    """Whether LMCache tells its tracker of the model by itself when the connector is built."""
    place = lmcache.resolve(ADAPTER, IMPL)
    if place is None:
        return False
    return any(
        call.callee.endswith("VLLMModelTracker.register_model")
        for item in reached(lmcache, [place])
        for call in item.function.calls
    )


def _methods(code: Codebase, place: Place) -> Iterator[tuple[str, Function]]:
    for name, where in (code.members(place) or {}).items():
        function = code.function_at(where) if name != "*" else None
        if function is not None:
            yield name, function


def _knows_shapes(reads: Sequence[Read]) -> bool:
    return any(r.name == "vllm_two_major" or r.name.endswith("kv_format") for r in reads)


def _there(read: Read, members: object) -> bool:
    if read.owner == "self.vllm_model":
        return read.name in members  # type: ignore[operator]
    return read.owner == "self.vllm_model.model"
