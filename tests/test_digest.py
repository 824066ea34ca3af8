from __future__ import annotations

from kvpatch.digest import sha256


def test_a_digest_is_sha256_in_lower_case_hexadecimal() -> None:
    assert sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
