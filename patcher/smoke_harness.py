"""Lets the real LMCache blend on a CPU, inside one process; what it stands in for, it names.

Injected into the child that runs the smoke and nowhere else: no file of the target is changed.
Layouts are found by probing what vLLM's own kernel writes, not by release numbers. Python 3.9 or
newer, nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from smoke_cuda import cpu_for_cuda, idle_streams, rotate_keys
from smoke_imports import after_import
from smoke_layout import HarnessError, KvLayout
from smoke_sdpa import backend, kernels

STAND_INS = {
    "attention": "A: FlashAttention's kernel for LMCache's blender, by torch's SDPA with the mask "
    "that it documents",
    "transfer": "K: LMCache's single_layer_kv_transfer and its check of the KV shape, by torch "
    "operations on the layout that vLLM's own cache kernel was seen to write",
    "packed": "K: the KV cache's layout of a GPU; what kvpatch put in ran on copies in that layout",
    "device": "the check that blending runs on cuda or xpu alone, and the choice of connector",
    "cufile": "cuFile, by pread and pwrite on ordinary files: nothing went through GDS",
    "devices": "the devices that LMCache names cuda, by the CPU",
    "rope": "LMCache's kernel that moves keys to other positions, by torch operations, and "
    "the table of its rope, which LMCache's own trial of it rounds to bfloat16",
    "streams": "torch.cuda's streams, by ones that do nothing",
}

_CUDA = SimpleNamespace(is_cuda_alike=lambda: True, is_xpu=lambda: False)


class Harness:
    """The stand-ins put into this process, and what was learned while they ran."""

    def __init__(self, *, gds: bool = False) -> None:
        self.gds = gds
        self.problem: dict[str, str] | None = None
        # Of a patch, kept too for whoever catches its error.
        self.broken = ""
        self.used: set[str] = set()
        self.copies: set[int] = set()
        self.layout = KvLayout(self.fail)

    def named(self) -> list[str]:
        """What was stood in for so far."""
        return [sentence for name, sentence in STAND_INS.items() if name in self.used]

    def fail(self, step: str, why: str) -> HarnessError:
        """The error of a step, kept for the report whoever catches it."""
        self.problem = {"step": step, "why": why}
        return HarnessError(step, why)

    def install(self) -> None:
        """Put everything in place before vLLM starts; LMCache itself is not imported here.

        Raises:
            HarnessError: nothing is there to hold on to.
        """
        self.layout.watch()
        after_import("lmcache.v1.compute.attention", self._on_attention)
        after_import("lmcache.v1.gpu_connector", self._on_gpu_connector)
        after_import("lmcache.v1.manager", self._on_manager)
        after_import("lmcache.integration.vllm.vllm_v1_adapter", self._on_adapter)
        after_import("lmcache.v1.compute.models.base", self._on_base_model)
        after_import("lmcache.v1.gpu_connector.gpu_connectors", self._on_gpu_connectors)
        after_import("lmcache", self._on_lmcache)
        if self.gds:
            after_import("lmcache.v1.storage_backend.gds_backend", self._on_gds_backend)
            self._stand_in_for_cufile()

    def transfer(
        self,
        buffer: Any,
        cache: Any,
        slots: Any,
        direction: Any,
        _layout: Any = None,
        token_major: bool = False,
    ) -> None:
        """Instead of LMCache's ``single_layer_kv_transfer``; the same arguments.

        ``buffer`` is ``[2, tokens, kv_heads * head_size]``, or ``[tokens, 2, ...]`` where
        ``token_major``.
        """
        if cache.data_ptr() in self.copies:
            # The pair can be carried: it is the patch that is broken.
            self.broken = (
                "KV006 gives a KV cache in a GPU's packed layout to LMCache's kernel, which can't "
                "read that"
            )
            raise RuntimeError(self.broken)
        self.used.add("transfer")
        self.layout.move(buffer, cache, slots, int(direction) == _to_engine(), token_major)

    # -- LMCache

    def _on_lmcache(self, lmcache: Any) -> None:
        self.used.add("streams")
        idle_streams()
        ops = getattr(lmcache, "device_ops", None)
        if ops is None:
            # Before device_ops, each module that needs kernels imports them by itself.
            after_import("lmcache.v1.compute.positional_encoding", self._on_rope)
        elif hasattr(ops, "single_layer_kv_transfer"):
            ops.single_layer_kv_transfer = self.transfer
        else:
            raise self.fail("transfer", "lmcache.device_ops.single_layer_kv_transfer isn't there")

    def _on_rope(self, module: Any) -> None:
        self.used.add("rope")
        module.lmc_ops = SimpleNamespace(rotary_embedding_k_fused=rotate_keys)
        trial = getattr(module, "validate_reverse_correctness", None)
        if trial is None:
            return

        def restored(rope: Any, *args: Any, **kwargs: Any) -> Any:
            table = rope.cos_sin_cache
            try:
                return trial(rope, *args, **kwargs)
            finally:
                # vLLM's own layers have this rope too, and the trial rounds it to bfloat16.
                rope.cos_sin_cache = table

        module.validate_reverse_correctness = restored

    def _on_attention(self, package: Any) -> None:
        """Where LMCache imports all back ends whatever is used, its choice can't be imported."""
        name = f"{package.__name__}.utils"
        try:
            with kernels():
                importlib.import_module(name)
        except (ImportError, AttributeError):
            module = ModuleType(name)
            vars(module)["infer_attn_backend_from_vllm"] = None
            sys.modules[name] = module

    def _on_gpu_connector(self, module: Any) -> None:
        if hasattr(module, "VLLMBufferLayerwiseGPUConnector") and not hasattr(module, "__path__"):
            self._on_old_gpu_connector(module)
            return
        create = getattr(module, "CreateGPUConnector", None)
        if create is None or not hasattr(module, "torch_device_type"):
            raise self.fail("device", "lmcache.v1.gpu_connector.CreateGPUConnector isn't there")

        def as_on_cuda(*args: Any, **kwargs: Any) -> Any:
            import torch

            self.used.add("device")
            before = module.torch_device_type
            module.torch_device_type = "cuda"
            try:
                connector = create(*args, **kwargs)
            finally:
                module.torch_device_type = before
            connector.device = torch.device("cpu")
            return connector

        module.CreateGPUConnector = as_on_cuda
        manager = sys.modules.get("lmcache.v1.manager")
        if manager is not None and getattr(manager, "CreateGPUConnector", None) is create:
            vars(manager)["CreateGPUConnector"] = as_on_cuda

    def _on_old_gpu_connector(self, module: Any) -> None:
        """One module with all connectors: its kernels are a name in it, its devices are named."""
        self.used.add("devices")
        cpu_for_cuda()

        def transfer(
            buffer: Any, cache: Any, slots: Any, out: bool, token_major: bool, *_rest: Any
        ) -> None:
            direction = 1 - _to_engine() if out else _to_engine()
            self.transfer(buffer, cache, slots, direction, token_major=token_major)

        module.lmc_ops = SimpleNamespace(single_layer_kv_transfer=transfer)

    def _on_manager(self, module: Any) -> None:
        """One that asks vLLM's platform by itself what it may run on is told that it is CUDA's."""
        for found in vars(module).values():
            for name, method in list(vars(found).items()) if isinstance(found, type) else ():
                if name in ("_get_device_info", "_create_gpu_connector"):
                    setattr(found, name, self._on_cuda(method))

    def _on_adapter(self, module: Any) -> None:
        """Before there was a manager, the adapter asked that platform."""
        if hasattr(module, "current_platform") and hasattr(module, "_init_lmcache_engine"):
            self.used.add("device")
            module.current_platform = _CUDA

    def _on_cuda(self, method: Any) -> Any:
        signature = inspect.signature(method)
        if "current_platform" not in signature.parameters:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            self.used.add("device")
            given = signature.bind(*args, **kwargs)
            given.arguments["current_platform"] = _CUDA
            return method(*given.args, **given.kwargs)

        return call

    def _on_gpu_connectors(self, module: Any) -> None:
        """The check of the KV shape belongs to the transfer that is stood in for."""
        for name in vars(module).copy():
            if name.startswith("assert_is_vllm_"):
                setattr(module, name, lambda *_args, **_kwargs: None)
        patched = getattr(module, "_kvpatch_layer_transfer", None)
        if patched is not None:
            module._kvpatch_layer_transfer = lambda kernel: self._on_copies(patched(kernel))

    def _on_copies(self, move: Any) -> Any:
        """What kvpatch put in for letter K, on copies of blocks in the layout that a GPU has."""
        import torch

        def transfer(
            tokens: Any,
            cache: Any,
            slots: Any,
            direction: Any,
            layout: Any,
            token_major: bool = False,
        ) -> None:
            self.used.add("packed")
            heads, size = self.layout.heads()
            length = self.layout.order()[0].shape[0]
            slots = slots.to(torch.int64)
            kept = slots >= 0
            blocks, place = torch.unique(slots[kept] // length, return_inverse=True)
            near = slots.clone()
            near[kept] = place * length + slots[kept] % length
            every = (blocks[:, None] * length + torch.arange(length)).flatten()
            plain = torch.empty(2, every.numel(), heads * size, dtype=cache.dtype)
            self.layout.move(plain, cache, every, False, False)
            split = plain.view(2, blocks.numel(), length, heads, size)
            packed = split.permute(1, 3, 2, 0, 4).reshape(-1, heads, length, 2 * size)
            self.copies = {packed.data_ptr()}
            try:
                move(tokens, packed, near, direction, layout, token_major=token_major)
            finally:
                self.copies = set()
            if int(direction) == _to_engine():
                split = packed.view(-1, heads, length, 2, size).permute(3, 0, 2, 1, 4)
                self.layout.move(split.reshape(plain.shape), cache, every, True, False)

        return transfer

    def _on_base_model(self, module: Any) -> None:
        if not hasattr(module, "infer_attn_backend_from_vllm"):
            raise self.fail("attention", "infer_attn_backend_from_vllm isn't in models.base")

        def infer(attention: Any, *_args: Any, **_kwargs: Any) -> Any:
            self.used.add("attention")
            return backend(attention)

        module.infer_attn_backend_from_vllm = infer

    def _on_gds_backend(self, module: Any) -> None:
        backend = module.GdsBackend
        original = backend.__init__
        signature = inspect.signature(original)

        def as_for_cuda(*args: Any, **kwargs: Any) -> None:
            call = signature.bind(*args, **kwargs)
            # It asserts the name; its buffer is on the CPU all the same.
            call.arguments["dst_device"] = "cuda:0"
            original(*call.args, **call.kwargs)

        backend.__init__ = as_for_cuda

    def _stand_in_for_cufile(self) -> None:
        # Where the real one is there too: on a CPU its driver has no GPU to work for.
        import smoke_cufile

        smoke_cufile.install()
        self.used.add("cufile")


def _to_engine() -> int:
    native = sys.modules.get("lmcache.lmcache_native")
    direction = getattr(native, "TransferDirection", None)
    return 0 if direction is None else int(direction.H2D)
