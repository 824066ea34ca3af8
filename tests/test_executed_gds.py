"""What KV009 makes of LMCache's GDS back end, run on real files from the patched files of releases.

cuFile, the allocator and the memory objects are stand-ins.
"""

from __future__ import annotations

import ast
import asyncio
import ctypes
import json
import os
import shutil
import struct
import threading
import time
import urllib.parse
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvpatch import smoke_cufile
from lmcache_files import QUIET, executed, executed_bare, patched_text
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

RELEASES = ["0.4.4", "0.4.7", "0.5.0", "0.5.3", "0.5.6"]
BACKEND = "lmcache/v1/storage_backend/gds_backend.py"
MANAGER = "lmcache/v1/storage_backend/storage_manager.py"
HEADER = 4096


class VersionError(Exception):
    """LMCache's ``UnsupportedMetadataVersion``."""


@dataclass(frozen=True)
class Key:
    """LMCache's ``LayerCacheEngineKey``."""

    chunk_hash: int
    layer_id: int = 0

    def get_first_layer(self) -> Key:
        return replace(self, layer_id=0)

    def to_string(self) -> str:
        return f"model@{self.chunk_hash}@{self.layer_id}"


def read_key(text: str) -> Key:
    """LMCache's ``parse_cache_key``."""
    return Key(*map(int, text.split("@")[1:]))


@dataclass
class Format:
    """LMCache's ``MemoryFormat``."""

    KV_2LTD = 0
    value: int


@dataclass
class Entry:
    """LMCache's ``DiskCacheMetadata``."""

    path: str
    size: int
    shape: Any
    dtype: Any
    cached_positions: Any
    fmt: Any


class Chunk:
    """A memory object of a chunk's layer, ``[2, tokens, 4]``, that counts its references."""

    def __init__(self, positions: Any = None, value: float = 0.0, room: Room | None = None) -> None:
        self.references, self.room = 1, room
        self.tensor = torch.full((2, 3 if positions is None else len(positions), 4), value)
        self.meta = self.metadata = SimpleNamespace(
            cached_positions=positions,
            shape=self.tensor.shape,
            dtype=torch.float32,
            fmt=Format(7),
            address=0,
        )

    def is_valid(self) -> bool:
        return True

    def ref_count_up(self) -> None:
        self.references += 1

    def ref_count_down(self) -> None:
        self.references -= 1
        if not self.references and self.room:
            self.room.free += 1

    def get_size(self) -> int:
        size: int = self.tensor.nbytes
        return size

    get_physical_size = get_shape = get_dtype = get_size


class Room:
    """The allocator of a buffer that has room for so many chunks."""

    def __init__(self, free: int = 99) -> None:
        self.free = free

    def allocate(self, shape: Any, _dtype: Any, fmt: Any = None) -> Chunk | None:
        del fmt
        if not self.free:
            return None
        self.free -= 1
        return Chunk(torch.arange(shape[1]), room=self)


@cache
def source(release: str) -> dict[str, Any]:
    """The patched back end's module, without what it imports."""
    module = ast.parse(patched_text(release, BACKEND))
    kept = [
        node
        for node in module.body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Assign))
        and getattr(node, "name", "") not in ("UnsupportedMetadataVersion", "save_metadata")
    ]
    space = {
        "torch": torch,
        "asyncio": asyncio,
        "ctypes": ctypes,
        "json": json,
        "os": os,
        "struct": struct,
        "time": time,
        "urllib": urllib,
        "uuid": uuid,
        "Future": Future,
        "init_logger": lambda _name: QUIET,
        "Base": Base,
        "DiskCacheMetadata": Entry,
        "MemoryFormat": Format,
        "UnsupportedMetadataVersion": VersionError,
        "save_metadata": save_metadata,
        "parse_cache_key": read_key,
        "CacheEngineKey": SimpleNamespace(from_string=read_key),
    }
    return executed_bare(kept, space)


class Base:
    """LMCache's ``AllocatorBackendInterface``."""

    def batched_contains(self, keys: list[Key], pin: bool = False) -> int:
        for number, key in enumerate(keys):
            if not self.contains(key, pin):  # type: ignore[attr-defined]
                return number
        return len(keys)


async def save_metadata(path: str, _tmp: str, metadata: bytes) -> None:
    """LMCache's, which needs aiofile."""
    Path(path).write_bytes(metadata)


class Engines:
    """Back ends over one folder, each of an engine of its own, on one event loop."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.loop = folder, asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def start(self, release: str, room: Room | None = None, blending: bool = True) -> Any:
        backend = object.__new__(source(release)["GdsBackend"])
        backend.config = SimpleNamespace(enable_blending=blending, gds_buffer_size=2)
        backend.loop, backend.gds_path, backend.gds_paths = (
            self.loop,
            str(self.folder),
            [str(self.folder)],
        )
        backend.data_suffix, backend.memory_allocator = ".data", room or Room()
        backend.gds_module, backend.gds_base_pointer, backend.use_direct_io = (
            smoke_cufile,
            None,
            False,
        )
        backend.put_lock, backend.hot_lock = threading.Lock(), threading.Lock()
        backend.put_tasks, backend.save_metadata_tasks, backend.metadata_dirs = set(), set(), set()
        backend.hot_cache, backend._use_noatime, backend._debug_asserts = (
            OrderedDict(),
            False,
            False,
        )
        backend.use_thread_pool, backend._thread_pool = True, ThreadPoolExecutor(2)
        backend._kvpatch_writing, backend._kvpatch_stuck = {}, set()
        return backend

    def get(self, backend: Any, *keys: Key) -> list[Chunk]:
        asked = backend.batched_get_non_blocking("lookup", list(keys))
        found: list[Chunk] = asyncio.run_coroutine_threadsafe(asked, self.loop).result(30)
        return found

    def settle(self, *futures: Any) -> None:
        """Wait until these writes and what they left to the loop are done."""
        for future in futures:
            future.result(30)

        async def rest() -> None:
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)

        asyncio.run_coroutine_threadsafe(rest(), self.loop).result(30)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    made = Engines(tmp_path)
    yield made
    made.loop.call_soon_threadsafe(made.loop.stop)


def layers(chunk: int, count: int = 4) -> list[Key]:
    return [Key(chunk, layer) for layer in range(count)]


def put(backend: Any, keys: list[Key], start: int, value: float, length: int = 3) -> list[Any]:
    """Store a chunk's layers from there; each is full of a value of its own."""
    positions = torch.arange(start, start + length)
    return [backend.submit_put_task(key, Chunk(positions, value + key.layer_id)) for key in keys]


def told(chunks: list[Chunk]) -> list[tuple[float, int]]:
    """What is in loaded chunks, and the first position of each."""
    return [
        (float(chunk.tensor.max()), int(chunk.metadata.cached_positions[0])) for chunk in chunks
    ]


def slow(backend: Any, seconds: dict[Key | None, float]) -> None:
    """Let the writes of some keys, or of all, take longer."""
    save, path_of = backend._save_gds, backend._key_to_path

    def slowed(path: str, *rest: Any) -> Any:
        named = {path_of(key)[0]: wait for key, wait in seconds.items() if key}
        time.sleep(named.get(path, seconds.get(None, 0)))
        return save(path, *rest)

    backend._save_gds = slowed


# Positions in files


@pytest.mark.parametrize("release", RELEASES)
def test_positions_come_back_from_the_header_and_other_readers_see_a_header(release: str) -> None:
    space = source(release)
    span = space["_kvpatch_span"](torch.arange(300, 420))
    tensor = torch.zeros(2, 120, 8, dtype=torch.bfloat16)
    fmt = Format(7)
    written = space["pack_metadata"](tensor, fmt, lmcache_version="1", cached_positions=span)
    assert len(written) == HEADER
    shape, dtype, size, _, more = space["unpack_metadata"](written)
    assert (shape, dtype, size) == (tensor.shape, torch.bfloat16, tensor.nbytes)
    assert more["lmcache_version"] == "1"
    blending = SimpleNamespace(enable_blending=True)
    assert space["_kvpatch_positions"](blending, more["cached_positions"]) == range(300, 420)
    assert space["_kvpatch_told"](written) == "300:420"


@pytest.mark.parametrize("span", [None, "", "7", "a:b", "1:2:3"])
@pytest.mark.parametrize("release", RELEASES)
def test_a_file_without_positions_is_none_while_blending_and_one_without(
    release: str, span: str | None
) -> None:
    read = source(release)["_kvpatch_positions"]
    with pytest.raises(VersionError):
        read(SimpleNamespace(enable_blending=True), span)
    assert read(SimpleNamespace(enable_blending=False), span) is None


def test_positions_with_gaps_have_no_span() -> None:
    span = source("0.5.6")["_kvpatch_span"]
    assert span(torch.tensor([3, 5, 6])) is None
    assert span(torch.tensor([], dtype=torch.int64)) is None
    assert span(None) is None


@pytest.mark.parametrize("header", [b"", b"short", b"\xff" * 4096, struct.pack("<Q", 2) + b"{}"])
def test_what_is_no_header_tells_no_positions(header: bytes) -> None:
    assert source("0.5.6")["_kvpatch_told"](header) is None


@pytest.mark.parametrize("release", RELEASES)
def test_a_stored_chunk_comes_back_to_its_engine_and_to_another_one(
    release: str, engines: Engines
) -> None:
    one, keys = engines.start(release), layers(12345)
    engines.settle(*put(one, keys, 5, 10.0))
    for backend in (one, engines.start(release)):
        assert backend.batched_contains(keys) == 4
        assert [told(engines.get(backend, key)) for key in keys] == [
            [(10.0 + layer, 5)] for layer in range(4)
        ]


@pytest.mark.parametrize("release", RELEASES)
def test_without_blending_chunks_without_positions_are_stored_and_loaded(
    release: str, engines: Engines
) -> None:
    backend, key = engines.start(release, blending=False), Key(12345)
    engines.settle(backend.submit_put_task(key, Chunk(None, 3.0)))
    other = engines.start(release, blending=False)
    for found in (backend, other):
        assert found.batched_contains([key]) == 1
        assert float(engines.get(found, key)[0].tensor.max()) == 3.0
    assert engines.start(release).batched_contains([key]) == 0


# One write a chunk


@pytest.mark.parametrize("release", RELEASES)
def test_of_two_requests_in_one_step_the_first_one_stores_the_chunk(
    release: str, engines: Engines
) -> None:
    backend, keys = engines.start(release), layers(12345)
    slow(backend, {keys[0]: 0.1, keys[2]: 0.05})
    futures = []
    for key in keys:
        futures += put(backend, [key], 6, 10.0) + put(backend, [key], 192, 20.0)
    engines.settle(*futures)
    assert backend.batched_contains(keys) == 4
    assert [told(engines.get(backend, key)) for key in keys] == [
        [(10.0 + layer, 6)] for layer in range(4)
    ]
    assert not backend.put_tasks
    assert not backend._kvpatch_writing


@pytest.mark.parametrize("release", RELEASES)
def test_no_layer_is_written_for_a_chunk_that_another_request_began(
    release: str, engines: Engines
) -> None:
    backend, keys = engines.start(release), layers(12345)
    # The first request finds no room for layer 2, and the second one does.
    first = put(backend, [keys[0], keys[1], keys[3]], 6, 10.0)
    engines.settle(*first, *put(backend, keys[1:], 192, 20.0))
    assert backend.batched_contains(keys) == 2
    engines.settle(*put(backend, [keys[2]], 6, 10.0))
    assert backend.batched_contains(keys) == 4


@pytest.mark.parametrize("release", RELEASES)
def test_of_two_engines_on_one_folder_one_stores_the_chunk(release: str, engines: Engines) -> None:
    one, two, keys = engines.start(release), engines.start(release), layers(12345)
    slow(one, {keys[0]: 0.05, None: 0.1})
    slow(two, {keys[0]: 0.1})
    engines.settle(*put(one, keys, 6, 10.0), *put(two, keys, 192, 20.0))
    for backend in (one, two, engines.start(release)):
        assert backend.batched_contains(keys) == 4
        assert [told(engines.get(backend, key)) for key in keys] == [
            [(10.0 + layer, 6)] for layer in range(4)
        ]
    assert not [path for path in engines.folder.rglob("*") if ".tmp" in path.name]


@pytest.mark.parametrize("release", RELEASES)
def test_files_that_blending_can_not_use_are_written_over(release: str, engines: Engines) -> None:
    keys = layers(12345)
    plain = engines.start(release, blending=False)
    engines.settle(*(plain.submit_put_task(key, Chunk(None, 1.0)) for key in keys))
    backend = engines.start(release)
    assert backend.batched_contains(keys) == 0
    engines.settle(*put(backend, keys, 6, 10.0))
    assert backend.batched_contains(keys) == 4
    assert told(engines.get(backend, keys[3])) == [(13.0, 6)]


@pytest.mark.parametrize("release", RELEASES)
def test_a_chunk_whose_writer_died_before_the_second_file_is_found_again(
    release: str, engines: Engines
) -> None:
    one, keys = engines.start(release), layers(12345)
    engines.settle(*put(one, keys, 6, 10.0))
    path = Path(one._key_to_path(keys[0])[0] + ".metadata")
    path.unlink()
    two = engines.start(release)
    assert two.batched_contains(keys) == 0
    engines.settle(*put(two, keys, 192, 20.0))
    assert two.batched_contains(keys) == 4
    assert told(engines.get(two, keys[0])) == [(10.0, 6)]


def test_where_there_are_no_hard_links_the_first_file_keeps_its_name_too(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    one, two, keys = engines.start("0.5.6"), engines.start("0.5.6"), layers(12345)
    engines.settle(*put(one, keys, 6, 10.0))
    engines.settle(*put(two, keys, 192, 20.0))
    assert two.batched_contains(keys) == 4
    assert told(engines.get(two, keys[0])) == [(10.0, 6)]


# Chunks that are no longer what they were


@pytest.mark.parametrize("release", RELEASES)
def test_a_chunk_whose_layers_are_of_different_places_is_a_miss(
    release: str, engines: Engines
) -> None:
    one, keys = engines.start(release), layers(12345)
    engines.settle(*put(one, keys, 6, 10.0))
    path = Path(one._key_to_path(keys[2])[0])
    # As before KV009 wrote a chunk once: the data of one request beside the metadata of another.
    content = path.read_bytes()
    assert b'"6:9"' in content[:HEADER]
    path.write_bytes(content.replace(b'"6:9"', b'"5:8"', 1))
    two = engines.start(release)
    assert two.batched_contains(keys) == 2
    assert two.batched_contains([*layers(999), *keys]) == 0


@pytest.mark.parametrize("release", RELEASES)
def test_a_file_that_was_replaced_since_it_was_looked_up_is_not_loaded(
    release: str, engines: Engines
) -> None:
    one, keys = engines.start(release), layers(12345)
    engines.settle(*put(one, keys, 6, 10.0))
    assert one.batched_contains(keys) == 4
    for path in engines.folder.rglob("*.data*"):
        path.unlink()
    engines.settle(*put(engines.start(release), keys, 192, 20.0))
    with pytest.raises(RuntimeError, match="is gone, broken or another one than was looked up"):
        engines.get(one, keys[0])
    assert one.memory_allocator.free == 99
    assert one.batched_contains([keys[0]]) == 1
    assert told(engines.get(one, keys[0])) == [(20.0, 192)]


@pytest.mark.parametrize("release", RELEASES)
def test_a_lost_chunk_fails_the_load_and_gives_the_others_back(
    release: str, engines: Engines
) -> None:
    backend, keys = engines.start(release), [Key(12345), Key(67890)]
    for key in keys:
        engines.settle(*put(backend, [key], 6, 10.0))
    Path(backend._key_to_path(keys[1])[0]).unlink()
    with pytest.raises(RuntimeError, match=r"1 of 2 chunks: the file of .*67890.* is gone"):
        engines.get(backend, *keys)
    assert backend.memory_allocator.free == 99


# Files that were deleted to make room


def delete(backend: Any, keys: list[Key], *suffixes: str) -> None:
    """Delete files of a running engine, as an operator does."""
    for key in keys:
        for suffix in suffixes:
            Path(backend._key_to_path(key)[0] + suffix).unlink()


@pytest.mark.parametrize("suffixes", [("",), ("", ".metadata")])
@pytest.mark.parametrize("blending", [True, False])
@pytest.mark.parametrize("release", RELEASES)
def test_a_chunk_whose_files_are_gone_is_a_miss_and_is_stored_anew(
    release: str, blending: bool, suffixes: tuple[str, ...], engines: Engines
) -> None:
    backend, gone, kept = engines.start(release, blending=blending), layers(12345), layers(67890)
    engines.settle(*put(backend, gone, 6, 10.0), *put(backend, kept, 9, 20.0))
    delete(backend, gone, *suffixes)
    # A store asks for the first layer alone, without a lookup where one before it is a miss.
    assert [backend.contains(keys[0]) for keys in (gone, kept)] == [False, True]
    assert [backend.batched_contains(keys) for keys in (gone, kept)] == [0, 4]
    # One that starts now finds the same.
    late = engines.start(release, blending=blending)
    asyncio.run_coroutine_threadsafe(late._scan_metadata(), engines.loop).result(30)
    assert [late.batched_contains(keys) for keys in (gone, kept)] == [0, 4]
    engines.settle(*put(backend, gone, 192, 30.0))
    assert backend.batched_contains(gone) == 4
    assert told(engines.get(backend, gone[3], kept[0])) == [(33.0, 192), (20.0, 9)]


@pytest.mark.parametrize("release", RELEASES)
def test_a_chunk_of_which_one_layer_is_gone_is_a_miss(release: str, engines: Engines) -> None:
    backend, keys = engines.start(release), layers(12345)
    engines.settle(*put(backend, keys, 6, 10.0))
    assert backend.batched_contains(keys) == 4
    delete(backend, keys[2:3], "", ".metadata")
    assert backend.batched_contains(keys) == 2
    engines.settle(*put(backend, keys[2:3], 6, 10.0))
    assert backend.batched_contains(keys) == 4


@pytest.mark.parametrize("release", RELEASES)
def test_a_folder_that_was_removed_is_made_again(release: str, engines: Engines) -> None:
    backend, keys = engines.start(release), layers(12345)
    engines.settle(*put(backend, keys, 6, 10.0))
    shutil.rmtree(engines.folder)
    # Another chunk in the same folder, which was not asked for since.
    other = layers(12349)
    engines.settle(*put(backend, other, 9, 20.0))
    assert [backend.batched_contains(found) for found in (keys, other)] == [0, 4]
    assert told(engines.get(backend, other[1])) == [(21.0, 9)]
    assert engines.start(release).batched_contains(other) == 4


@pytest.mark.parametrize("release", RELEASES)
def test_a_key_that_a_lookup_forgets_during_a_load_fails_that_load_alone(
    release: str, engines: Engines
) -> None:
    backend, key = engines.start(release), Key(12345)
    engines.settle(*put(backend, [key], 6, 10.0))

    def load(*_: Any) -> int:
        delete(backend, [key], "", ".metadata")
        assert not backend.contains(key)
        return -1

    backend._load_gds = load
    assert backend.batched_get_blocking([key]) == [None]


# Room in the buffer


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("release", RELEASES)
def test_a_load_waits_for_the_writes_that_hold_the_buffer(
    release: str, pooled: bool, engines: Engines
) -> None:
    room = Room(2)
    backend, keys = engines.start(release, room), [Key(12345), Key(23456)]
    for key in keys:
        engines.settle(*put(backend, [key], 6, 10.0))
    slow(backend, {None: 0.3})
    held = [room.allocate((2, 3, 4), None) for _ in range(2)]
    futures = []
    for number, chunk in enumerate(held):
        assert chunk is not None
        futures.append(backend.submit_put_task(Key(70000 + number), chunk))
        chunk.ref_count_down()
    assert room.free == 0
    backend.use_thread_pool = pooled
    if not pooled:
        backend.batched_get_blocking = lambda asked: [backend.get_blocking(key) for key in asked]
    assert told(engines.get(backend, *keys)) == [(10.0, 6)] * 2
    engines.settle(*futures)


@pytest.mark.parametrize("release", RELEASES)
def test_a_buffer_that_no_write_holds_is_too_small_and_that_is_said_at_once(
    release: str, engines: Engines
) -> None:
    backend, keys = engines.start(release, Room(1)), [Key(12345), Key(23456)]
    for key in keys:
        engines.settle(*put(backend, [key], 6, 10.0))
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"1 of 2 chunks: gds_buffer_size, 2 MiB, has no room"):
        engines.get(backend, *keys)
    assert time.monotonic() - begun < 5
    assert backend.memory_allocator.free == 1


def test_a_write_that_hangs_is_waited_for_once() -> None:
    backend = object.__new__(source("0.5.6")["GdsBackend"])
    backend.put_lock, backend.memory_allocator = threading.Lock(), Room(0)
    backend.put_tasks, backend._kvpatch_stuck = {Key(1)}, set()
    begun = time.monotonic()
    assert backend._kvpatch_allocate((2, 3, 4), None, None, 0.2) is None
    assert time.monotonic() - begun >= 0.2
    begun = time.monotonic()
    assert backend._kvpatch_allocate((2, 3, 4), None, None, 30.0) is None
    assert time.monotonic() - begun < 5


# Copies to the buffer


@pytest.mark.parametrize("release", RELEASES)
def test_copied_chunks_keep_their_keys_and_positions_where_another_is_stored(release: str) -> None:
    space = executed(
        patched_text(release, MANAGER),
        ["allocate_and_copy_objects"],
        torch=torch,
        torch_dev=SimpleNamespace(stream=lambda _stream: threading.Lock()),
    )
    space["torch"] = SimpleNamespace(cuda=SimpleNamespace(stream=lambda _s: threading.Lock()))
    sources = [Chunk(torch.arange(n, n + 3), n) for n in range(3)]
    allocator = SimpleNamespace(
        contains=lambda key: key == "a", allocate=lambda *_args, **_kwargs: Chunk()
    )
    keys, copies = space["allocate_and_copy_objects"](allocator, ["a", "b", "c"], sources, None)
    assert list(keys) == ["b", "c"]
    assert [int(copy.tensor.max()) for copy in copies] == [1, 2]
    assert [copy.meta.cached_positions.tolist() for copy in copies] == [[1, 2, 3], [2, 3, 4]]
