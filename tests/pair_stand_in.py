"""A small vLLM and a small LMCache, written here in the shapes of the real ones, to be changed.

As it stands the pair lacks the registration and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from fake_site import LATE
from kvpatch import host, refusals, summary, validate, verbs
from kvpatch.codebase import Codebase, Facts
from kvpatch.compat import Side, Verdict, check
from kvpatch.needs import Pair
from kvpatch.tree import FolderTree, Package
from packaging.version import Version
from planning import series

WORKER = "vllm/v1/worker/gpu_worker.py"
CONNECTOR = "vllm/distributed/kv_transfer/kv_connector/v1/lmcache_connector.py"
REQUEST = "vllm/v1/request.py"
CONTEXT = "vllm/forward_context.py"
UTILS = "vllm/utils/__init__.py"
ATTENTION = "vllm/attention/__init__.py"
LAYER = "vllm/attention/layer.py"
FLASH = "vllm/v1/attention/backends/flash_attn.py"
ROPE = "vllm/model_executor/layers/rotary_embedding.py"
LLAMA = "vllm/model_executor/models/llama.py"
CONFIG = "vllm/config/vllm.py"
ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"
MODELS = "lmcache/v1/compute/models/utils.py"
BASE = "lmcache/v1/compute/models/base.py"
BACKEND = "lmcache/v1/compute/attention/flash_attn.py"
POSITIONS = "lmcache/v1/compute/positional_encoding.py"
GPU = "lmcache/v1/gpu_connector.py"
STORAGE = "lmcache/v1/storage_backend/storage_manager.py"

FILES: Mapping[str, str] = {
    WORKER: LATE,
    CONNECTOR: """
from vllm.v1.request import Request


class LMCacheConnectorV1:
    def __init__(self, vllm_config, role):
        if vllm_config.use_native:
            from vllm.nowhere import LMCacheConnectorV1Impl as Native

            cls = Native
        else:
            from lmcache.integration.vllm.vllm_v1_adapter import LMCacheConnectorV1Impl as Latest

            cls = Latest
        self._lmcache_engine = cls(vllm_config, role, self)

    def register_kv_caches(self, kv_caches):
        if hasattr(self._lmcache_engine, "register_kv_caches"):
            self._lmcache_engine.register_kv_caches(kv_caches)

    def start_load_kv(self, forward_context, **kwargs):
        self._lmcache_engine.start_load_kv(forward_context, **kwargs)

    def get_num_new_matched_tokens(self, request, computed):
        return self._lmcache_engine.get_num_new_matched_tokens(request, computed)

    def get_block_ids_with_load_errors(self):
        method = getattr(self._lmcache_engine, "get_block_ids_with_load_errors", None)
        return method() if method else set()
""",
    REQUEST: """
class Request:
    def __init__(self, request_id, priority=0):
        self.request_id = request_id
        self.priority = priority
""",
    CONTEXT: """
from dataclasses import dataclass


@dataclass
class ForwardContext:
    no_compile_layers: dict
""",
    UTILS: """
def cdiv(a, b):
    return -(-a // b)
""",
    ATTENTION: "from .layer import Attention\n",
    LAYER: "class Attention:\n    pass\n",
    FLASH: """
class FlashAttentionBackend:
    @staticmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size):
        if block_size % 16:
            raise ValueError("no")
        return (2, num_blocks, block_size, num_kv_heads, head_size)


class FlashAttentionImpl:
    pass
""",
    ROPE: """
def get_rope(head_size, max_position, is_neox_style=True, rope_parameters=None, dtype=None):
    return head_size
""",
    LLAMA: """
from torch import nn


class SupportsEmbedding:
    def embed_input_ids(self, input_ids):
        return input_ids


class LlamaForCausalLM(nn.Module, SupportsEmbedding):
    def __init__(self):
        self.model = None
""",
    CONFIG: "class VllmConfig:\n    pass\n",
    ADAPTER: """
from typing import TYPE_CHECKING

from vllm.utils import cdiv

from lmcache.v1.compute.models.utils import Builder

if TYPE_CHECKING:
    from vllm.forward_context import ForwardContext
    from vllm.v1.request import Request


class LMCacheConnectorV1Impl:
    def __init__(self, vllm_config, role, parent):
        self.kv_caches = {}
        self._start(vllm_config)

    def _start(self, config):
        if config.enable_blending:
            self.blender = Builder.get_or_create("model")

    def register_kv_caches(self, kv_caches):
        self.kv_caches = kv_caches

    def start_load_kv(self, forward_context, **kwargs):
        if len(self.kv_caches) == 0:
            self._from_context(forward_context)

    def _from_context(self, forward_context: "ForwardContext"):
        return forward_context.virtual_engine

    def get_num_new_matched_tokens(self, request: "Request", computed: int):
        return getattr(request, "age", 0) + request.priority
""",
    MODELS: """
class Builder:
    @classmethod
    def get_or_create(cls, name):
        return infer_model(name)


def infer_model(name):
    if name == "LlamaForCausalLM":
        from lmcache.v1.compute.models.base import LMCBaseModel

        return LMCBaseModel(name)
    else:
        raise NotImplementedError(name)
""",
    BASE: """
from lmcache.v1.compute.attention.flash_attn import Backend
from lmcache.v1.compute.positional_encoding import get_fused_rope


class LMCBaseModel:
    def __init__(self, vllm_model):
        self.vllm_model = vllm_model
        self.backend = Backend()
        self.rope = get_fused_rope(64, 2048)

    def compute_layer(self, input_ids):
        return self.vllm_model.embed_input_ids(input_ids)
""",
    BACKEND: """
from vllm.attention import Attention
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl


class Backend:
    pass
""",
    POSITIONS: """
from vllm.model_executor.layers.rotary_embedding import get_rope as vllm_get_rope


def get_fused_rope(head_size, max_position, is_neox_style=True):
    return vllm_get_rope(
        head_size=head_size, max_position=max_position, is_neox_style=is_neox_style
    )
""",
    GPU: """
class VLLMBufferLayerwiseGPUConnector:
    def batched_from_gpu(self, kvcaches):
        self.vllm_two_major = kvcaches[0].shape[0] == 2
        ops.single_layer_kv_transfer(kvcaches, self.vllm_two_major)


class VLLMPagedMemGPUConnectorV2:
    def from_gpu(self, kvcaches):
        self.page_buffer_size = kvcaches[0].shape[1] * kvcaches[0].shape[2]
        return self.page_buffer_size
""",
    STORAGE: """
def allocate_and_copy_objects(keys, objects):
    found = [item for item in objects if item]
    return list(keys), found
""",
}


def files(changes: Mapping[str, str | None] | None = None) -> dict[str, bytes]:
    """The pair's files with some replaced, or left out where None stands for them."""
    texts = {**FILES, **(changes or {})}
    return {path: text.encode() for path, text in texts.items() if text is not None}


def tree(changes: Mapping[str, str | None] | None = None, vllm: str = "0.25.1") -> FolderTree:
    packages = {
        "vllm": Package("vllm", Version(vllm)),
        "lmcache": Package("lmcache", Version("0.5.6")),
    }
    return FolderTree(packages, files(changes))


def codebase(package: str, changes: Mapping[str, str | None] | None = None) -> Codebase:
    held = tree(changes)
    return Codebase(package, held.files.get, Facts(), lambda module: held.opaque(package, module))


def pair(changes: Mapping[str, str | None] | None = None) -> Pair:
    return Pair(codebase("lmcache", changes), codebase("vllm", changes))


def verdict(changes: Mapping[str, str | None] | None = None, vllm: str = "0.25.1") -> Verdict:
    return check(
        Side(codebase("vllm", changes), Version(vllm)),
        Side(codebase("lmcache", changes), Version("0.5.6")),
    )


def replaced(path: str, old: str, new: str) -> dict[str, str | None]:
    """A change of one text in one file, which must be there once."""
    assert FILES[path].count(old) == 1, (path, old)
    return {path: FILES[path].replace(old, new)}


@pytest.fixture(autouse=True)
def vllm_patches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in LMCache has none of the code that LMCache's own patches look for."""
    chosen = series()
    for module in (host, refusals, summary, validate, verbs):
        monkeypatch.setattr(module, "discover", lambda: chosen)
