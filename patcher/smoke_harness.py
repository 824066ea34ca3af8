"""Lets the real LMCache blend on a CPU, inside one process; what it stands in for, it names.

Injected into the child that runs the smoke and nowhere else: no file of the target is changed.
Layouts are found by probing what vLLM's own kernel writes, not by release numbers. Python 3.9 or
newer, nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from smoke_cuda import cpu_for_cuda, idle_streams, rotate_keys
from smoke_imports import after_import
from smoke_sdpa import SdpaBackend

STAND_INS = {
    "attention": "A: LMCache's attention for the blender (FlashAttention) by torch's SDPA",
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
_DIGIT = 128


class HarnessError(RuntimeError):
    """A step of the harness that could not be carried out on this pair."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"{step}: {why}")
        self.step = step
        self.why = why


class Harness:
    """The stand-ins put into this process, and what was learned while they ran."""

    def __init__(self, *, gds: bool = False) -> None:
        self.gds = gds
        self.problem: dict[str, str] | None = None
        self.used: set[str] = set()
        self.views: dict[int, tuple[Any, Any]] = {}
        self.last_write: tuple[Any, dict[str, Any]] | None = None
        self.orders: tuple[Any, Any] | None = None
        self.kv_shape: list[int] = []

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
        self._watch_cache_writes()
        after_import("lmcache.v1.compute.attention", self._on_attention)
        after_import("lmcache.v1.gpu_connector", self._on_gpu_connector)
        after_import("lmcache.v1.compute.models.base", self._on_base_model)
        after_import("lmcache.v1.gpu_connector.gpu_connectors", self._on_gpu_connectors)
        after_import("lmcache", self._on_lmcache)
        if self.gds:
            after_import("lmcache.v1.storage_backend.gds_backend", self._on_gds_backend)
            self._stand_in_for_cufile()

    # -- what vLLM writes into its KV cache

    def _watch_cache_writes(self) -> None:
        owner, name = self._writer()
        original = getattr(owner, name)
        signature = inspect.signature(original)

        def watched(*args: Any, **kwargs: Any) -> Any:
            given = dict(signature.bind(*args, **kwargs).arguments)
            self.views[given["key_cache"].data_ptr()] = (given["key_cache"], given["value_cache"])
            rest = given.pop("args", ())
            self.last_write = (lambda **more: original(*more.values(), *rest), given)
            return original(*args, **kwargs)

        setattr(owner, name, staticmethod(watched) if inspect.isclass(owner) else watched)

    def _writer(self) -> tuple[Any, str]:
        """Where vLLM's attention for CPUs looks up what writes keys and values, and its name."""
        ops = importlib.import_module("vllm._custom_ops")
        if hasattr(ops, "cpu_attn_reshape_and_cache"):
            return ops, "cpu_attn_reshape_and_cache"
        with contextlib.suppress(ImportError):
            attention = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
            choose = getattr(attention, "_get_paged_attn_impl", None)
            if choose is not None and hasattr(choose(), "write_to_paged_cache"):
                return choose(), "write_to_paged_cache"
        raise self.fail("kv-layout", "nothing known writes into vLLM's KV cache on a CPU")

    def _order(self) -> tuple[Any, Any]:
        """For keys and values: where in a block's memory the kernel puts ``[token, head, dim]``."""
        if self.orders is None:
            self.orders = (self._probe("key"), self._probe("value"))
        return self.orders

    def _probe(self, which: str) -> Any:
        """Write known numbers into one scratch block with vLLM's kernel, and read them back.

        Returns:
            int64 of shape ``[block_size, kv_heads * head_size]``: indices into the flattened block.
        """
        import torch

        if self.last_write is None:
            raise self.fail("kv-layout", "vLLM has not written into its KV cache yet")
        write, given = self.last_write
        cache = given[f"{which}_cache"]
        heads, size = given[which].shape[-2:]
        tokens = cache[0].numel() // (heads * size)
        count = tokens * heads * size
        numbers = torch.arange(count)
        read = torch.zeros(count, dtype=torch.int64)
        place = 1
        # bf16 holds integers below 256 exactly: one digit to base 128 a pass.
        while place < count:
            digit = ((numbers // place) % _DIGIT).to(given[which].dtype)
            scratch = {
                name: torch.zeros(given[name].stride(0), dtype=given[name].dtype).as_strided(
                    (1, *given[name].shape[1:]), given[name].stride()
                )
                for name in ("key_cache", "value_cache")
            }
            rows = digit.view(tokens, heads, size)
            write(
                **{
                    **given,
                    **scratch,
                    "key": rows,
                    "value": rows,
                    "slot_mapping": torch.arange(tokens, dtype=given["slot_mapping"].dtype),
                }
            )
            block = scratch[f"{which}_cache"][0].reshape(-1)
            read += block.to(torch.float32).round().to(torch.int64) * place
            place *= _DIGIT
        order = torch.full((count,), -1, dtype=torch.int64)
        if int(read.min()) >= 0 and int(read.max()) < count:
            order[read] = numbers
        if bool((order < 0).any()):
            raise self.fail(
                "kv-layout", f"what vLLM writes for a {which} is no permutation of what it is given"
            )
        return order.view(tokens, heads * size)

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
        self.used.add("transfer")
        self._move(buffer, cache, slots, int(direction) == _to_engine(), token_major)

    def _move(
        self, buffer: Any, cache: Any, slots: Any, to_engine: bool, token_major: bool
    ) -> None:
        """Between a buffer and a layer's cache, by where vLLM's kernel puts things."""
        import torch

        self.kv_shape = list(cache.shape)
        views = self.views.get(cache.data_ptr())
        if views is None:
            raise self.fail("kv-layout", "LMCache names a KV cache that vLLM never wrote to")
        slots = slots.to(torch.int64)
        valid = torch.nonzero(slots >= 0).flatten()
        slots = slots[valid]
        for plane, (view, order) in enumerate(zip(views, self._order())):  # noqa: B905
            blocks = torch.div(slots, order.shape[0], rounding_mode="floor")
            where = order[slots % order.shape[0]]
            first = blocks * view.stride(0)
            inner = torch.arange(view[0].numel()).view(view.shape[1:])
            offsets = _offsets(inner, view.stride()[1:])
            flat = view.as_strided(
                (view.shape[0] * view.stride(0) - _tail(view),), (1,), view.storage_offset()
            )
            at = first[:, None] + offsets[where]
            half = buffer[:, plane] if token_major else buffer[plane]
            if to_engine:
                flat[at] = half[valid].to(flat.dtype)
            else:
                half[valid] = flat[at].to(half.dtype)

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
        """Where LMCache imports FlashAttention whatever is used, its choice can't be imported."""
        name = f"{package.__name__}.utils"
        try:
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
            heads, size = self._heads()
            length = self._order()[0].shape[0]
            slots = slots.to(torch.int64)
            kept = slots >= 0
            blocks, place = torch.unique(slots[kept] // length, return_inverse=True)
            near = slots.clone()
            near[kept] = place * length + slots[kept] % length
            every = (blocks[:, None] * length + torch.arange(length)).flatten()
            plain = torch.empty(2, every.numel(), heads * size, dtype=cache.dtype)
            self._move(plain, cache, every, False, False)
            split = plain.view(2, blocks.numel(), length, heads, size)
            packed = split.permute(1, 3, 2, 0, 4).reshape(-1, heads, length, 2 * size)
            move(tokens, packed, near, direction, layout, token_major=token_major)
            if int(direction) == _to_engine():
                split = packed.view(-1, heads, length, 2, size).permute(3, 0, 2, 1, 4)
                self._move(split.reshape(plain.shape), cache, every, True, False)

        return transfer

    def _heads(self) -> tuple[int, int]:
        """KV heads and their size, as vLLM's kernel was given them."""
        if self.last_write is None:
            raise self.fail("kv-layout", "vLLM has not written into its KV cache yet")
        heads, size = self.last_write[1]["key"].shape[-2:]
        return heads, size

    def _on_base_model(self, module: Any) -> None:
        if not hasattr(module, "infer_attn_backend_from_vllm"):
            raise self.fail("attention", "infer_attn_backend_from_vllm isn't in models.base")

        def infer(attention: Any, *_args: Any, **_kwargs: Any) -> Any:
            self.used.add("attention")
            return SdpaBackend(attention)

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


def _offsets(inner: Any, strides: tuple[int, ...]) -> Any:
    """Memory offsets of a block's elements, in the order of its flattened indices."""
    import torch

    total = torch.zeros(inner.numel(), dtype=torch.int64)
    rest = inner.flatten()
    for size, stride in zip(reversed(inner.shape), reversed(strides)):  # noqa: B905
        total += (rest % size) * stride
        rest = torch.div(rest, size, rounding_mode="floor")
    return total


def _tail(view: Any) -> int:
    """Elements between a view's last one and the end of its last block."""
    sizes, strides = view.shape[1:], view.stride()[1:]
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides))  # noqa: B905
    return view.stride(0) - last - 1
