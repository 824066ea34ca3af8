"""Watches LMCache while it blends: who came when, what was retrieved, which layers the blender did.

Put into the child that runs the smoke, on any device; it also plants the faults that tests ask for.
Python 3.9 or newer, nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

SHIFT = 3
# Tokens that tell a prompt from another.
FIRST = 16
FAULTS = (
    "registration",
    "blender",
    "positions",
    "zero",
    "store",
    "lookup",
    "hang",
    "kill",
    "memory",
)


class Witness:
    """What was seen of one engine; ``now`` is about the request that runs."""

    def __init__(
        self,
        fault: str,
        after_import: Callable[[str, Callable[[Any], None]], None],
        chunks: Any,
        paged: Any,
    ) -> None:
        self.fault = fault
        self.paged = paged
        self.events: list[str] = []
        self.now: dict[str, Any] = {}
        self.blender: Any = None
        self.cache: Any = None
        self.chunks = chunks
        self.fill_separators = False
        self.comparing = False
        self.held: list[tuple[int, tuple[Any, Any], Any]] = []
        self.storing = True
        self.beside: list[int] = []
        after_import("lmcache.v1.compute.models.utils", self._on_tracker)
        after_import("lmcache.v1.compute.blend.utils", self._on_builder)
        after_import(
            "vllm.distributed.kv_transfer.kv_connector.factory", self._on_connector_factory
        )

    def begin(self) -> None:
        """A request starts."""
        self.now = {"layers": [], "retrieved": 0, "asked": 0, "rows": [], "key_error": None}
        self.now |= {"check": None, "reused": [], "not_compared": ""}
        self.now |= {"written": [], "not_read": ""}
        self.held, self.paged.blocks = [], None

    def end(self) -> None:
        """It is answered: what the blender ended with, against vLLM's cache and what was stored.

        Not while it runs, where waiting for a GPU's streams would cure what lacks that.
        """
        for layer, held, picked in self.held:
            self._compare(layer, held, picked)
        self.held = []

    # -- who came when

    def _on_tracker(self, module: Any) -> None:
        tracker = module.VLLMModelTracker
        original = tracker.register_model

        def register(*args: Any, **kwargs: Any) -> Any:
            if self.fault == "registration":
                return None
            self.events.append("registered")
            return original(*args, **kwargs)

        tracker.register_model = staticmethod(register)

    def _on_builder(self, module: Any) -> None:
        builder = module.LMCBlenderBuilder
        original = builder.get_or_create

        def get_or_create(*args: Any, **kwargs: Any) -> Any:
            blender = original(*args, **kwargs)
            self.events.append("blender")
            self.attach(blender)
            return blender

        builder.get_or_create = staticmethod(get_or_create)

    def _on_connector_factory(self, module: Any) -> None:
        factory = module.KVConnectorFactory
        original = factory.create_connector

        def create(*args: Any, **kwargs: Any) -> Any:
            role = next(
                (value for value in (*args, *kwargs.values()) if hasattr(value, "name")), None
            )
            self.events.append(f"connector:{getattr(role, 'name', '?').lower()}")
            return original(*args, **kwargs)

        factory.create_connector = staticmethod(create)

    # -- what the blender does

    def attach(self, blender: Any) -> None:
        """Watch a blender and the cache engine it works with."""
        self.blender = blender
        process = blender.process_qkv
        blend = blender.blend

        def process_qkv(q: Any, k: Any, v: Any, residual: Any, layer_id: int, *rest: Any) -> Any:
            picked = blender.metadata.imp_indices is not None
            result = process(q, k, v, residual, layer_id, *rest)
            self.now["layers"].append(layer_id)
            self.now["rows"].append(int(result[0].shape[0]))
            if not picked and blender.metadata.imp_indices is None:
                # What can't be compared must not end the engine that is watched.
                try:
                    self._before_check(layer_id, result[1], result[2])
                except Exception as error:
                    self.now["not_compared"] = told(error)
            # Not where the time is taken.
            if self.comparing:
                self._hold(layer_id, result)
            return result

        blender.process_qkv = process_qkv
        self.watch_cache(blender.cache_engine)
        self.chunks.watch(blender.gpu_connector)
        if self.fault == "blender":

            def retrieve_only(tokens: Any, mask: Any = None, **kwargs: Any) -> None:
                steps = blender.cache_engine.retrieve_layer(tokens, mask, **kwargs)
                for _ in range(blender.num_layers + 2):
                    next(steps)

            blend = retrieve_only
        blender.blend = blend
        if self.fault == "positions":
            rotate = blender.layerwise_model.fused_rotary_emb

            def misplaced(old: Any, new: Any, key: Any) -> Any:
                return rotate(old, new + SHIFT * (new != old), key)

            blender.layerwise_model.fused_rotary_emb = misplaced
        if self.fault == "zero":
            self._zero_a_chunk(blender.gpu_connector)

    def _before_check(self, layer_id: int, key: Any, value: Any) -> None:
        """In a layer before the check layer: the keys as loaded against those just computed.

        LMCache leaves zeros for separators there; ``fill_separators`` puts in what was computed.
        """
        import torch

        connector = self.blender.gpu_connector
        old_key, old_value = connector.get_kv(layer_id)
        gaps = getattr(connector, "current_gap_positions", None)
        held = torch.ones(old_key.shape[0], dtype=torch.bool, device=old_key.device)
        if gaps is not None:
            held[gaps] = False
        if layer_id == 0:
            off = (old_key - key).abs()[held].max() / key.abs()[held].max()
            self.now["key_error"] = float(off)
        if self.fill_separators and gaps is not None and len(gaps):
            old_key[gaps] = key[gaps]
            old_value[gaps] = value[gaps]

    def _hold(self, layer_id: int, result: Any) -> None:
        """Copy what a layer that was just blended is to leave in vLLM's cache."""
        picked = self.blender.metadata.imp_indices
        # What can't be copied or compared must not end the engine that is watched.
        try:
            self.paged.find(self._attention(layer_id).attn)
        except Exception as error:
            self.now["not_read"] = told(error)
        try:
            # Before the check layer, all is computed and what was loaded is kept.
            keys, values = (
                self.blender.gpu_connector.get_kv(layer_id) if picked is None else result[1:3]
            )
            self.held.append((layer_id, (keys.clone(), values.clone()), picked))
        except Exception as error:
            self.now["not_compared"] = self.now["not_read"] = told(error)

    def _attention(self, layer_id: int) -> Any:
        return self.blender.layerwise_model.vllm_model.model.layers[layer_id].self_attn

    def _compare(self, layer_id: int, held: tuple[Any, Any], picked: Any) -> None:
        attention = self._attention(layer_id)
        try:
            found = self.chunks.compare(layer_id, held, picked, attention.rotary_emb)
            self.now["reused"].append(found)
        except Exception as error:
            self.now["not_compared"] = told(error)
        if self.now["not_read"]:
            return
        try:
            there = self.paged.read(attention.attn, self.chunks.places_of(held))
            self.now["written"].append(self.chunks.written(layer_id, held, picked, there))
        except Exception as error:
            self.now["not_read"] = told(error)

    def watch_cache(self, cache: Any) -> None:
        """Watch a cache engine, with a blender or without."""
        if self.cache is cache:
            return
        self.cache = cache
        retrieve, store = cache.retrieve_layer, cache.store_layer

        def retrieve_layer(tokens: Any, mask: Any = None, **kwargs: Any) -> Iterator[Any]:
            self.now["asked"] = len(tokens)
            self.chunks.tokens = tokens
            if self.blender is not None and self.blender.common_metadata.check_layers:
                self.now["check"] = max(self.blender.common_metadata.check_layers)
            for item in retrieve(tokens, mask, **kwargs):
                if hasattr(item, "dim") and item.dim() == 1:
                    self.now["retrieved"] = int(item.sum())
                yield item

        def store_layer(tokens: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            if not self.storing or self.fault == "store" or self._fills(tokens):
                while True:
                    yield None
            self.chunks.tokens = tokens
            yield from store(tokens, *args, **kwargs)

        cache.retrieve_layer = retrieve_layer
        cache.store_layer = store_layer
        if self.fault == "lookup":
            lookup = cache.lookup
            cache.lookup = lambda *args, **kw: lookup(*args, **kw) if self.storing else 0

    def _fills(self, tokens: Any) -> bool:
        """Whether they are of the prompt that another one is sent ``beside``, to fill a step up.

        It would be loaded the next time, and fill nothing.
        """
        first = self.beside[:FIRST]
        return bool(first) and [int(token) for token in tokens[:FIRST]] == first

    def _zero_a_chunk(self, connector: Any) -> None:
        """After the check layer, where a recompute ratio of 1 cures it and another does not."""
        load = connector.batched_to_gpu
        check = max(self.blender.common_metadata.check_layers)

        def batched_to_gpu(starts: Any, ends: Any, **kwargs: Any) -> Generator[Any, Any, None]:
            steps = load(starts, ends, **kwargs)
            objects: Any = yield next(steps)
            layer = 0
            while True:
                if layer > check and objects is not None and len(objects) > 2:
                    objects[2].tensor.zero_()
                layer += 1
                try:
                    got = steps.send(objects)
                except StopIteration:
                    return
                objects = yield got

        connector.batched_to_gpu = batched_to_gpu

    # -- while it runs

    def set_ratio(self, ratio: float) -> None:
        """Change the recompute ratio of the running blender."""
        self.blender.common_metadata.recomp_ratios = [ratio]

    def known(self, tokens: list[int]) -> int:
        """How many leading tokens the cache engine says it holds."""
        return int(self.cache.lookup(tokens))

    def at_request(self, prompt: str) -> None:
        """Faults that strike while a request is answered."""
        if prompt != "twice":
            return
        if self.fault == "hang":
            time.sleep(86400)
        if self.fault == "kill":
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "memory":
            raise MemoryError("planted")


def told(error: Exception) -> str:
    """An error, in a line of the report."""
    return f"{type(error).__name__}: {error}"[:300]


def cache_engine() -> Any:
    """LMCache's cache engine of this process, where there is no blender."""
    name = importlib.import_module("lmcache.integration.vllm.utils").ENGINE_NAME
    builder = importlib.import_module("lmcache.v1.cache_engine").LMCacheEngineBuilder
    return builder.get(name)
