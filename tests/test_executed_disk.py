"""What KV014 makes of LMCache's disk back end, run on real folders from patched files of releases.

The worker that writes, the cache policy and the memory are stand-ins.
"""

from __future__ import annotations

import ast
import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lmcache_files import QUIET, executed_bare, patched_text
from packaging.version import Version

pytestmark = pytest.mark.releases

RELEASES = ["0.3.10.post1", "0.4.2", "0.4.4", "0.5.3", "0.5.5rc4", "0.5.6"]
UNPINNED = Version("0.4.3")
"""From here on LMCache takes the pin of a loaded chunk back; before, nothing is to be pinned."""
BACKEND = "lmcache/v1/storage_backend/local_disk_backend.py"
SIZE, LAYERS = 8, 4


@dataclass(frozen=True)
class Key:
    """LMCache's ``LayerCacheEngineKey``."""

    chunk_hash: str
    layer_id: int
    worker_id: int = 0

    def to_string(self) -> str:
        return f"model@{self.chunk_hash}@{self.layer_id}"


@dataclass
class Entry:
    """LMCache's ``DiskCacheMetadata``."""

    path: str
    size: int
    shape: Any
    dtype: Any
    cached_positions: Any
    fmt: Any
    pin_count: int = 0

    def pin(self) -> None:
        self.pin_count += 1

    def unpin(self) -> None:
        self.pin_count -= 1

    @property
    def can_evict(self) -> bool:
        return self.pin_count <= 0


class Chunk:
    """A memory object of a chunk's layer, full of one byte."""

    def __init__(self, memory: Memory, value: int, positions: Any) -> None:
        self.tensor, self.byte_array = "a tensor", bytearray([value] * SIZE)
        self.metadata = SimpleNamespace(
            shape=(SIZE,), dtype="uint8", fmt="fmt", cached_positions=positions
        )
        self.memory, self.refs, self.pins = memory, 1, 0

    def get_physical_size(self) -> int:
        return SIZE

    def ref_count_up(self) -> None:
        self.refs += 1

    def ref_count_down(self) -> None:
        self.refs -= 1
        self._freed()

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        self._freed()

    def _freed(self) -> None:
        assert self.refs >= 0 <= self.pins
        if not self.refs and not self.pins:
            self.memory.used.remove(self)


class Memory:
    """LMCache's ``LocalCPUBackend`` with room for so many layers."""

    def __init__(self, room: int, blending: bool, layerwise: bool) -> None:
        self.room, self.used = room, list[Chunk]()
        self.layerwise = layerwise
        self.config = SimpleNamespace(enable_blending=blending, max_local_cpu_size=5.0)

    def take(self, value: int = 0, positions: Any = None) -> Chunk | None:
        if len(self.used) == self.room:
            return None
        self.used.append(Chunk(self, value, positions))
        return self.used[-1]

    def allocate(self, shape: Any, dtype: str, fmt: str, busy_loop: bool = True) -> Chunk | None:
        assert (shape, dtype, fmt) == ((SIZE,), "uint8", "fmt")
        assert not self.layerwise or not busy_loop, "it waits for ever, and holds up the writes"
        return self.take()


class Policy:
    """Drops what was used longest ago, and knows only keys that it was told of."""

    def __init__(self) -> None:
        self.known: set[Key] = set()

    def update_on_put(self, key: Key) -> None:
        self.known.add(key)

    def update_on_hit(self, key: Key, entries: OrderedDict[Key, Entry]) -> None:
        assert key in self.known
        entries.move_to_end(key)

    def update_on_force_evict(self, key: Key) -> None:
        self.known.remove(key)

    def get_evict_candidates(
        self, entries: OrderedDict[Key, Entry], num_candidates: int
    ) -> list[Key]:
        found = [key for key, entry in entries.items() if entry.can_evict][:num_candidates]
        self.known -= {*found}
        return found


class Base:
    """LMCache's ``StorageBackendInterface``."""

    def batched_contains(self, keys: Sequence[Key], pin: bool = False) -> int:
        found = 0
        while found < len(keys) and self.contains(keys[found], pin):  # type: ignore[attr-defined]
            found += 1
        return found

    def batched_remove(self, keys: Sequence[Key], force: bool = True) -> int:
        return sum(self.remove(key, force=force) for key in keys)  # type: ignore[attr-defined]


@cache
def source(release: str) -> dict[str, Any]:
    """The classes and functions of the patched back end's module."""
    module = ast.parse(patched_text(release, BACKEND))
    kept = [node for node in module.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    space = {
        "os": os,
        "time": time,
        "threading": threading,
        "nullcontext": nullcontext,
        "asyncio": SimpleNamespace(run_coroutine_threadsafe=lambda *_: None, sleep=asyncio.sleep),
        "torch": SimpleNamespace(equal=lambda one, other: one == other),
        "torch_device_type": "cpu",
        "_DEFAULT_THREAD_COUNT": 4,
        "AsyncPQThreadPoolExecutor": lambda *_, **__: None,
        "Base": Base,
        "DiskCacheMetadata": Entry,
        "logger": QUIET,
    }
    return executed_bare(kept, space)


class Disk:
    """The back end over a folder with room for so many layers; writes wait to be let through."""

    def __init__(
        self,
        release: str,
        folder: Path,
        room: int = 99,
        *,
        memory: int = 99,
        blending: bool = True,
        layerwise: bool = True,
    ) -> None:
        self.memory = Memory(memory, blending, layerwise)
        self.pins = not layerwise or Version(release) >= UNPINNED
        self.writes: list[Callable[[], None]] = []
        worker = source(release)["LocalDiskWorker"](None)
        worker.submit_task = self._submitted
        self.end = object.__new__(source(release)["LocalDiskBackend"])
        self.end.__dict__ |= {
            "path": str(folder),
            "loop": None,
            "cache_policy": Policy(),
            "dict": OrderedDict(),
            "disk_lock": threading.Lock(),
            "disk_worker": worker,
            "local_cpu_backend": self.memory,
            "max_cache_size": room * SIZE,
            "current_cache_size": 0.0,
            "usage": 0,
            "keys_in_request": [],
            "use_odirect": False,
            "os_disk_bs": 4096,
            "stats_monitor": SimpleNamespace(update_local_storage_usage=lambda _: None),
            "lmcache_worker": None,
            "batched_msg_sender": None,
        }

    def _submitted(self, kind: str, task: Any, **given: Any) -> Any:
        if kind == "put":
            return self.writes.append(partial(task, **given))

        async def read() -> Any:
            return task(**given)

        return read()

    def put(self, place: int, *keys: Key, settle: bool = True) -> None:
        """Store these layers from there; each is full of the place that it is from."""
        positions = [place, place + 1]
        for key in keys:
            chunk = self.memory.take(place, positions)
            assert chunk is not None
            self.end.submit_put_task(key, chunk)
            chunk.ref_count_down()
            if settle:
                self.settle()

    def settle(self) -> None:
        while self.writes:
            self.writes.pop(0)()

    def get(
        self, *keys: Key, meanwhile: Callable[[], None] = lambda: None
    ) -> list[tuple[int, int]]:
        """What these layers are full of, and the place that they are said to be from."""

        async def load() -> list[Chunk]:
            loading = asyncio.ensure_future(self.end.batched_get_non_blocking("lookup", [*keys]))
            await asyncio.sleep(0.02)
            meanwhile()
            return await loading

        chunks = asyncio.run(load())
        for chunk in chunks:
            assert chunk.pins == self.pins
            chunk.ref_count_down()
            if chunk.pins:
                chunk.unpin()
        return [(chunk.byte_array[0], chunk.metadata.cached_positions[0]) for chunk in chunks]

    def sound(self) -> None:
        """Assert that index, files, policy and counts tell of the same layers."""
        end = self.end
        assert {Path(entry.path) for entry in end.dict.values()} == {*Path(end.path).iterdir()}
        assert end.cache_policy.known == {*end.dict}
        assert end.current_cache_size == end.usage == SIZE * len(end.dict)
        assert not any(entry.pin_count for entry in end.dict.values())
        assert end.keys_in_request == []
        assert not end.disk_lock.locked()
        assert self.memory.used == []


def layers(chunk: str) -> list[Key]:
    return [Key(chunk, layer) for layer in range(LAYERS)]


def mixture(disk: Disk) -> list[Key]:
    """A chunk whose first layer was lost and stored again from another place."""
    keys = layers("mixed")
    disk.put(111, *keys)
    disk.end.current_cache_size -= SIZE
    disk.end.remove(keys[0])
    disk.put(45, keys[0])
    assert [disk.end.dict[key].cached_positions[0] for key in keys] == [45, 111, 111, 111]
    return keys


@pytest.mark.parametrize("release", RELEASES)
def test_a_chunk_that_a_full_disk_mixed_is_not_there_and_is_stored_anew_as_a_whole(
    release: str, tmp_path: Path
) -> None:
    disk, one, two = Disk(release, tmp_path, 2 * LAYERS), layers("one"), layers("two")
    disk.put(111, *(key for pair in zip(one, two, strict=True) for key in pair))
    disk.put(7, Key("three", 0))
    assert [disk.end.contains(key) for key in one] == [False, True, True, True]
    disk.put(45, *one)
    assert [disk.end.contains(key) for key in one] == [True] * LAYERS
    assert disk.end.batched_contains(one, True) == 0
    disk.end.touch_cache()
    assert [disk.end.contains(key) for key in one] == [False] * LAYERS
    assert disk.end.contains(two[1])
    disk.sound()
    disk.put(45, *one)
    assert disk.end.batched_contains(one) == LAYERS
    assert disk.get(*one) == [(45, 45)] * LAYERS
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_a_whole_chunk_is_pinned_served_and_given_back(release: str, tmp_path: Path) -> None:
    disk, keys = Disk(release, tmp_path), layers("whole")
    disk.put(111, *keys)
    assert disk.end.batched_contains(keys, True) == LAYERS
    assert [disk.end.dict[key].pin_count for key in keys] == [1] * LAYERS
    disk.end.touch_cache()
    assert [*disk.end.dict] == keys[::-1]
    assert disk.get(*keys) == [(111, 111)] * LAYERS
    for key in keys:
        disk.end.unpin(key)
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_a_layer_that_is_stored_again_at_the_same_place_makes_no_mixture(
    release: str, tmp_path: Path
) -> None:
    disk, keys = Disk(release, tmp_path), layers("again")
    disk.put(5, *keys[1:])
    disk.put(5, keys[0])
    assert disk.end.batched_contains(keys) == LAYERS
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_a_chunk_with_a_layer_missing_is_kept_and_nothing_of_it_is_pinned(
    release: str, tmp_path: Path
) -> None:
    disk, keys = Disk(release, tmp_path), layers("part")
    disk.put(5, *keys[:3])
    assert disk.end.batched_contains(keys, True) == 0
    assert [*disk.end.dict] == keys[:3]
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_only_what_comes_before_a_mixture_counts(release: str, tmp_path: Path) -> None:
    disk, whole = Disk(release, tmp_path), layers("whole")
    disk.put(5, *whole)
    mixed = mixture(disk)
    assert disk.end.batched_contains([*whole, *mixed], True) == LAYERS
    assert [*disk.end.dict] == whole
    assert disk.end.keys_in_request == whole


@pytest.mark.parametrize("release", RELEASES)
def test_a_mixture_that_is_read_is_dropped_after_that(release: str, tmp_path: Path) -> None:
    disk = Disk(release, tmp_path)
    keys = mixture(disk)
    disk.end.pin(keys[2])
    assert disk.end.batched_contains(keys) == 0
    assert {*disk.end.dict} == {*keys}
    disk.end.unpin(keys[2])
    assert disk.end.batched_contains(keys) == 0
    assert not disk.end.dict
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_a_mixture_that_is_written_is_dropped_after_that(release: str, tmp_path: Path) -> None:
    disk = Disk(release, tmp_path)
    keys = mixture(disk)
    disk.end.current_cache_size -= SIZE
    disk.end.remove(keys[3])
    disk.put(45, keys[3], settle=False)
    assert disk.end.batched_contains(keys) == 0
    assert len(disk.end.dict) == LAYERS - 1
    disk.settle()
    assert disk.end.batched_contains(keys) == 0
    assert not disk.end.dict
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_a_mixture_whose_file_is_gone_is_dropped_all_the_same(release: str, tmp_path: Path) -> None:
    disk = Disk(release, tmp_path)
    keys = mixture(disk)
    Path(disk.end.dict[keys[1]].path).unlink()
    assert disk.end.batched_contains(keys) == 0
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_a_layer_that_is_there_is_not_written_over(release: str, tmp_path: Path) -> None:
    disk, keys = Disk(release, tmp_path), layers("twice")
    disk.put(111, *keys)
    disk.put(45, *keys)
    assert disk.get(*keys) == [(111, 111)] * LAYERS
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_without_blending_the_disk_is_asked_as_released(release: str, tmp_path: Path) -> None:
    disk, keys = Disk(release, tmp_path, blending=False), layers("plain")
    disk.put(5, *keys[:3])
    assert disk.end.batched_contains(keys, True) == 3
    assert disk.end.keys_in_request == keys[:3]


@pytest.mark.parametrize("release", RELEASES)
def test_layers_of_a_chunk_whose_first_ones_are_elsewhere_are_no_hit_and_not_pinned(
    release: str, tmp_path: Path
) -> None:
    disk, keys = Disk(release, tmp_path), layers("split")
    disk.put(5, *keys)
    assert disk.end.batched_contains(keys[2:], True) == 0
    assert {*disk.end.dict} == {*keys}
    disk.sound()


@pytest.mark.parametrize("blending", [True, False])
@pytest.mark.parametrize("release", RELEASES)
def test_a_load_that_memory_has_no_room_for_fails_with_a_sentence_and_gives_all_back(
    release: str, blending: bool, tmp_path: Path
) -> None:
    disk, keys = Disk(release, tmp_path, memory=3, blending=blending), layers("large")
    disk.put(5, *keys)
    with pytest.raises(RuntimeError, match=r"kvpatch: max_local_cpu_size, 5\.0 GiB, has no room"):
        disk.get(*keys)
    disk.sound()
    assert disk.get(*keys[:3]) == [(5, 5)] * 3
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_a_load_waits_for_the_writes_that_hold_the_memory(release: str, tmp_path: Path) -> None:
    disk, keys = Disk(release, tmp_path, memory=LAYERS), layers("kept")
    disk.put(5, *keys)
    disk.put(7, *layers("new")[:2], settle=False)

    def meanwhile() -> None:
        assert [disk.end.dict[key].pin_count for key in keys] == [1, 1, 1, 0]
        assert not disk.end.disk_lock.locked()
        disk.settle()

    assert disk.get(*keys, meanwhile=meanwhile) == [(5, 5)] * LAYERS
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_a_load_does_not_wait_for_ever_for_writes(release: str, tmp_path: Path) -> None:
    disk, keys = Disk(release, tmp_path, memory=LAYERS), layers("kept")
    disk.put(5, *keys)
    disk.put(7, Key("stuck", 0), settle=False)
    disk.end._kvpatch_room = partial(disk.end._kvpatch_room, patience=0.05)
    with pytest.raises(RuntimeError, match="max_local_cpu_size"):
        disk.get(*keys)
    disk.settle()
    disk.sound()


@pytest.mark.parametrize("release", RELEASES)
def test_a_load_of_what_was_lost_since_the_lookup_says_so(release: str, tmp_path: Path) -> None:
    disk, keys = Disk(release, tmp_path), layers("lost")
    disk.put(5, *keys)
    disk.end.current_cache_size -= SIZE
    disk.end.remove(keys[1])
    with pytest.raises(RuntimeError, match=r"layer_id=1.* was lost from local_disk"):
        disk.get(*keys)
    disk.sound()


@pytest.mark.parametrize("release", ["0.4.2", "0.5.6"])
def test_whole_chunks_are_loaded_as_released(release: str, tmp_path: Path) -> None:
    disk, keys = Disk(release, tmp_path, blending=False, layerwise=False), layers("plain")
    disk.put(5, *keys)
    disk.end._kvpatch_load = None
    assert disk.get(*keys) == [(5, 5)] * LAYERS
