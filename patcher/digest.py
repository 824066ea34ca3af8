"""The one way in which kvpatch tells two texts apart."""

from __future__ import annotations

import hashlib


def sha256(data: bytes) -> str:
    """Lower-case hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()
