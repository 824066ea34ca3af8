"""Bytes with their digest before them: what a disk has changed since is not taken for true."""

from __future__ import annotations

from .digest import sha256


def seal(content: bytes) -> bytes:
    """The bytes as they are put on disk: a line with their sha256, and they."""
    return sha256(content).encode() + b"\n" + content


def unseal(data: bytes) -> bytes:
    """The bytes that :func:`seal` was given.

    Raises:
        ValueError: it is not what was sealed.
    """
    digest, _, content = data.partition(b"\n")
    if digest != sha256(content).encode():
        raise ValueError("not the bytes that were sealed")
    return content
