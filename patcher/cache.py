"""Where kvpatch keeps what it has read and built."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """kvpatch's cache folder: ``$XDG_CACHE_HOME/kvpatch``, else ``~/.cache/kvpatch``."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "kvpatch"
