from __future__ import annotations

from pathlib import Path

from kvpatch.digest import sha256, sha256_of


def test_a_digest_is_sha256_in_lower_case_hexadecimal() -> None:
    assert sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_that_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    (tmp_path / "file").write_bytes(data)
    assert sha256_of(tmp_path / "file") == sha256(data)
