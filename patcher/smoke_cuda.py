"""Lets code that names CUDA run on a CPU: its streams do nothing, its devices are the CPU.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-any-return"

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any


def idle_streams() -> None:
    """Streams, events and waiting for them do nothing from here on."""
    torch: Any = importlib.import_module("torch")

    torch.cuda.Stream = Idle
    torch.cuda.Event = Idle
    torch.cuda.stream = lambda _stream=None: contextlib.nullcontext()
    torch.cuda.current_stream = lambda *_a, **_k: Idle()
    torch.cuda.synchronize = lambda *_a, **_k: None


class Idle:
    """Instead of a stream or an event: nothing runs beside the CPU, so there's nothing to await."""

    cuda_stream = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None

    def query(self) -> bool:
        """All is done."""
        return True


def cpu_for_cuda() -> None:
    """What asks for a CUDA device gets the CPU; there seems to be one such device."""
    torch: Any = importlib.import_module("torch")
    device: Any = importlib.import_module("torch.utils._device")

    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda *_a, **_k: None
    torch.cuda.current_device = lambda: 0
    torch.Tensor.cuda = lambda tensor, *_a, **_k: tensor
    torch.Tensor.to = _redirected(torch.Tensor.to)
    # Not by a mode: inside an operator that is Python itself, modes are off.
    for constructor in device._device_constructors():
        name = str(getattr(constructor, "__name__", ""))
        if getattr(torch, name, None) is constructor:
            setattr(torch, name, _redirected(constructor))


def _redirected(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = {name: _on_cpu(value) for name, value in kwargs.items()}
        return function(*map(_on_cpu, args), **given)

    return call


def _on_cpu(value: Any) -> Any:
    import torch

    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


def rotate_keys(old: Any, new: Any, key: Any, head_size: int, cos_sin: Any, neox: bool) -> None:
    """Move keys from their old positions to their new ones, in place.

    Args:
        old: positions the keys were rotated for, ``[tokens]``.
        new: positions they are wanted at, ``[tokens]``.
        key: ``[tokens, kv_heads, head_size]``.
        head_size: of the key.
        cos_sin: ``[positions, head_size]``: cosines, then sines.
        neox: whether the halves are rotated against each other, and not neighbours.
    """
    import torch

    def parts(whole: Any) -> tuple[Any, Any]:
        if neox:
            return whole[..., : head_size // 2], whole[..., head_size // 2 :]
        return whole[..., ::2], whole[..., 1::2]

    first, second = (part.to(torch.float32) for part in parts(key))
    for positions, sign in ((old, -1.0), (new, 1.0)):
        cos, sin = cos_sin[positions].to(torch.float32)[:, None].chunk(2, dim=-1)
        first, second = first * cos - sign * second * sin, second * cos + sign * first * sin
    for place, value in zip(parts(key), (first, second)):  # noqa: B905
        place.copy_(value)
