"""The hash of a source file that hash-based bytecode holds (PEP 552), for any CPython.

``importlib.util.source_hash`` knows that of the running interpreter alone; another one has its own
magic number in it, and before 3.11 the rounds were others.
"""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_MAGIC_OF_3_11 = 3495
"""From here on it is SipHash-1-3, SipHash-2-4 before (CPython issue 73894)."""


def source_hash(magic: bytes, source: bytes) -> bytes:
    """The hash that bytecode of that magic number holds for a source.

    Args:
        magic: the first four bytes of the bytecode.
        source: the file as it is on disk.
    """
    number = struct.unpack("<H", magic[:2])[0]
    rounds = (1, 3) if number >= _MAGIC_OF_3_11 else (2, 4)
    key = struct.unpack("<I", magic)[0]
    return struct.pack("<Q", _siphash(key, source, *rounds))


def _siphash(key: int, data: bytes, each: int, last: int) -> int:
    state = [
        key ^ 0x736F6D6570736575,
        0x646F72616E646F6D,
        key ^ 0x6C7967656E657261,
        0x7465646279746573,
    ]
    whole = len(data) & ~7
    tail = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for (block,) in struct.iter_unpack("<Q", data[:whole]):
        _mix(state, block, each)
    _mix(state, tail, each)
    state[2] ^= 0xFF
    _rounds(state, last)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _mix(state: list[int], block: int, count: int) -> None:
    state[3] ^= block
    _rounds(state, count)
    state[0] ^= block


def _rounds(state: list[int], count: int) -> None:
    a, b, c, d = state
    for _ in range(count):
        a = (a + b) & _MASK
        b = _turned(b, 13) ^ a
        a = _turned(a, 32)
        c = (c + d) & _MASK
        d = _turned(d, 16) ^ c
        a = (a + d) & _MASK
        d = _turned(d, 21) ^ a
        c = (c + b) & _MASK
        b = _turned(b, 17) ^ c
        c = _turned(c, 32)
    state[:] = a, b, c, d


def _turned(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK
