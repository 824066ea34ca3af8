"""Blend no chunk from local_disk whose layers were stored in different places."""

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

BACKEND = "lmcache/v1/storage_backend/local_disk_backend.py"

CONTAINS = """
def batched_contains(self, keys, pin=False):
    # kvpatch KV014: layers that were stored in different places can't be turned as one chunk.
    if not self.local_cpu_backend.config.enable_blending:
        return super().batched_contains(keys, pin)
    found = 0
    with self.disk_lock:
        for end, key in enumerate(keys, 1):
            if end < len(keys) and keys[end].chunk_hash == key.chunk_hash:
                continue
            # Nobody takes a pin back of a chunk that lies in memory in part, for it is no hit.
            first = getattr(keys[found], "layer_id", 0)
            if first or not self._kvpatch_whole(keys[found:end]):
                break
            found = end
        for key in keys[:found] if pin else ():
            self.dict[key].pin()
            self.keys_in_request.append(key)
    return found
"""

WHOLE = '''
def _kvpatch_whole(self, layers):
    """Whether all of a chunk is there, of one place; what is of several is dropped."""
    there = {key: self.dict[key] for key in layers if key in self.dict}
    places = [entry.cached_positions for entry in there.values()]
    if all(_kvpatch_same(places[0], place) for place in places):
        return len(there) == len(layers)
    free = all(entry.can_evict for entry in there.values())
    if not free or any(self.disk_worker.exists_in_put_tasks(key) for key in layers):
        # What is read or written right now is left to a later lookup.
        return False
    for key, entry in there.items():
        self.current_cache_size -= entry.size
        self.cache_policy.update_on_force_evict(key)
        try:
            self.remove(key, force=False)
        except OSError as error:
            logger.warning("kvpatch: %s could not be deleted: %s", entry.path, error)
    return False
'''

LOAD = '''
async def _kvpatch_load(self, keys, pinned=False):
    """The chunks of one layer, all of them; what was taken is given back where one has no room."""
    entries, chunks = [], []
    try:
        for key in keys:
            with self.disk_lock:
                entry = self.dict.get(key)
                if entry is None:
                    raise RuntimeError(f"kvpatch: {key} was lost from local_disk since its lookup")
                entry.pin()
                entries.append(entry)
                self.cache_policy.update_on_hit(key, self.dict)
            chunks.append(await self._kvpatch_room(entry))
    except BaseException:
        with self.disk_lock:
            for entry in entries:
                entry.unpin()
        for chunk in chunks:
            chunk.ref_count_down()
        raise
    for chunk in chunks if pinned else ():
        chunk.pin()
    return await self.disk_worker.submit_task(
        "prefetch",
        self.batched_async_load_bytes_from_disk,
        paths=[entry.path for entry in entries],
        keys=keys,
        memory_objs=chunks,
    )
'''

ROOM = '''
async def _kvpatch_room(self, entry, patience=60.0):
    """Memory to load to, after the writes that hold it; this loop is what starts them."""
    end = time.monotonic() + patience
    while True:
        running = bool(self.disk_worker.put_tasks)
        chunk = self.local_cpu_backend.allocate(
            entry.shape, entry.dtype, entry.fmt, busy_loop=False
        )
        if chunk is not None:
            return chunk
        if not running or time.monotonic() >= end:
            size = self.local_cpu_backend.config.max_local_cpu_size
            raise RuntimeError(
                f"kvpatch: max_local_cpu_size, {size} GiB, has no room for what local_disk loads: "
                "it must hold the KV cache of the longest prompt, beside what is written or pinned"
            )
        await asyncio.sleep(0.01)
'''

SAME = '''
def _kvpatch_same(one, other):
    """Whether two layers are of one place; those of one store have the very same positions."""
    if one is other or one is None or other is None:
        return one is other
    return torch.equal(one, other)
'''

_INSERT = "self.disk_worker.insert_put_task(key)"
_KEPT = """
# kvpatch KV014: a layer that is there stays, for the positions that are kept are its own.
if self.local_cpu_backend.config.enable_blending:
    with self.disk_lock:
        if key in self.dict:
            self.cache_policy.update_on_hit(key, self.dict)
            return None
"""
_SUBMIT = "LocalDiskBackend.submit_put_task"
_GET = "LocalDiskBackend.batched_get_non_blocking"
_FOUND = "mem_objs: list[MemoryObj] = []"
_BY_LAYER = """
# kvpatch KV014: a layer comes with all its chunks, or with an error.
if self.local_cpu_backend.layerwise:
    return await self._kvpatch_load(keys)
"""
# The releases that don't wait for room are those whose engine takes the pins back.
_ROOM = "self.local_cpu_backend.allocate(shape, dtype, fmt, busy_loop=False)"
_PINNED = _BY_LAYER.replace("(keys)", "(keys, pinned=True)")
_METHODS = {
    "batched_contains": CONTAINS,
    "_kvpatch_whole": WHOLE,
    "_kvpatch_load": LOAD,
    "_kvpatch_room": ROOM,
}


def refuse_mixtures(module: cst.Module) -> cst.Module:
    """Let a lookup take a chunk of several places as not there, and drop it; load whole layers.

    Up to LMCache 0.5.4 a layer that is there is written over, and its old positions are kept.

    Raises:
        Refusal: where an anchor is not there exactly once, or the class has such a method.
    """
    from kvpatch import anchors, rewrite

    if _INSERT in module.code:
        module = anchors.replace(
            module, _SUBMIT, _INSERT, lambda line: anchors.like(line, module, _KEPT, _INSERT)
        )
    load = _PINNED if "busy_loop=False" in module.code else _BY_LAYER
    module = anchors.replace(
        module, _GET, _FOUND, lambda line: anchors.like(line, module, load, _FOUND)
    )
    for method in _METHODS.values():
        module = anchors.append_method(module, "LocalDiskBackend", method)
    return rewrite.append_function(module, SAME)


def keeps_whole(module: ast.Module, _version: Version) -> Judgement:
    """Judge whether a chunk is looked up by the places of all its layers, and comes with them."""
    submit = function(module, _SUBMIT)
    if submit is None:
        return Judgement(False, "no disk back end is defined here")
    for name, text in _METHODS.items():
        if not as_written(function(module, f"LocalDiskBackend.{name}"), text):
            return Judgement(
                False, "a chunk may be mixed of layers from different places, or lack some"
            )
    if not as_written(function(module, "_kvpatch_same"), SAME):
        return Judgement(False, "places of layers are compared in another way")
    if find(submit, _INSERT) and not find(submit, _KEPT):
        return Judgement(False, "a layer is written over, and its old positions are kept")
    get = function(module, _GET)
    if not find(get, _PINNED if find(get, _ROOM) else _BY_LAYER):
        return Judgement(False, "a layer may come without some of its chunks")
    return Judgement(True, "chunks from disk are whole, or not there")


PATCH = Patch(
    id="KV014",
    distribution="lmcache",
    targets=(Target(BACKEND, ">=0.3.10.post1", refuse_mixtures),),
    versions=">=0.3.10.post1",
    why="A full local_disk drops single layers of a chunk. Stored again at another place, the "
    "chunk is a mixture, and blending turns all its keys as the first layer's: wrong answers "
    "without an error. Before LMCache 0.5.5 two requests that store a chunk at once do that to "
    "one layer. And where max_local_cpu_size has no room for a load, the engine hangs for good.",
    how="While blending, a lookup takes a chunk whose layers are of different places as not there "
    "and drops it, so that it is stored anew as a whole, and pins only whole chunks; a layer "
    "that is there is not written over. Layer by layer, a load without room waits for the writes "
    "that hold the memory, and fails with an error where that does not help.",
    upstream="https://github.com/LMCache/LMCache/issues/1900",
    retire_when="An LMCache release drops all layers of a chunk at once, or tells them apart, and "
    "loads a layer as a whole or not at all.",
    post_condition=keeps_whole,
    faithful=released_elsewhere,
    proved="run on a CPU: vLLM 0.32.0 with LMCache 0.5.6; older releases: executed by tests",
)

_GETS = """
    async def batched_get_non_blocking(self, lookup_id, keys):
        mem_objs: list[MemoryObj] = []
        for key in keys:
            memory_obj = self.local_cpu_backend.allocate(shape, dtype, fmt)
            mem_objs.append(memory_obj)
        return mem_objs
"""
_HEAD = f"""
class LocalDiskBackend(StorageBackendInterface):{_GETS}
    def submit_put_task(self, key, memory_obj):
        if self.exists_in_put_tasks(key):
            return None

"""
_STOCK = f"""{_HEAD}        self.disk_worker.insert_put_task(key)
        self.write(key, memory_obj)
"""
_LATER = _STOCK.replace("dtype, fmt)", "dtype, fmt, busy_loop=False)")
_NEWER = f"""{_HEAD}        if not self.disk_worker.try_insert_put_task(key):
            return None
        self.write(key, memory_obj)
""".replace("dtype, fmt)", "dtype, fmt, busy_loop=False)")
_ADDED = "".join(indent(text, " " * 4) for text in _METHODS.values()) + "\n" + SAME


def _before(text: str, line: str, new: str) -> str:
    """The text with that put before a line of a method."""
    line = f"        {line}\n"
    return text.replace(line, indent(new.lstrip("\n"), " " * 8) + line)


_FIRST = _before(_before(_STOCK, _INSERT, _KEPT), _FOUND, _BY_LAYER) + _ADDED
_SECOND = _before(_before(_LATER, _INSERT, _KEPT), _FOUND, _PINNED) + _ADDED

EXAMPLES = (
    Example(
        ExampleKind.REWRITTEN,
        "looks a chunk up by the places of all its layers",
        "0.5.6",
        _NEWER,
        after=_before(_NEWER, _FOUND, _PINNED) + _ADDED,
    ),
    Example(
        ExampleKind.REWRITTEN,
        "writes over no layer that is there",
        "0.5.3",
        _LATER,
        after=_SECOND,
    ),
    Example(
        ExampleKind.REWRITTEN,
        "pins nothing for an engine that takes no pin back",
        "0.4.2",
        _STOCK,
        after=_FIRST,
    ),
    Example(
        ExampleKind.UNTOUCHED,
        "leaves a release alone whose lookup asks for single layers",
        "0.3.10",
        _STOCK,
    ),
    Example(
        ExampleKind.ABSORBED,
        "sees the same done by hand",
        "0.5.3",
        _SECOND.replace("# kvpatch KV014: ", "# "),
    ),
    Example(
        ExampleKind.REFUSED,
        "refuses where the back end looks chunks up in a way of its own",
        "0.5.6",
        _NEWER + "\n    def batched_contains(self, keys, pin=False):\n        return 0\n",
        outcome=Outcome.CONFLICT,
        reason="already defines batched_contains",
    ),
)
