"""The names that ``pre_caching_hash_algorithm`` can have, by release of LMCache and of vLLM.

Read from ``TokenDatabase`` of every LMCache from 0.3.3 to 0.5.7rc2, and from the hash functions of
every vLLM from 0.8.5 to 0.33.0. For any other name LMCache takes Python's own hash.
"""

from __future__ import annotations

from packaging.version import Version

BUILTIN = "builtin"
ASKS_VLLM = Version("0.3.9.post2")
"""From here on LMCache takes what vLLM has by that name; before, two names alone."""
_HASHING = Version("0.3.9")
"""From here on LMCache imports them from ``vllm.utils.hashing``; before, from ``vllm.utils``."""
_CBOR = ("sha256_cbor", "sha256_cbor_64bit")
"""vLLM renamed the second to the first; newer LMCache takes either for what vLLM has."""
_CBOR_SINCE = Version("0.10.0")
_CBOR_RENAMED = Version("0.10.2")
BYTES_SINCE = _CBOR_RENAMED
"""From here on vLLM's functions give bytes; before, integers."""
_MODULE_SINCE = Version("0.11.1")
_XXHASH = ("xxhash", "xxhash_cbor")
_XXHASH_SINCE = Version("0.13.0")


def names(lmcache: Version) -> tuple[str, ...]:
    """Every name that this LMCache takes for other than Python's own hash with some vLLM."""
    if lmcache >= ASKS_VLLM:
        return ("sha256", *_CBOR, *_XXHASH)
    return ("sha256", _CBOR[lmcache < _HASHING])


def is_taken(name: str, lmcache: Version, vllm: Version | None) -> bool | None:
    """Whether LMCache takes the algorithm of that name; None where that hangs on vLLM's release.

    False stands for Python's own hash in its place.
    """
    if name == BUILTIN:
        return True
    if name not in names(lmcache):
        return False
    if lmcache >= ASKS_VLLM and name == "sha256":
        return True
    if vllm is None:
        return None
    if lmcache >= ASKS_VLLM:
        return vllm >= (_CBOR_SINCE if name in _CBOR else _XXHASH_SINCE)
    # It takes none of the two where it can't import both.
    if lmcache >= _HASHING:
        return vllm >= _MODULE_SINCE
    return _CBOR_SINCE <= vllm < _CBOR_RENAMED
