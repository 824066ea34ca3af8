"""What is on disk is what was put there, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvpatch.sealed import seal, unseal


@given(st.binary())
def test_what_was_sealed_comes_back(content: bytes) -> None:
    assert unseal(seal(content)) == content


@given(st.binary(), st.data())
def test_any_other_byte_is_found_out(content: bytes, data: st.DataObject) -> None:
    changed = bytearray(seal(content))
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="not the bytes"):
        unseal(bytes(changed))


@pytest.mark.parametrize("data", [b"", b"\n", b"{}", b"0" * 64])
def test_what_never_was_sealed_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not the bytes"):
        unseal(data)
