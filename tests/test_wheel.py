"""Wheels as zip files: what is read, and what is refused before anything is."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import pytest
from kvpatch import wheel as wheel_module
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.wheel import Wheel
from wheels import write_zip

MEMBERS = {
    "a/__init__.py": b"",
    "a/code.py": b"print('a')\n" * 50,
    "a/data.bin": os.urandom(200_000),
    "a-1.dist-info/RECORD": b"",
}


def refused(path: Path) -> KvpatchError:
    with pytest.raises(KvpatchError) as caught, Wheel(path):
        pass
    assert path.name in caught.value.message
    return caught.value


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a-1-py3-none-any.whl"
    write_zip(path, MEMBERS)
    return path


# reading


def test_a_member_is_read_and_a_missing_one_or_a_folder_is_none(tmp_path: Path) -> None:
    source = tmp_path / "a-1-py3-none-any.whl"
    write_zip(source, {**MEMBERS, "a/b/": b""})
    with Wheel(source) as wheel:
        assert wheel.read("a/code.py") == MEMBERS["a/code.py"]
        assert wheel.read("a/b/") is None
        assert wheel.read("a/nothing.py") is None


def test_a_damaged_member_is_not_read(source: Path) -> None:
    with Wheel(source) as wheel:
        at = wheel.members["a/code.py"].start
    data = bytearray(source.read_bytes())
    data[at + 5] ^= 0xFF
    source.write_bytes(data)
    with Wheel(source) as wheel, pytest.raises(KvpatchError, match="is damaged"):
        wheel.read("a/code.py")


def test_a_member_that_holds_more_than_it_says_is_not_read(source: Path) -> None:
    with Wheel(source) as wheel:
        wheel.members["a/code.py"].info.file_size = 10
        with pytest.raises(KvpatchError, match="is damaged"):
            wheel.read("a/code.py")


def test_a_member_too_large_to_read_is_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_module, "MOST_READ", 100)
    with Wheel(source) as wheel, pytest.raises(KvpatchError, match="is 550 bytes long"):
        wheel.read("a/code.py")


def test_a_member_that_pip_could_not_read_is_refused_only_when_it_is_read(tmp_path: Path) -> None:
    source = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.py", b"a" * 100)
    with Wheel(source) as wheel, pytest.raises(KvpatchError, match="compressed in a way"):
        wheel.read("a.py")


# what is no wheel


def test_what_is_not_there_or_not_a_file_is_the_environments_fault(tmp_path: Path) -> None:
    folder, pipe, gone = tmp_path / "d.whl", tmp_path / "p.whl", tmp_path / "g.whl"
    folder.mkdir()
    os.mkfifo(pipe)
    for path in (folder, pipe, gone, gone / "below.whl"):
        error = refused(path)
        assert (error.code, error.exit_code) == ("no-wheel", ExitCode.ENVIRONMENT)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK", b"nothing like it" * 100, b"PK\5\6" + b"\0" * 17, b"PK\5\6" + b"\1" * 18],
)
def test_what_is_no_zip_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(content)
    error = refused(path)
    assert (error.code, error.exit_code) == ("bad-wheel", ExitCode.REFUSED)


@pytest.mark.parametrize("left", [1, 30, 1000, 100_000, 200_500])
def test_a_wheel_that_was_cut_off_is_refused(source: Path, left: int) -> None:
    source.write_bytes(source.read_bytes()[:left])
    assert refused(source).code == "bad-wheel"


@pytest.mark.parametrize("cut", [1, 30, 1000, 100_000])
def test_a_wheel_without_its_beginning_is_refused(source: Path, cut: int) -> None:
    source.write_bytes(source.read_bytes()[cut:])
    assert refused(source).code in ("bad-wheel", "unsafe-wheel")


@pytest.mark.parametrize(
    "name",
    [
        "../a.py",
        "a/../../b.py",
        "/etc/a",
        "a//b.py",
        "./a.py",
        "a\\b.py",
        "C:/a.py",
        "a\nb.py",
        "/",
        "a/./b",
        "..",
        "a/..",
        "\x1b[2J",
    ],
)
def test_a_name_that_is_no_path_below_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.py", b"")
        archive.writestr(name, b"")
    error = refused(path)
    assert error.code == "unsafe-wheel"
    assert error.message.isprintable()


def test_a_name_cut_off_by_a_zero_byte_is_refused(source: Path) -> None:
    source.write_bytes(source.read_bytes().replace(b"a/code.py", b"a/cod\0.py"))
    assert refused(source).code == "unsafe-wheel"


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.py", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.py", b"2")
    assert "a.py is in it twice" in refused(path).message


def test_a_name_that_is_a_file_and_a_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    write_zip(path, {"a": b"", "a/": b""})
    assert "both a folder and a file" in refused(path).message


def patched(path: Path, signature: bytes, field: int, value: bytes) -> None:
    """Change a field of the first header of that kind."""
    data = bytearray(path.read_bytes())
    at = data.find(signature) + field
    data[at : at + len(value)] = value
    path.write_bytes(data)


@pytest.mark.parametrize(("signature", "field"), [(b"PK\1\2", 8), (b"PK\3\4", 6)])
@pytest.mark.parametrize("flags", [b"\x01\0", b"\x40\0", b"\0\x20"])
def test_encrypted_members_are_refused_by_either_header(
    source: Path, signature: bytes, field: int, flags: bytes
) -> None:
    patched(source, signature, field, flags)
    assert refused(source).code == "unsafe-wheel"


def test_a_member_with_two_names_is_refused(source: Path) -> None:
    patched(source, b"PK\3\4", 30, b"b")
    assert "another name in its own header" in refused(source).message


def test_a_member_with_two_methods_is_refused(source: Path) -> None:
    patched(source, b"PK\3\4", 8, b"\0\0")
    assert "another thing by its own header" in refused(source).message


def test_members_that_overlap_are_refused(source: Path) -> None:
    patched(source, b"PK\1\2", 20, struct.pack("<I", 5000))
    assert "runs into what follows it" in refused(source).message


def test_one_part_of_several_is_refused(source: Path) -> None:
    patched(source, b"PK\5\6", 4, b"\1\0\1\0")
    assert "one part of" in refused(source).message


def test_a_bomb_is_refused_by_its_ratio(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    write_zip(path, {"a.bin": bytes(3_000_000)})
    assert path.stat().st_size < 3_000_000 // wheel_module.MOST_RATIO
    assert "3000000 bytes" in refused(path).message


def test_too_many_members_are_refused_before_the_directory_is_read(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel_module, "MOST_MEMBERS", len(MEMBERS) - 1)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert f"it has {len(MEMBERS)} members" in refused(source).message
