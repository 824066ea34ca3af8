"""Who pins chunks and who unpins them, by the engine, manager and CPU tier of real releases.

The keys, the chunks and the disk are stand-ins; that the disk pins what it loads is LMCache's way.
"""

from __future__ import annotations

import ast
import asyncio
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from lmcache_files import QUIET, executed_bare, patched_text
from releases import release_file
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

ENGINE = "lmcache/v1/cache_engine.py"
MANAGER = "lmcache/v1/storage_backend/storage_manager.py"
TIER = "lmcache/v1/storage_backend/local_cpu_backend.py"
RELEASES = ["0.4.3", "0.4.7", "0.5.0", "0.5.3", "0.5.6"]
DEFINITIONS = {
    ENGINE: {"LMCacheEngine": ("_get_req_id", "lookup", "lookup_unpin", "retrieve_layer")},
    MANAGER: {"StorageManager": ("layerwise_batched_get", "batched_unpin")},
    TIER: {"LocalCPUBackend": ("contains", "unpin", "batched_get_non_blocking")},
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LAYERS, TOKENS = 3, [0, 0, 1, 1]
WHAT = ("lookup", "retrieve")
HOT, DISK = "LocalCPUBackend", "LocalDiskBackend"


@dataclass(frozen=True)
class Key:
    """LMCache's keys, of a chunk and of one layer of it."""

    chunk: int
    layer: int | None = None

    def split_layers(self, layers: int) -> list[Key]:
        return [replace(self, layer=layer) for layer in range(layers)]


class Chunk:
    """LMCache's memory object, as far as it counts; the first reference is its maker's."""

    def __init__(self, pins: int = 0) -> None:
        self.refs, self.pins, self.negative = 1, pins, 0
        self.tensor = torch.zeros(1)

    @property
    def is_pinned(self) -> bool:
        return self.pins > 0

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.negative += self.pins == 0
        self.pins = max(self.pins - 1, 0)

    def ref_count_up(self) -> None:
        self.refs += 1

    def ref_count_down(self) -> None:
        self.refs -= 1
        assert self.refs >= 0


class Disk:
    """Has everything; what it loads it pins, for whoever loads it to take that back."""

    def __init__(self) -> None:
        self.loaded: list[Chunk] = []

    async def batched_get_non_blocking(self, _lookup_id: str, keys: Sequence[Key]) -> list[Chunk]:
        self.loaded += (found := [Chunk(pins=1) for _ in keys])
        return found

    def contains(self, _key: Key, pin: bool = False) -> bool:
        del pin
        return True

    def unpin(self, _key: Key) -> bool:
        return True


class Tokens:
    """A chunk for each number among the tokens."""

    def process_tokens(self, tokens: Sequence[int], **_: Any) -> Iterator[tuple[int, int, Key]]:
        for chunk in sorted(set(tokens)):
            start = tokens.index(chunk)
            yield start, start + tokens.count(chunk), Key(chunk)


class Connector:
    """Takes what a load gives it."""

    def batched_to_gpu(self, *_: Any, **__: Any) -> Iterator[None]:
        for _layer in range(LAYERS + 2):
            yield


def _run(coroutine: Any, _loop: Any) -> SimpleNamespace:
    found = asyncio.run(coroutine)
    return SimpleNamespace(result=lambda: found)


def definition(release: str, path: str, *, stock: bool) -> type[Any]:
    """A class of that release, with nothing but what pins and unpins."""
    whole = path != ENGINE or stock
    text = release_file("lmcache", release, path) if whole else patched_text(release, path)
    ((owner, names),) = DEFINITIONS[path].items()
    (node,) = (n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == owner)
    node.body = [n for n in node.body if isinstance(n, FUNCTIONS) and n.name in names]
    assert len(node.body) == len(names)
    space = executed_bare(
        [node],
        {
            "Base": object,
            "CacheEngineKey": Key,
            "assert_layerwise_gpu_connector": lambda _: None,
            "asyncio": SimpleNamespace(run_coroutine_threadsafe=_run),
            "logger": QUIET,
            "torch": torch,
        },
    )
    made: type[Any] = space[owner]
    return made


class Engine:
    """LMCache's engine over a CPU tier that holds all chunks, or over a disk that does."""

    def __init__(self, release: str, location: str, *, stock: bool = False) -> None:
        tier = object.__new__(definition(release, TIER, stock=True))
        tier.cpu_lock, tier.keys_in_request = threading.Lock(), []
        tier.hot_cache = OrderedDict(
            (layer, Chunk()) for chunk in (0, 1) for layer in Key(chunk).split_layers(LAYERS)
        )
        self.hot, self.disk = tuple(tier.hot_cache.values()), Disk()
        back_end = tier if location == HOT else self.disk
        manager = object.__new__(definition(release, MANAGER, stock=True))
        manager.storage_backends, manager.loop = {location: back_end}, None
        manager.contains = lambda key, _where: location if back_end.contains(key) else None
        manager.batched_contains = lambda keys, _where, pin: (
            sum(back_end.contains(key, pin) for key in keys),
            {location: keys},
        )
        manager.touch_cache = lambda: None
        made = object.__new__(definition(release, ENGINE, stock=stock))
        made.storage_manager, made.token_database = manager, Tokens()
        made.gpu_connector, made.num_layers, made.use_layerwise = Connector(), LAYERS, True
        made.lookup_pins = defaultdict(lambda: defaultdict(list))
        made.retrieve_locations = None
        made.is_healthy, made._is_passive = lambda: True, lambda: False
        made.async_loading = None
        told = [f"on_{what}_{when}" for what in WHAT for when in ("request", "finished")]
        made.stats_monitor = SimpleNamespace(**dict.fromkeys(told, lambda *_: None))
        self.made = made

    def looked_up(self, request: str) -> int:
        found: int = self.made.lookup(tokens=TOKENS, lookup_id=request, pin=True)
        return found

    def load(self, request: str) -> int:
        """Load the hit of a request, and end its step as LMCache's connector does."""
        *_, loaded = self.made.retrieve_layer(TOKENS)
        self.made.lookup_unpin(request)
        return int(loaded.sum())


@pytest.mark.parametrize("release", RELEASES)
def test_a_load_leaves_the_pins_of_the_requests_that_wait(release: str) -> None:
    engine = Engine(release, HOT)
    assert [engine.looked_up(name) for name in "abc"] == [len(TOKENS)] * 3
    for waiting, name in zip((2, 1, 0), "abc", strict=True):
        assert engine.load(name) == len(TOKENS)
        assert [chunk.pins for chunk in engine.hot] == [waiting] * len(engine.hot)
    assert {(chunk.refs, chunk.negative) for chunk in engine.hot} == {(1, 0)}


@pytest.mark.parametrize("release", RELEASES)
def test_as_released_it_takes_them(release: str) -> None:
    engine = Engine(release, HOT, stock=True)
    assert [engine.looked_up(name) for name in "ab"] == [len(TOKENS)] * 2
    engine.load("a")
    assert not any(chunk.is_pinned for chunk in engine.hot)
    engine.load("b")
    assert all(chunk.negative for chunk in engine.hot)


@pytest.mark.parametrize("release", RELEASES)
def test_what_a_load_fetched_from_elsewhere_is_given_back(release: str) -> None:
    engine = Engine(release, DISK)
    for name in "ab":
        assert engine.looked_up(name) == engine.load(name) == len(TOKENS)
    assert len(engine.disk.loaded) == 2 * len(engine.hot)
    assert {(c.refs, c.pins, c.negative) for c in engine.disk.loaded} == {(0, 0, 0)}
