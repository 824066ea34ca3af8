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

GET = """
async def batched_get_non_blocking(self, lookup_id, keys, transfer_spec=None):
    # kvpatch KV009: layerwise loading and blending ask for the chunks of one layer at a time.
    chunks = await asyncio.to_thread(self.batched_get_blocking, keys)
    lost = [key for key, chunk in zip(keys, chunks) if chunk is None]
    if lost or len(chunks) != len(keys):
        for chunk in chunks:
            if chunk is not None:
                chunk.ref_count_down()
        raise RuntimeError(
            f"kvpatch: GDS could not load {len(lost)} of {len(keys)} chunks, the first is "
            f"{lost[0] if lost else keys[-1]}: its file is gone or broken, or "
            "gds_buffer_size does not hold a whole prompt (see the errors above)"
        )
    return chunks
"""

_SAVE = (
    "asyncio.to_thread(self._save_gds, path, tmp, kv_chunk, fmt, self.gds_base_pointer, "
    "memory_obj.metadata.address{})"
)
_SAVED = "memory_obj.metadata.cached_positions"
_PACK = "pack_metadata(kv_chunk, fmt=fmt, lmcache_version=str(_METADATA_VERSION))"
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
_READ = (
    "DiskCacheMetadata(filename.removesuffix(_METADATA_FILE_SUFFIX), size, shape, dtype, {}, fmt)"
)
_READ_POSITIONS = '_kvpatch_positions(self.config, extra_metadata.get("cached_positions"))'
_KEPT = "DiskCacheMetadata(path, size, shape, dtype, {}, fmt)"
_KEPT_POSITIONS = (
    "_kvpatch_positions(self.config, _kvpatch_span(memory_obj.metadata.cached_positions))"
)
_LOADED = """
# kvpatch KV009: the object may have held another chunk before.
memory_obj.metadata.cached_positions = self._kvpatch_positions_of(key)
"""
_POSITIONS_OF = """
def _kvpatch_positions_of(self, key):
    with self.hot_lock:
        entry = self.hot_cache.get(key)
    positions = entry.cached_positions if entry else None
    return None if positions is None else torch.arange(positions.start, positions.stop)
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

    module = put("_async_save_bytes_to_disk", _SAVE.format(""), 7, _SAVED)
    module = put("_read_metadata", _READ.format("None"), 4, _READ_POSITIONS)
    module = put("insert_key", _KEPT.format("None"), 4, _KEPT_POSITIONS)
    module = anchors.add_parameter(module, "GdsBackend._save_gds", "positions=None")
    module = write("_save_gds", f"metadata = {_PACK}", _PACKED, _PACKED_TOO)
    where = "_load_bytes_from_disk_with_memory"
    module = write(where, "return memory_obj", _LOADED, "return memory_obj")
    for method in (_POSITIONS_OF, GET):
        module = anchors.append_method(module, "GdsBackend", method)
    return rewrite.append_function(rewrite.append_function(module, SPAN), POSITIONS)


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


def _keeps(module: ast.Module) -> Judgement:
    def inside(name: str, pattern: str) -> bool:
        return bool(find(function(module, f"GdsBackend.{name}"), pattern))

    wanted = (
        (
            "_async_save_bytes_to_disk",
            _SAVE.format(f", {_SAVED}"),
            "positions are not given to the writer",
        ),
        (
            "_save_gds",
            _PACKED_TOO.partition("=")[2].strip(),
            "positions are not written to the file",
        ),
        ("_save_gds", "span = _kvpatch_span(positions)", "positions are not written to the file"),
        ("_read_metadata", _READ.format(_READ_POSITIONS), "positions are not read from the file"),
        ("insert_key", _KEPT.format(_KEPT_POSITIONS), "positions of a new chunk are not kept"),
        (
            "_load_bytes_from_disk_with_memory",
            "memory_obj.metadata.cached_positions = self._kvpatch_positions_of(key)",
            "loaded chunks have no positions",
        ),
    )
    for name, pattern, fault in wanted:
        if not inside(name, pattern):
            return Judgement(False, fault)
    if not as_written(function(module, "GdsBackend.batched_get_non_blocking"), GET):
        return Judgement(False, "chunks can't be loaded from GDS layer by layer")
    if not as_written(function(module, "GdsBackend._kvpatch_positions_of"), _POSITIONS_OF):
        return Judgement(False, "the positions of loaded chunks are taken from elsewhere")
    helpers = (("_kvpatch_span", SPAN), ("_kvpatch_positions", POSITIONS))
    if not all(as_written(function(module, name), source) for name, source in helpers):
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
    "ignore, and reads them back; loads a layer's chunks without blocking, and fails with an "
    "error where one is lost; treats files without positions as not there while blending; "
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
    def _read_metadata(self, key, filename, subdir_key):
        shape, dtype, size, fmt, extra_metadata = self._read_metadata_info(filename)
        metadata = DiskCacheMetadata(
            filename.removesuffix(_METADATA_FILE_SUFFIX), size, shape, dtype, None, fmt
        )
        self.hot_cache[key] = metadata

    async def _async_save_bytes_to_disk(self, key, memory_obj):
        metadata = await asyncio.to_thread(
            self._save_gds,
            path,
            tmp,
            kv_chunk,
            fmt,
            self.gds_base_pointer,
            memory_obj.metadata.address,
        )

    def insert_key(self, key, memory_obj):
        self.hot_cache[key] = DiskCacheMetadata(path, size, shape, dtype, None, fmt)

    def _load_bytes_from_disk_with_memory(self, key, path, memory_obj):
        if memory_obj is None:
            return None
        return memory_obj

    def _save_gds(self, path, tmp, kv_chunk, fmt, base_pointer, device_offset):
        metadata = pack_metadata(
            kv_chunk, fmt=fmt, lmcache_version=str(_METADATA_VERSION)
        )
        return metadata
"""

_PATCHED_BACKEND = (
    _STOCK_BACKEND.replace(
        "size, shape, dtype, None, fmt\n", f"size, shape, dtype, {_READ_POSITIONS}, fmt\n"
    )
    .replace("dtype, None, fmt)", f"dtype, {_KEPT_POSITIONS}, fmt)")
    .replace("address,\n", f"address,\n            {_SAVED},\n")
    .replace("device_offset)", "device_offset, positions=None)")
    .replace(
        """        return memory_obj
""",
        """        # kvpatch KV009: the object may have held another chunk before.
        memory_obj.metadata.cached_positions = self._kvpatch_positions_of(key)
        return memory_obj
""",
    )
    .replace(
        """        metadata = pack_metadata(
            kv_chunk, fmt=fmt, lmcache_version=str(_METADATA_VERSION)
        )
""",
        """        # kvpatch KV009: readers that know no positions ignore them.
        span = _kvpatch_span(positions)
        metadata = pack_metadata(
            kv_chunk,
            fmt=fmt,
            lmcache_version=str(_METADATA_VERSION),
            **({"cached_positions": span} if span else {}),
        )
""",
    )
    + indent(_POSITIONS_OF + GET, " " * 4)
    + "\n"
    + SPAN
    + "\n\n"
    + POSITIONS.lstrip("\n")
)

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
