"""Where vLLM's kernels for CPUs put keys and values: found by writing known numbers with them.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

_DIGIT = 128


class HarnessError(RuntimeError):
    """A step of the harness that could not be carried out on this pair."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"{step}: {why}")
        self.step = step
        self.why = why


class KvLayout:
    """The layers' caches that vLLM wrote to, and what a block of theirs looks like.

    ``fail(step, why)`` makes the error to raise where that can't be found out.
    """

    def __init__(self, fail: Callable[[str, str], HarnessError]) -> None:
        self.fail = fail
        self.views: dict[int, tuple[Any, Any]] = {}
        self.last_write: tuple[Any, dict[str, Any]] | None = None
        self.orders: tuple[Any, Any] | None = None
        self.shape: list[int] = []

    def watch(self) -> None:
        """Note every write into a KV cache from here on, before vLLM starts.

        Raises:
            HarnessError: nothing known writes there.
        """
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

    def order(self) -> tuple[Any, Any]:
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

    def move(self, buffer: Any, cache: Any, slots: Any, to_engine: bool, token_major: bool) -> None:
        """Between a buffer and a layer's cache, by where vLLM's kernel puts things."""
        import torch

        self.shape = list(cache.shape)
        views = self.views.get(cache.data_ptr())
        if views is None:
            raise self.fail("kv-layout", "LMCache names a KV cache that vLLM never wrote to")
        slots = slots.to(torch.int64)
        valid = torch.nonzero(slots >= 0).flatten()
        slots = slots[valid]
        for plane, (view, order) in enumerate(zip(views, self.order())):  # noqa: B905
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

    def heads(self) -> tuple[int, int]:
        """KV heads and their size, as vLLM's kernel was given them."""
        if self.last_write is None:
            raise self.fail("kv-layout", "vLLM has not written into its KV cache yet")
        heads, size = self.last_write[1]["key"].shape[-2:]
        return heads, size


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
