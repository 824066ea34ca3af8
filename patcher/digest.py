"""The one way in which kvpatch tells two texts apart."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PIECE = 1 << 20


def sha256(data: bytes) -> str:
    """Lower-case hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


def sha256_of(path: Path) -> str:
    """That of a file, which may be larger than what one likes to hold in memory.

    Raises:
        OSError: it can't be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
