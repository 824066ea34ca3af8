"""Which dtypes of vLLM's KV cache can be moved layer by layer, as blending moves it.

From vLLM 0.26 on the cache is packed, and the patch KV006 moves its layers by torch operations. It
refuses by name every dtype that is not in ``MOVED``.
"""

from __future__ import annotations

from packaging.version import Version

from .absence import SINCE

PATCH = "KV006"
PACKED = SINCE[PATCH]
"""First release of vLLM with such a cache."""
MOVED = ("auto", "bfloat16", "float16", "float32")
"""Values of ``--kv-cache-dtype`` that it moves; ``auto`` is the model's own dtype."""
FIRST, BEFORE = Version("0.4.7.dev0"), Version("0.5.7.dev0")
"""The releases of LMCache that the patch is made for; a test holds them against it."""


def refused(dtype: str, lmcache: Version | None, vllm: Version | None) -> bool | None:
    """Whether the patch refuses this dtype on a pair; None where that hangs on an unknown vLLM."""
    if dtype in MOVED or lmcache is None or not FIRST <= lmcache < BEFORE:
        return False
    return None if vllm is None else Version(vllm.base_version) >= PACKED


def told(dtype: str) -> str:
    """Why, as a sentence without its end."""
    return f"a KV cache of {dtype} can't be moved layer by layer ({PATCH} refuses it)"
