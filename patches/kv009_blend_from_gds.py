"""Keep the positions of chunks in GPUDirect storage, and load chunks from it for blending."""

from __future__ import annotations

import ast
from textwrap import indent
from typing import TYPE_CHECKING

from kvpatch.blending import as_written, find, function, released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patch import Example, ExampleKind, Judgement, Patch, Target

if TYPE_CHECKING:
    import libcst as cst
    from packaging.version import Version

BACKEND = "lmcache/v1/storage_backend/gds_backend.py"
MANAGER = "lmcache/v1/storage_backend/storage_manager.py"
ENGINE = "lmcache/v1/cache_engine.py"

SPAN = '''
def _kvpatch_span(positions):
    """The positions of a chunk as "first:end"; None where there are none, or with gaps."""
    places = [] if positions is None else positions.tolist()
    if not places or places != list(range(places[0], places[0] + len(places))):
        return None
    return f"{places[0]}:{places[-1] + 1}"
'''

POSITIONS = '''
# kvpatch KV009: blending moves keys from the positions that they were computed at.
def _kvpatch_positions(config, span):
    """The positions that a span tells; a chunk without them is none that could be blended."""
    try:
        first, end = map(int, str(span).split(":"))
    except ValueError:
        if config.enable_blending:
            raise UnsupportedMetadataVersion("kvpatch: stored without positions") from None
        return None
    return range(first, end)
'''

TOLD = '''
def _kvpatch_told(header):
    """The span that the header of a file tells; None where it tells none that can be used."""
    try:
        more = unpack_metadata(header)[4]
    except (struct.error, ValueError, KeyError, TypeError):
        return None
    usable = more.get("lmcache_version") == str(_METADATA_VERSION)
    return more.get("cached_positions") if usable else None
'''

HEADER = '''
def _kvpatch_header(path):
    """The header of a data file; empty where it can't be read."""
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read(_METADATA_MAX_SIZE)
    except OSError:
        return b""
'''

PUBLISH = '''
def _kvpatch_publish(tmp_path, path, header, once):
    """Give a whole file its name, and return its header; None where another file keeps the name.

    A name that is given once stays with the file that has it, unless that can't be blended.
    """
    if once:
        try:
            os.link(tmp_path, path)
        except OSError:
            # The name is taken, or the file system knows no hard links.
            there = _kvpatch_header(path)
            if _kvpatch_told(there):
                # Whoever wrote it may have died before it wrote this.
                with open(tmp_path, "wb") as stream:
                    stream.write(there)
                os.rename(tmp_path, path + _METADATA_FILE_SUFFIX)
                return None
        else:
            os.unlink(tmp_path)
            return header
    os.rename(tmp_path, path)
    return header
'''

GET = """
async def batched_get_non_blocking(self, lookup_id, keys, transfer_spec=None):
    # kvpatch KV009: layerwise loading and blending ask for the chunks of one layer at a time.
    chunks = await asyncio.to_thread(self.batched_get_blocking, keys)
    lost = [key for key, chunk in zip(keys, chunks) if chunk is None]
    if lost or len(chunks) != len(keys):
        for chunk in chunks:
            if chunk is not None:
                chunk.ref_count_down()
        with self.hot_lock:
            gone = [key for key in lost if key not in self.hot_cache]
        if gone:
            why = f"the file of {gone[0]} is gone, broken or another one than was looked up"
        else:
            why = (
                f"gds_buffer_size, {self.config.gds_buffer_size} MiB, has no room for "
                f"{lost[0] if lost else keys[-1]}, or its file is too short"
            )
        raise RuntimeError(
            f"kvpatch: GDS could not load {len(lost)} of {len(keys)} chunks: {why} "
            "(see the errors above)"
        )
    return chunks
"""

CONTAINS = """
def batched_contains(self, keys, pin=False):
    # kvpatch KV009: layers that were stored in different places can't be turned as one chunk.
    found = super().batched_contains(keys, pin)
    chunk = place = None
    with self.hot_lock:
        for number, key in enumerate(keys[:found]):
            entry = self.hot_cache.get(key)
            if entry is None:
                return number
            if key.chunk_hash != chunk:
                chunk, place = key.chunk_hash, entry.cached_positions
            elif entry.cached_positions != place:
                for same in keys:
                    # What another engine has put there since is read when it is asked for again.
                    self.hot_cache.pop(same, None)
                return number
    return found
"""

THERE = '''
def _kvpatch_there(self, key):
    """Whether the file of a known key is still there; room is made by deleting files."""
    with self.hot_lock:
        entry = self.hot_cache.get(key)
    if entry is None or os.path.exists(entry.path):
        return entry is not None
    with self.hot_lock:
        if self.hot_cache.get(key) is entry:
            del self.hot_cache[key]
    return False
'''

CLAIM = '''
def _kvpatch_claim(self, key):
    """Whether a layer of a chunk is to be written, by the one who asks and by nobody else."""
    with self.put_lock, self.hot_lock:
        if key in self.put_tasks or (_kvpatch_first_layer(key) == key and key in self.hot_cache):
            return False
        self.put_tasks.add(key)
        return True
'''

FIRST = '''
def _kvpatch_first_layer(key):
    """The key of the first layer of a chunk; the key itself where it is of all layers."""
    return key.get_first_layer() if getattr(key, "layer_id", 0) else key
'''

BEGUN = '''
def _kvpatch_begun(self, key, writing):
    """Remember the write of a first layer while it runs; the other layers follow it."""
    if _kvpatch_first_layer(key) == key:
        self._kvpatch_writing[key] = writing
        writing.add_done_callback(lambda _: self._kvpatch_writing.pop(key, None))
    return writing
'''

FOLLOWS = '''
async def _kvpatch_follows(self, key, positions):
    """Whether a layer is to be written: where the first one was stored from, and once."""
    first = _kvpatch_first_layer(key)
    if first == key or not self.config.enable_blending:
        return True
    writing = self._kvpatch_writing.get(first)
    if writing is not None:
        await asyncio.wait([asyncio.wrap_future(writing)])
    place = _kvpatch_positions(self.config, _kvpatch_span(positions))
    with self.hot_lock:
        begun, there = self.hot_cache.get(first), self.hot_cache.get(key)
    if begun is None or begun.cached_positions != place:
        return False
    return there is None or there.cached_positions != place
'''

READ = '''
def _kvpatch_read(self, filename):
    """What is told of a data file; while blending by its own header, which is of the same write."""
    data = filename.removesuffix(_METADATA_FILE_SUFFIX)
    try:
        os.stat(data)
        return self._read_metadata_info(data if self.config.enable_blending else filename)
    except FileNotFoundError:
        raise UnsupportedMetadataVersion("kvpatch: stored without data") from None
'''

PLACED = '''
def _kvpatch_placed(self, key, path, memory_obj):
    """Give a loaded chunk its positions; whether its file is the one that was looked up."""
    # The object may have held another chunk before.
    memory_obj.metadata.cached_positions = None
    with self.hot_lock:
        entry = self.hot_cache.get(key)
    place = entry.cached_positions if entry else None
    if self.config.enable_blending:
        if place is None or _kvpatch_told(_kvpatch_header(path)) != f"{place.start}:{place.stop}":
            logger.error("kvpatch: %s is another file than was looked up", path)
            with self.hot_lock:
                self.hot_cache.pop(key, None)
            return False
    if place is not None:
        memory_obj.metadata.cached_positions = torch.arange(place.start, place.stop)
    return True
'''

ALLOCATE = '''
def _kvpatch_allocate(self, shape, dtype, fmt, patience=60.0):
    """Room for a chunk to load, after the writes that hold the buffer; None where there is none."""
    end = time.monotonic() + patience
    while True:
        with self.put_lock:
            running = self.put_tasks - self._kvpatch_stuck
        memory_obj = self.memory_allocator.allocate(shape, dtype, fmt=fmt)
        if memory_obj is not None or not running:
            return memory_obj
        if time.monotonic() >= end:
            logger.error("kvpatch: writes to GDS hold its buffer for %s seconds", patience)
            self._kvpatch_stuck |= running
        else:
            time.sleep(0.01)
'''

_HELPERS = {
    "_kvpatch_span": SPAN,
    "_kvpatch_positions": POSITIONS,
    "_kvpatch_told": TOLD,
    "_kvpatch_header": HEADER,
    "_kvpatch_publish": PUBLISH,
    "_kvpatch_first_layer": FIRST,
}
_METHODS = {
    "_kvpatch_read": READ,
    "_kvpatch_there": THERE,
    "_kvpatch_claim": CLAIM,
    "_kvpatch_begun": BEGUN,
    "_kvpatch_follows": FOLLOWS,
    "_kvpatch_placed": PLACED,
    "_kvpatch_allocate": ALLOCATE,
    "batched_contains": CONTAINS,
    "batched_get_non_blocking": GET,
}

_TASKS = "self.put_tasks: set[CacheEngineKey] = set()"
_TASKS_TOO = """
# kvpatch KV009: the writes that other layers wait for, and those that no load waits for.
self._kvpatch_writing = {}
"""
_STUCK = "self._kvpatch_stuck = set()"
_COUNTED_UP = "memory_obj.ref_count_up()"
_CLAIMED = """
# kvpatch KV009: the first write of a layer wins, so that no chunk is a mixture.
if not self._kvpatch_claim(key):
    written = Future()
    written.set_result(None)
    return written
"""
_BEGUN = "return self._kvpatch_begun(key, future)"
_PATH = "path, subdir_key, l1_dir, l2_dir = self._key_to_path(key)"
_FOLLOWED = """
# kvpatch KV009: all layers of a chunk are of the request that wrote its first one.
if not await self._kvpatch_follows(key, memory_obj.metadata.cached_positions):
    return
"""
_SAVE = (
    "asyncio.to_thread(self._save_gds, path, tmp, kv_chunk, fmt, self.gds_base_pointer, "
    "memory_obj.metadata.address{})"
)
_SAVED = ("memory_obj.metadata.cached_positions", "_kvpatch_first_layer(key) == key")
_PACK = "pack_metadata(kv_chunk, fmt=fmt, lmcache_version=str(_METADATA_VERSION))"
_FOLDER = """
# kvpatch KV009: a folder that was removed to make room is made again.
os.makedirs(os.path.dirname(path), exist_ok=True)
"""
_PACKED = """
# kvpatch KV009: readers that know no positions ignore them.
span = _kvpatch_span(positions)
"""
_PACKED_TOO = """
metadata = pack_metadata(
    kv_chunk,
    fmt=fmt,
    lmcache_version=str(_METADATA_VERSION),
    **({"cached_positions": span} if span else {}),
)
"""
_NAMED = "os.rename(tmp_path, path)"
_PUBLISHED = "metadata = _kvpatch_publish(tmp_path, path, metadata, once and span)"
_READ = (
    "DiskCacheMetadata(filename.removesuffix(_METADATA_FILE_SUFFIX), size, shape, dtype, {}, fmt)"
)
_READ_POSITIONS = '_kvpatch_positions(self.config, extra_metadata.get("cached_positions"))'
_READ_INFO = "self._read_metadata_info(filename)"
_INSERT = "self.insert_key(key, memory_obj)"
_INSERTED = """
# kvpatch KV009: another engine was first; its file is read when it is asked for.
if metadata is None:
    return
"""
_INSERTED_TOO = "self.insert_key(key, memory_obj, metadata)"
_KEPT = "DiskCacheMetadata(path, size, shape, dtype, {}, fmt)"
_KEPT_POSITIONS = "_kvpatch_positions(self.config, _kvpatch_told(header))"
_ALLOCATE = "self.memory_allocator.allocate(shape, dtype, fmt=fmt)"
_ALLOCATED = "self._kvpatch_allocate(shape, dtype, fmt)"
_ALLOCATING = (
    "_load_bytes_from_disk_with_allocation",
    "_batched_get_blocking_by_thread_pool_impl",
)
_KNOWN = """
if res:
    return True
"""
_KNOWN_THERE = """
# kvpatch KV009: a chunk whose file is gone is a miss.
if res and self._kvpatch_there(key):
    return True
"""
_FORGET = "self.hot_cache.pop(key)"
_FORGOTTEN = "self.hot_cache.pop(key, None)"
_LOADED = """
# kvpatch KV009: keys are turned from where the file says that they were computed.
if not self._kvpatch_placed(key, path, memory_obj):
    memory_obj.ref_count_down()
    return None
"""
_COPIED = """
# kvpatch KV009: a chunk that moves to another buffer keeps its positions.
memory_obj.meta.cached_positions = src_memory_obj.meta.cached_positions
"""
_BY_NUMBER = "return keys[: len(allocated_objects)], allocated_objects"
_COUNTED = """
for mem_obj in to_count_down:
    mem_obj.ref_count_down()
"""
_DONE = """
# kvpatch KV009: a device buffer is reused at once, so the copies from it must be done.
if any(obj.tensor is not None and obj.tensor.is_cuda for obj in to_count_down):
    torch.cuda.synchronize()
"""


def keep_positions(module: cst.Module) -> cst.Module:
    """Write positions to the header of a file, read them from it, and load chunks by layer.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    from kvpatch import anchors, rewrite

    def put(where: str, old: str, place: int, new: str) -> cst.Module:
        return anchors.replace_expression(
            module, f"GdsBackend.{where}", old, lambda call: anchors.argument(call, place, new)
        )

    def write(where: str, old: str, *new: str) -> cst.Module:
        return anchors.replace(
            module, f"GdsBackend.{where}", old, lambda line: anchors.like(line, module, *new)
        )

    def call(where: str, old: str, new: str) -> cst.Module:
        return anchors.replace_expression(module, f"GdsBackend.{where}", old, lambda _: new)

    module = write("__init__", _TASKS, _TASKS, _TASKS_TOO, _STUCK)
    module = write("submit_put_task", _COUNTED_UP, _CLAIMED, _COUNTED_UP)
    module = write("submit_put_task", "return future", _BEGUN)
    where = "_async_save_bytes_to_disk"
    module = write(where, _PATH, _FOLLOWED, _PATH)
    module = put(where, _SAVE.format(""), 7, _SAVED[0])
    module = put(where, _SAVE.format(f", {_SAVED[0]}"), 8, _SAVED[1])
    module = write(where, _INSERT, _INSERTED, _INSERTED_TOO)
    module = write("contains", _KNOWN, _KNOWN_THERE)
    module = put("_read_metadata", _READ.format("None"), 4, _READ_POSITIONS)
    module = call("_read_metadata", _READ_INFO, "self._kvpatch_read(filename)")
    module = anchors.add_parameter(module, "GdsBackend.insert_key", "header=None")
    module = put("insert_key", _KEPT.format("None"), 4, _KEPT_POSITIONS)
    module = anchors.add_parameter(module, "GdsBackend._save_gds", "positions=None")
    module = anchors.add_parameter(module, "GdsBackend._save_gds", "once=False")
    module = write("_save_gds", f"metadata = {_PACK}", _FOLDER, _PACKED, _PACKED_TOO)
    module = write("_save_gds", _NAMED, _PUBLISHED)
    for where in _ALLOCATING:
        module = call(where, _ALLOCATE, _ALLOCATED)
    where = "_load_bytes_from_disk_with_memory"
    module = call(where, _FORGET, _FORGOTTEN)
    module = write(where, "return memory_obj", _LOADED, "return memory_obj")
    for method in _METHODS.values():
        module = anchors.append_method(module, "GdsBackend", method)
    for helper in _HELPERS.values():
        module = rewrite.append_function(module, helper)
    return module


def copy_positions(module: cst.Module) -> cst.Module:
    """Keep the positions of a chunk that is copied to the GDS buffer, and pair it with its key.

    Raises:
        Refusal: where the anchors are not there exactly once.
    """
    from kvpatch import anchors

    name = "allocate_and_copy_objects"
    more = ["allocated_keys.append(key)"] if _keys_by_number(module) else []

    def put(anchor: str, *texts: str) -> cst.Module:
        return anchors.replace(
            module, name, anchor, lambda line: anchors.like(line, module, *texts)
        )

    appended = "allocated_objects.append(memory_obj)"
    module = put(appended, _COPIED, appended, *more)
    if more:
        module = put("allocated_objects = []", "allocated_objects = []", "allocated_keys = []")
        module = put(_BY_NUMBER, "return allocated_keys, allocated_objects")
    return module


def _keys_by_number(module: cst.Module) -> bool:
    """Whether the release returns as many keys as chunks were copied, whichever those were."""
    return "keys[: len(allocated_objects)]" in module.code


def synchronise_first(module: cst.Module) -> cst.Module:
    """Wait for the copies from device buffers before the buffers are given back.

    Raises:
        Refusal: where the anchor is not there exactly once.
    """
    from kvpatch import anchors, rewrite

    wait = rewrite.statement(module, _DONE)
    return anchors.replace(
        module,
        "LMCacheEngine.retrieve_layer",
        _COUNTED,
        lambda loop: [rewrite.spaced(wait, 1), loop],
    )


def blends_from_gds(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether chunks come back from GDS with the positions and keys that they went with."""
    if function(module, "allocate_and_copy_objects"):
        return _copies(function(module, "allocate_and_copy_objects"))
    if function(module, "LMCacheEngine.retrieve_layer"):
        return _waits(function(module, "LMCacheEngine.retrieve_layer"))
    return _keeps(module)


def _copies(copying: ast.AST | None) -> Judgement:
    kept = "memory_obj.meta.cached_positions = src_memory_obj.meta.cached_positions"
    if not find(copying, kept):
        return Judgement(False, "a chunk that moves to the GDS buffer loses its positions")
    if not find(copying, "allocated_keys.append(key)") or find(copying, "return keys[___], ___"):
        return Judgement(False, "chunks are paired with wrong keys where another one is stored")
    if not find(copying, "return allocated_keys, allocated_objects"):
        return Judgement(False, "the keys of the copied chunks are not returned")
    return Judgement(True, "copied chunks keep their positions and keys")


def _waits(retrieving: ast.AST | None) -> Judgement:
    waits = _lines(find(retrieving, "torch.cuda.synchronize()"))
    counts = _lines(find(retrieving, "___.ref_count_down()"))
    if counts and waits and min(waits) < min(counts):
        return Judgement(True, "buffers are given back after the copies from them")
    return Judgement(False, "device buffers are given back while they are copied from")


def _lines(nodes: list[ast.AST]) -> list[int]:
    return [node.lineno for node in nodes if isinstance(node, ast.expr)]


_WANTED = (
    ("__init__", "self._kvpatch_writing = {}", "the writes that run are not known"),
    ("__init__", _STUCK, "the writes that run are not known"),
    ("submit_put_task", _CLAIMED, "a layer of a chunk is written twice at once"),
    ("submit_put_task", _BEGUN, "the writes that run are not known"),
    ("_async_save_bytes_to_disk", _FOLLOWED, "layers of one chunk are of different requests"),
    (
        "_async_save_bytes_to_disk",
        _SAVE.format("".join(f", {argument}" for argument in _SAVED)),
        "positions are not given to the writer",
    ),
    ("_async_save_bytes_to_disk", _INSERTED, "a chunk of another engine is taken for this one's"),
    ("_async_save_bytes_to_disk", _INSERTED_TOO, "positions of a new chunk are not the file's"),
    ("contains", _KNOWN_THERE, "a chunk whose file is gone is taken for a hit"),
    ("_save_gds", _FOLDER, "a folder that was removed is not made again"),
    ("_save_gds", "span = _kvpatch_span(positions)", "positions are not written to the file"),
    ("_save_gds", _PACKED_TOO, "positions are not written to the file"),
    ("_save_gds", _PUBLISHED, "a chunk of another engine is written over"),
    ("_read_metadata", _READ.format(_READ_POSITIONS), "positions are not read from the file"),
    ("_read_metadata", "self._kvpatch_read(filename)", "positions are not those of the data"),
    ("insert_key", _KEPT.format(_KEPT_POSITIONS), "positions of a new chunk are not kept"),
    ("_load_bytes_from_disk_with_memory", _LOADED, "loaded chunks have no positions"),
    ("_load_bytes_from_disk_with_memory", _FORGOTTEN, "a key that was forgotten ends a load"),
    *((name, _ALLOCATED, "a load does not wait for writes") for name in _ALLOCATING),
)
_LEFT = (("_save_gds", _NAMED), ("submit_put_task", "return future"))


def _keeps(module: ast.Module) -> Judgement:
    for name, pattern, fault in _WANTED:
        if not find(function(module, f"GdsBackend.{name}"), pattern):
            return Judgement(False, fault)
    for name, pattern in _LEFT:
        if find(function(module, f"GdsBackend.{name}"), pattern):
            return Judgement(False, f"{name} goes on as released in another place")
    if not as_written(function(module, "GdsBackend.batched_get_non_blocking"), GET):
        return Judgement(False, "chunks can't be loaded from GDS layer by layer")
    texts = {f"GdsBackend.{name}": text for name, text in _METHODS.items()} | _HELPERS
    if not all(as_written(function(module, name), text) for name, text in texts.items()):
        return Judgement(False, "a function that keeps positions was edited")
    return Judgement(True, "chunks come back from GDS with their positions")


PATCH = Patch(
    id="KV009",
    distribution="lmcache",
    targets=(
        Target(BACKEND, ">=0.4.4", keep_positions),
        Target(MANAGER, ">=0.4.4", copy_positions),
        Target(ENGINE, ">=0.4.4", synchronise_first),
    ),
    versions=">=0.4.4,<0.5.7.dev0",
    why="With blending, the first load that GDS serves kills the engine: its back end has no "
    "non-blocking get and forgets the positions that keys were computed at. Before LMCache "
    "0.5.4rc3 it also pairs chunks with wrong keys when requests store at the same time.",
    how="Writes each chunk's positions to the metadata in its file's header, which other readers "
    "ignore, and reads them back; lets the first write of a chunk win over all engines, "
    "and takes chunks of different writes, and files without positions, as not there while "
    "blending; takes a chunk whose file was deleted as not there and makes a deleted folder again; "
    "loads a layer's chunks without blocking, after the writes that hold the buffer, and "
    "fails with an error where one is lost; "
    "waits for device copies before buffers are given back; pairs chunks with their own keys.",
    upstream="https://github.com/LMCache/LMCache/issues/3559",
    retire_when="An LMCache release blends chunks that GDS loads.",
    post_condition=blends_from_gds,
    faithful=released_elsewhere,
    cures=("S",),
    proved="run on a CPU across a restart, with a stand-in for cuFile: vLLM 0.32.0 with LMCache "
    "0.5.6; concurrent stores: executed by tests",
)

_STOCK_MANAGER = """
def allocate_and_copy_objects(allocator_backend, keys, src_memory_objs, stream):
    allocated_objects = []
    for key, src_memory_obj in zip(keys, src_memory_objs, strict=False):
        if allocator_backend.contains(key):
            continue
        memory_obj = allocator_backend.allocate(src_memory_obj.get_shape())
        memory_obj.tensor.copy_(src_memory_obj.tensor)
        allocated_objects.append(memory_obj)

    stream.synchronize()
    return keys[: len(allocated_objects)], allocated_objects
"""

_PATCHED_MANAGER = """
def allocate_and_copy_objects(allocator_backend, keys, src_memory_objs, stream):
    allocated_objects = []
    allocated_keys = []
    for key, src_memory_obj in zip(keys, src_memory_objs, strict=False):
        if allocator_backend.contains(key):
            continue
        memory_obj = allocator_backend.allocate(src_memory_obj.get_shape())
        memory_obj.tensor.copy_(src_memory_obj.tensor)
        # kvpatch KV009: a chunk that moves to another buffer keeps its positions.
        memory_obj.meta.cached_positions = src_memory_obj.meta.cached_positions
        allocated_objects.append(memory_obj)
        allocated_keys.append(key)

    stream.synchronize()
    return allocated_keys, allocated_objects
"""

_STOCK_ENGINE = """
class LMCacheEngine:
    def retrieve_layer(self, tokens):
        to_count_down = []
        for layer_id in range(self.num_layers):
            to_count_down.extend(task.result())

        for mem_obj in to_count_down:
            mem_obj.ref_count_down()
        yield None
"""

_PATCHED_ENGINE = """
class LMCacheEngine:
    def retrieve_layer(self, tokens):
        to_count_down = []
        for layer_id in range(self.num_layers):
            to_count_down.extend(task.result())

        # kvpatch KV009: a device buffer is reused at once, so the copies from it must be done.
        if any(obj.tensor is not None and obj.tensor.is_cuda for obj in to_count_down):
            torch.cuda.synchronize()

        for mem_obj in to_count_down:
            mem_obj.ref_count_down()
        yield None
"""

_STOCK_BACKEND = """
class GdsBackend:
    def __init__(self, config):
        self.put_lock = threading.Lock()
        self.put_tasks: set[CacheEngineKey] = set()

    def _read_metadata(self, key, filename, subdir_key):
        shape, dtype, size, fmt, extra_metadata = self._read_metadata_info(filename)
        metadata = DiskCacheMetadata(
            filename.removesuffix(_METADATA_FILE_SUFFIX), size, shape, dtype, None, fmt
        )
        self.hot_cache[key] = metadata

    def contains(self, key, pin=False):
        with self.hot_lock:
            res = key in self.hot_cache
        if res:
            return True
        return False

    def submit_put_task(self, key, memory_obj):
        memory_obj.ref_count_up()
        with self.put_lock:
            self.put_tasks.add(key)
        future = asyncio.run_coroutine_threadsafe(
            self._async_save_bytes_to_disk(key, memory_obj), self.loop
        )
        return future

    async def _async_save_bytes_to_disk(self, key, memory_obj):
        try:
            path, subdir_key, l1_dir, l2_dir = self._key_to_path(key)
            metadata = await asyncio.to_thread(
                self._save_gds,
                path,
                tmp,
                kv_chunk,
                fmt,
                self.gds_base_pointer,
                memory_obj.metadata.address,
            )
            self.insert_key(key, memory_obj)
        finally:
            memory_obj.ref_count_down()

    def insert_key(self, key, memory_obj):
        self.hot_cache[key] = DiskCacheMetadata(path, size, shape, dtype, None, fmt)

    def _load_bytes_from_disk_with_allocation(self, key, path, dtype, shape, fmt):
        memory_obj = self.memory_allocator.allocate(shape, dtype, fmt=fmt)
        return self._load_bytes_from_disk_with_memory(key, path, memory_obj)

    def _load_bytes_from_disk_with_memory(self, key, path, memory_obj):
        if memory_obj is None:
            return None
        if self._load_gds(path) < 0:
            with self.hot_lock:
                self.hot_cache.pop(key)
        return memory_obj

    def _batched_get_blocking_by_thread_pool_impl(self, keys):
        for dtype, shape, path, fmt in self.looked_up(keys):
            memory_obj = self.memory_allocator.allocate(shape, dtype, fmt=fmt)
            memory_objs.append(memory_obj)

    def _save_gds(self, path, tmp, kv_chunk, fmt, base_pointer, device_offset):
        metadata = pack_metadata(
            kv_chunk, fmt=fmt, lmcache_version=str(_METADATA_VERSION)
        )
        os.rename(tmp_path, path)
        return metadata
"""


def _patched_backend() -> str:
    """The back end as it is to be: each released line, and what stands for it."""
    pairs = (
        (_TASKS, f"{_TASKS}{_TASKS_TOO}{_STUCK}"),
        (_COUNTED_UP, f"{_CLAIMED}{_COUNTED_UP}"),
        ("return future", _BEGUN),
        (_PATH, f"{_FOLLOWED}{_PATH}"),
        (_INSERT, f"{_INSERTED}{_INSERTED_TOO}"),
        ("return memory_obj", f"{_LOADED}return memory_obj"),
        (_NAMED, _PUBLISHED),
    )
    lines = []
    for line in _STOCK_BACKEND.splitlines():
        bare = line.strip()
        found = dict(pairs).get(bare)
        margin = line[: len(line) - len(line.lstrip())]
        lines += indent(found.strip("\n"), margin).splitlines() if found else [line]
    text = "\n".join(lines) + "\n"
    for old, new in (
        ("size, shape, dtype, None, fmt\n", f"size, shape, dtype, {_READ_POSITIONS}, fmt\n"),
        (_READ_INFO, "self._kvpatch_read(filename)"),
        ("dtype, None, fmt)", f"dtype, {_KEPT_POSITIONS}, fmt)"),
        ("insert_key(self, key, memory_obj)", "insert_key(self, key, memory_obj, header=None)"),
        ("address,\n", "address,\n" + "".join(f"                {one},\n" for one in _SAVED)),
        ("device_offset)", "device_offset, positions=None, once=False)"),
        (_ALLOCATE, _ALLOCATED),
        (_FORGET, _FORGOTTEN),
        (indent(_KNOWN, " " * 8), indent(_KNOWN_THERE, " " * 8)),
        (
            """        metadata = pack_metadata(
            kv_chunk, fmt=fmt, lmcache_version=str(_METADATA_VERSION)
        )
""",
            indent(f"{_FOLDER}{_PACKED}{_PACKED_TOO}".replace("\n\n", "\n").strip("\n"), " " * 8)
            + "\n",
        ),
    ):
        text = text.replace(old, new)
    methods = "".join(indent(method, " " * 4) for method in _METHODS.values())
    helpers = "".join(f"\n\n{helper.lstrip()}" for helper in _HELPERS.values())
    return text + methods + helpers


_PATCHED_BACKEND = _patched_backend()

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "keeps positions in the header and loads chunks by layer",
        "0.5.6",
        _STOCK_BACKEND,
        after=_PATCHED_BACKEND,
        path=BACKEND,
    ),
    Example(
        ExampleKind.REWRITTEN,
        "keeps positions of copied chunks and pairs them with their own keys",
        "0.5.3",
        _STOCK_MANAGER,
        after=_PATCHED_MANAGER,
        path=MANAGER,
    ),
    Example(
        ExampleKind.REWRITTEN,
        "waits for the copies before device buffers are given back",
        "0.5.6",
        _STOCK_ENGINE,
        after=_PATCHED_ENGINE,
        path=ENGINE,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release alone whose GDS back end is another one",
        "0.4.3",
        _STOCK_BACKEND,
        path=BACKEND,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees copied chunks keep positions and keys by hand",
        "0.5.3",
        _PATCHED_MANAGER.replace("        # kvpatch KV009: a chunk that moves", "        # It"),
        path=MANAGER,
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the header is packed in another way",
        "0.5.6",
        _STOCK_BACKEND.replace("fmt=fmt, lmcache_version", "fmt=fmt, version"),
        outcome=Outcome.MISSING,
        reason="nowhere",
        path=BACKEND,
    ),
)
