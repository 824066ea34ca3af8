"""The hash that bytecode holds of its source."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvpatch.source_hash import source_hash


@given(st.binary(max_size=100))
def test_it_is_that_of_this_interpreter(source: bytes) -> None:
    expected = importlib.util.source_hash(source)
    assert source_hash(importlib.util.MAGIC_NUMBER, source) == expected


@pytest.mark.parametrize(
    ("magic", "expected"),
    [("6f0d0d0a", "c93ddb8e8d4d479a"), ("f30d0d0a", "65cc7344d00602a7")],
    ids=["3.10", "3.13"],
)
def test_it_is_that_of_another_interpreter(magic: str, expected: str) -> None:
    # Said by importlib.util.source_hash of CPython 3.10 and 3.13.
    assert source_hash(bytes.fromhex(magic), b"import os\n" * 3).hex() == expected
