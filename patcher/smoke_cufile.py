"""A stand-in for the ``cufile`` module: pread and pwrite on ordinary files and memory of the host.

Put on the child's path as ``cufile`` where the real one is absent; named in every report. Python
3.9 or newer, nothing of kvpatch.
"""

from __future__ import annotations

import ctypes
import os
import sys
import types
from typing import Any


class CuFileDriver:
    """Opens nothing."""


class CuFile:
    """One file, as a context manager."""

    def __init__(self, path: str, mode: str = "r", use_direct_io: bool = False) -> None:
        del use_direct_io
        writes = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_RDWR | os.O_CREAT}
        self.path = path
        self.flags = writes[mode.replace("b", "")]
        self.descriptor = -1

    def __enter__(self) -> CuFile:
        self.descriptor = os.open(self.path, self.flags, 0o644)
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self.descriptor)

    def write(self, address: Any, size: int, file_offset: int = 0, dev_offset: int = 0) -> int:
        """Writes ``size`` bytes from the address; how many were written."""
        data = _memory(address, dev_offset, size)
        done = 0
        while done < size:
            done += os.pwrite(self.descriptor, data[done:], file_offset + done)
        return done

    def read(self, address: Any, size: int, file_offset: int = 0, dev_offset: int = 0) -> int:
        """Reads up to ``size`` bytes to the address; how many were read."""
        data = _memory(address, dev_offset, size)
        done = 0
        while done < size:
            got = os.preadv(self.descriptor, [data[done:]], file_offset + done)
            if got == 0:
                break
            done += got
        return done


def _memory(address: Any, offset: int, size: int) -> memoryview:
    start = getattr(address, "value", address) + offset
    return memoryview((ctypes.c_char * size).from_address(start)).cast("B")


def install() -> None:
    """Make this module importable as ``cufile``, with its ``cufile.bindings``."""
    bindings = types.ModuleType("cufile.bindings")
    bindings.cuFileBufRegister = lambda *_args, **_kwargs: None  # type: ignore[attr-defined]
    bindings.cuFileBufDeregister = lambda *_args, **_kwargs: None  # type: ignore[attr-defined]
    module = types.ModuleType("cufile")
    module.CuFileDriver = CuFileDriver  # type: ignore[attr-defined]
    module.CuFile = CuFile  # type: ignore[attr-defined]
    module.bindings = bindings  # type: ignore[attr-defined]
    module.__path__ = []
    sys.modules["cufile"] = module
    sys.modules["cufile.bindings"] = bindings
