"""The witness over stand-ins of LMCache's classes, in the shapes that it watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kvpatch import smoke_witness
from kvpatch.smoke_witness import FAULTS, SHIFT, Witness
from targets import run_in_target

TRACKER = "lmcache.v1.compute.models.utils"
BUILDER = "lmcache.v1.compute.blend.utils"
FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"


class Mask(list[bool]):
    """A retrieved mask as the cache engine gives it first: one dimension, and a sum."""

    def dim(self) -> int:
        return 1

    def sum(self) -> int:
        return sum(bool(one) for one in self)


class Cache:
    """Stands in for LMCache's cache engine: two of three tokens are cached."""

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def retrieve_layer(self, tokens: Any, mask: Any = None, **_: Any) -> Iterator[Any]:
        yield Mask([True, True, False])
        for _layer in range(3):
            yield None

    def store_layer(self, *args: Any) -> Iterator[None]:
        self.stored.append(args[0])
        yield None

    def lookup(self, tokens: list[int]) -> int:
        return len(tokens)


class Blender:
    """Stands in for LMCache's blender: rows are picked at layer 1."""

    num_layers = 2

    def __init__(self) -> None:
        self.cache_engine = Cache()
        self.metadata = SimpleNamespace(imp_indices=None)
        self.common_metadata = SimpleNamespace(check_layers=[0], recomp_ratios=[0.15])
        self.gpu_connector = SimpleNamespace(batched_to_gpu=self.loads)
        self.layerwise_model = SimpleNamespace(fused_rotary_emb=lambda _old, new, _key: new)
        self.ran = 0
        self.seen: list[list[float]] = []

    def process_qkv(self, q: Any, *rest: Any) -> tuple[Any, ...]:
        self.metadata.imp_indices = [0]
        return (SimpleNamespace(shape=(7, 4)), *rest)

    def blend(self, tokens: Any, mask: Any = None, **_: Any) -> None:
        self.ran += 1

    def loads(self, _starts: Any, _ends: Any) -> Iterator[Any]:
        objects: Any = yield
        while objects is not None:
            self.seen.append([one.tensor.value for one in objects])
            objects = yield


class Chunks:
    """Stands in for what was stored and what is compared with it."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.tokens: Any = ()
        self.watched: list[Any] = []
        self.problem = problem

    def watch(self, connector: Any) -> None:
        self.watched.append(connector)

    def compare(self, layer: int, held: Any, picked: Any, rope: Any) -> dict[str, Any]:
        if self.problem is not None:
            raise self.problem
        return {"layer": layer, "held": held, "picked": picked, "rope": rope}

    def places_of(self, held: Any) -> Any:
        return f"places of {held[0].name}"

    def written(self, layer: int, held: Any, picked: Any, there: Any) -> dict[str, Any]:
        return {"layer": layer, "held": held, "picked": picked, "there": there}


class Held:
    """Keys or values, and copies of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.shape = (7, 4)

    def clone(self) -> Held:
        return Held(f"copy of {self.name}")


class Paged:
    """Stands in for vLLM's cache."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.blocks: Any = "of an earlier request"
        self.found: list[Any] = []
        self.problem = problem

    def find(self, attention: Any) -> None:
        assert self.blocks is None
        if self.problem is not None:
            raise self.problem
        self.found.append(attention)

    def read(self, attention: Any, places: Any) -> str:
        return f"{attention}: {places}"


class Tensor:
    """A chunk of one number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def zero_(self) -> None:
        self.value = 0.0


def _witness(fault: str = "") -> tuple[Witness, dict[str, Callable[[Any], None]]]:
    waiting: dict[str, Callable[[Any], None]] = {}
    found = Witness(fault, waiting.__setitem__, Chunks(), Paged())
    found.begin()
    return found, waiting


def _registered(fault: str) -> tuple[list[str], list[str]]:
    witness, waiting = _witness(fault)
    reached: list[str] = []
    module = SimpleNamespace(
        VLLMModelTracker=SimpleNamespace(register_model=lambda name, _model: reached.append(name))
    )
    waiting[TRACKER](module)
    module.VLLMModelTracker.register_model("vllm-instance", object())
    return witness.events, reached


def test_a_registration_is_seen_and_goes_on_to_lmcache() -> None:
    assert _registered("") == (["registered"], ["vllm-instance"])


def test_a_planted_fault_loses_the_registration() -> None:
    assert _registered("registration") == ([], [])


def test_connectors_and_the_blender_are_seen_in_their_order() -> None:
    witness, waiting = _witness()
    blender = Blender()
    factory = SimpleNamespace(KVConnectorFactory=SimpleNamespace(create_connector=lambda *_: "c"))
    builder = SimpleNamespace(LMCBlenderBuilder=SimpleNamespace(get_or_create=lambda *_: blender))
    waiting[FACTORY](factory)
    waiting[BUILDER](builder)
    create = factory.KVConnectorFactory.create_connector
    assert create({}, SimpleNamespace(name="WORKER")) == "c"
    assert builder.LMCBlenderBuilder.get_or_create("vllm-instance") is blender
    create({}, SimpleNamespace(name="SCHEDULER"))
    assert witness.events == ["connector:worker", "blender", "connector:scheduler"]
    assert (witness.blender, witness.cache) == (blender, blender.cache_engine)


def test_what_was_retrieved_and_which_layers_were_blended_is_counted() -> None:
    witness, _ = _witness()
    blender = Blender()
    blender.metadata.imp_indices = [1]
    witness.attach(blender)
    list(blender.cache_engine.retrieve_layer([1, 2, 3]))
    for layer in range(2):
        blender.process_qkv("q", "k", "v", "residual", layer, None, None)
    assert witness.now["asked"] == 3
    assert witness.now["retrieved"] == 2
    assert (witness.now["layers"], witness.now["rows"]) == ([0, 1], [7, 7])


def _watched(picked: Any, **parts: Any) -> tuple[Witness, Blender]:
    witness, _ = _witness()
    for name, part in parts.items():
        setattr(witness, name, part)
    blender = Blender()
    blender.metadata.imp_indices = picked
    blender.gpu_connector.get_kv = lambda layer: (Held(f"loaded keys {layer}"), Held("values"))
    layers = [
        SimpleNamespace(self_attn=SimpleNamespace(rotary_emb=f"rope {n}", attn=f"attention {n}"))
        for n in (0, 1)
    ]
    blender.layerwise_model.vllm_model = SimpleNamespace(model=SimpleNamespace(layers=layers))
    witness.attach(blender)
    witness.comparing = True
    return witness, blender


@pytest.mark.parametrize("compare", [False, True])
def test_what_the_blender_ends_with_is_compared_in_every_layer_once_all_is_answered(
    compare: bool,
) -> None:
    witness, blender = _watched([1])
    witness.comparing = compare
    list(blender.cache_engine.retrieve_layer([1, 2, 3]))
    for layer in range(2):
        blender.process_qkv("q", Held(f"keys {layer}"), Held("values"), "residual", layer)
    assert witness.chunks.watched == [blender.gpu_connector]
    assert (witness.chunks.tokens, witness.now["check"]) == ([1, 2, 3], 0)
    # Not while it runs.
    assert witness.now["reused"] == witness.now["written"] == []
    witness.end()
    names = [(one["held"][0].name, one["picked"], one["rope"]) for one in witness.now["reused"]]
    there = [(one["held"][0].name, one["there"]) for one in witness.now["written"]]
    both = [f"copy of keys {layer}" for layer in (0, 1)] if compare else []
    assert names == [(name, [0], f"rope {layer}") for layer, name in enumerate(both)]
    assert there == [
        (name, f"attention {layer}: places of {name}") for layer, name in enumerate(both)
    ]
    assert witness.held == []


def test_before_the_check_layer_what_was_loaded_is_what_stays() -> None:
    witness, _ = _watched(None)
    witness._hold(0, ("q", Held("computed keys"), Held("values")))
    [(_, held, picked)] = witness.held
    assert (held[0].name, picked) == ("copy of loaded keys 0", None)


def test_what_can_not_be_compared_does_not_end_the_engine() -> None:
    witness, _ = _watched([1], chunks=Chunks(ValueError("the rope turns 2 of 4 dimensions")))
    witness._hold(0, ("q", Held("keys"), Held("values")))
    witness.end()
    assert witness.now["not_compared"] == "ValueError: the rope turns 2 of 4 dimensions"
    assert witness.now["reused"] == []
    # What came to vLLM's cache needs no rope.
    assert [one["layer"] for one in witness.now["written"]] == [0]


def test_nor_does_what_can_not_be_copied() -> None:
    witness, blender = _watched(None)
    blender.gpu_connector.get_kv = lambda _: 1 / 0
    witness._hold(0, ("q", Held("keys"), Held("values")))
    witness.end()
    assert witness.now["not_read"] == witness.now["not_compared"]
    assert witness.now["not_read"].startswith("ZeroDivisionError")


def test_nor_does_a_cache_whose_blocks_nobody_tells() -> None:
    paged = Paged(ValueError("it names no blocks"))
    paged.blocks = None
    witness, _ = _watched([1], paged=paged)
    witness._hold(0, ("q", Held("keys"), Held("values")))
    witness.end()
    assert witness.now["not_read"] == "ValueError: it names no blocks"
    assert witness.now["written"] == []
    assert [one["layer"] for one in witness.now["reused"]] == [0]


def test_before_the_check_layer_too_what_can_not_be_compared_does_not_end_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def differ(*_: object) -> None:
        raise RuntimeError("sizes differ")

    class Early(Blender):
        """Has chosen no tokens yet."""

        def process_qkv(self, q: Any, *rest: Any) -> tuple[Any, ...]:
            return (SimpleNamespace(shape=(7, 4)), *rest)

    witness, _ = _witness()
    monkeypatch.setattr(witness, "_before_check", differ)
    blender = Early()
    blender.metadata.imp_indices = None
    witness.attach(blender)
    blender.process_qkv("q", "k", "v", "residual", 0, None, None)
    assert witness.now["layers"] == [0]
    assert witness.now["not_compared"] == "RuntimeError: sizes differ"


def test_a_planted_fault_retrieves_without_blending() -> None:
    witness, _ = _witness("blender")
    blender = Blender()
    witness.attach(blender)
    blender.blend([1, 2, 3])
    assert (blender.ran, witness.now["retrieved"], witness.now["layers"]) == (0, 2, [])


class Positions:
    """Positions of tokens, as far as the planted shift needs of a tensor."""

    def __init__(self, *at: int) -> None:
        self.at = at

    def __ne__(self, other: object) -> Positions:  # type: ignore[override]
        assert isinstance(other, Positions)
        return Positions(*(int(a != b) for a, b in zip(self.at, other.at, strict=True)))

    def __rmul__(self, by: int) -> Positions:
        return Positions(*(by * a for a in self.at))

    def __add__(self, other: Positions) -> Positions:
        return Positions(*(a + b for a, b in zip(self.at, other.at, strict=True)))


def test_a_planted_fault_misplaces_what_moved_and_nothing_else() -> None:
    witness, _ = _witness("positions")
    blender = Blender()
    witness.attach(blender)
    moved = blender.layerwise_model.fused_rotary_emb(Positions(0, 1), Positions(0, 5), None)
    assert moved.at == (0, 5 + SHIFT)


def test_a_planted_fault_zeroes_one_chunk_after_the_check_layer() -> None:
    witness, _ = _witness("zero")
    blender = Blender()
    witness.attach(blender)
    steps = blender.gpu_connector.batched_to_gpu([0], [9])
    next(steps)
    for _layer in range(2):
        steps.send([SimpleNamespace(tensor=Tensor(number)) for number in (1.0, 2.0, 3.0)])
    assert blender.seen == [[1.0, 2.0, 3.0], [1.0, 2.0, 0.0]]


@pytest.mark.parametrize(("storing", "fault"), [(True, ""), (False, ""), (True, "store")])
def test_only_what_is_to_be_stored_is_stored(storing: bool, fault: str) -> None:
    witness, _ = _witness(fault)
    cache = Cache()
    witness.watch_cache(cache)
    witness.storing = storing
    next(cache.store_layer("chunks"))
    assert cache.stored == (["chunks"] if storing and not fault else [])


def test_what_only_fills_a_step_up_is_not_stored_beside_another_prompt() -> None:
    witness, _ = _witness()
    cache = Cache()
    witness.watch_cache(cache)
    witness.beside = [*range(40)]
    for tokens in ([*range(30)], [*range(15), 99], [], [5, 6]):
        next(cache.store_layer(tokens))
    assert cache.stored == [[*range(15), 99], [], [5, 6]]


def test_a_planted_miss_strikes_after_the_store() -> None:
    witness, _ = _witness("lookup")
    cache = Cache()
    witness.watch_cache(cache)
    assert witness.known([1, 2]) == 2
    witness.storing = False
    assert witness.known([1, 2]) == 0


def test_the_ratio_is_changed_on_the_running_blender() -> None:
    witness, _ = _witness()
    blender = Blender()
    witness.attach(blender)
    witness.set_ratio(0.5)
    assert blender.common_metadata.recomp_ratios == [0.5]


def test_faults_of_a_request_strike_at_one_prompt_alone() -> None:
    witness, _ = _witness("memory")
    witness.at_request("store")
    with pytest.raises(MemoryError):
        witness.at_request("twice")
    assert "memory" in FAULTS


def test_a_cache_engine_without_a_blender_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "lmcache.integration.vllm.utils": SimpleNamespace(ENGINE_NAME="name"),
        "lmcache.v1.cache_engine": SimpleNamespace(
            LMCacheEngineBuilder=SimpleNamespace(get=lambda name: f"engine of {name}")
        ),
    }
    monkeypatch.setattr(smoke_witness.importlib, "import_module", modules.__getitem__)
    assert smoke_witness.cache_engine() == "engine of name"


KEYS = """
import json, torch
from types import SimpleNamespace as Names
from smoke_chunks import Chunks
from smoke_paged import Paged
from smoke_witness import Witness

found = []
for fill in (False, True):
    witness = Witness("", lambda *_: None, Chunks(), Paged())
    witness.begin()
    witness.fill_separators = fill
    old = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.5]])
    computed = torch.tensor([[1.0, 2.0], [7.0, 8.0], [3.0, 4.0]])
    connector = Names(get_kv=lambda _: (old, old.clone()), current_gap_positions=torch.tensor([1]))
    witness.blender = Names(gpu_connector=connector)
    witness._before_check(0, computed, computed)
    found += [witness.now["key_error"], old[1].tolist()]
print(json.dumps(found))
"""


@pytest.mark.stack
def test_keys_are_compared_without_separators_which_are_filled_in_where_asked() -> None:
    # Half a unit off, of a largest key of four: those of separators don't count.
    assert run_in_target(KEYS) == [0.125, [0.0, 0.0], 0.125, [7.0, 8.0]]
