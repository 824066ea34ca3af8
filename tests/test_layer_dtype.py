"""Which dtypes the patch for the packed KV cache refuses, held against the patch itself."""

from __future__ import annotations

import re

import pytest
from kvpatch import catalogue
from kvpatch.layer_dtype import BEFORE, FIRST, MOVED, PATCH, refused, told
from kvpatch.patches.kv006_transfer_packed import PATCH as KV006
from kvpatch.patches.kv006_transfer_packed import TRANSFER
from packaging.version import Version

PAIR = (Version("0.5.6"), Version("0.32.0"))


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "int8"])
def test_small_dtypes_are_refused_where_the_cache_is_packed(dtype: str) -> None:
    lmcache, vllm = PAIR
    assert refused(dtype, lmcache, vllm) is True
    assert refused(dtype, lmcache, Version("0.26.0+cpu")) is True
    assert refused(dtype, lmcache, Version("0.25.1")) is False
    assert refused(dtype, lmcache, None) is None
    assert refused(dtype, None, vllm) is False
    assert dtype in told(dtype)


def test_what_is_moved_is_what_the_patch_names() -> None:
    assert KV006.id == PATCH
    known = re.search(r"known = \((.*)\)", TRANSFER)
    assert known is not None
    assert {f"torch.{one}" for one in MOVED if one != "auto"} == set(known[1].split(", "))
    assert not any(refused(one, *PAIR) for one in MOVED)


def test_the_releases_are_those_of_the_patch() -> None:
    for release in map(Version, catalogue.load().releases["lmcache"]):
        assert KV006.in_range(release) is (FIRST <= release < BEFORE)
    when = KV006.when
    assert when is not None
    for release in map(Version, catalogue.load().releases["vllm"]):
        assert when.holds({"vllm": release}) is refused("fp8", PAIR[0], release)
