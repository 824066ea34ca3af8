"""Wheels as zip files: what is copied as it lies, what is refused, and that the result is sound."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvpatch import wheel as wheel_module
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.wheel import Wheel, without_zip64, write
from wheels import TIME, contents, write_zip

MEMBERS = {
    "a/__init__.py": b"",
    "a/code.py": b"print('a')\n" * 50,
    "a/data.bin": os.urandom(200_000),
    "a-1.dist-info/RECORD": b"",
}


def copy(
    source: Path,
    target: Path,
    new: dict[str, bytes] | None = None,
    renamed: Callable[[str], str] = str,
) -> Path:
    with Wheel(source) as wheel, target.open("wb") as out:
        write(wheel, out, new or {}, renamed)
    return target


def raw(path: Path) -> list[tuple[str, int, bytes]]:
    """Each member's name, method and bytes as they lie in the file."""
    with Wheel(path) as wheel:
        return [
            (
                member.name,
                member.info.compress_type,
                os.pread(wheel.fileno(), member.info.compress_size, member.start),
            )
            for member in wheel.members.values()
        ]


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


def test_a_copy_has_every_member_as_it_lay_with_its_time_and_mode(
    source: Path, tmp_path: Path
) -> None:
    target = copy(source, tmp_path / "copy.whl")
    assert raw(target) == raw(source)
    assert contents(target) == MEMBERS
    with zipfile.ZipFile(target) as archive:
        assert {info.date_time for info in archive.infolist()} == {TIME}
        assert {info.external_attr for info in archive.infolist()} == {0o100644 << 16}


def test_a_plain_wheel_is_copied_byte_for_byte(source: Path, tmp_path: Path) -> None:
    assert copy(source, tmp_path / "copy.whl").read_bytes() == source.read_bytes()


def test_new_contents_are_stored_with_the_time_of_the_old_and_nothing_else_moves(
    source: Path, tmp_path: Path
) -> None:
    new = {"a/code.py": b"print('b')\n" * 100}
    target = copy(source, tmp_path / "copy.whl", new)
    assert contents(target) == {**MEMBERS, **new}
    with zipfile.ZipFile(target) as archive:
        changed = archive.getinfo("a/code.py")
    assert (changed.compress_type, changed.date_time) == (zipfile.ZIP_STORED, TIME)
    others = [item for item in raw(source) if item[0] != "a/code.py"]
    assert [item for item in raw(target) if item[0] != "a/code.py"] == others


def test_members_get_new_names_in_both_headers(source: Path, tmp_path: Path) -> None:
    target = copy(source, tmp_path / "copy.whl", renamed=lambda name: name.replace("a-1", "a-1+b"))
    assert list(contents(target)) == [*list(MEMBERS)[:-1], "a-1+b.dist-info/RECORD"]


class Unseekable(io.RawIOBase):
    """A stream for which zipfile writes data descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self.data += piece
        return len(piece)


def test_data_descriptors_become_sizes_in_the_headers(tmp_path: Path) -> None:
    stream = Unseekable()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in MEMBERS.items():
            archive.writestr(name, content)
    source = tmp_path / "a-1-py3-none-any.whl"
    source.write_bytes(stream.data)
    with zipfile.ZipFile(source) as archive:
        assert all(info.flag_bits & 8 for info in archive.infolist())
    target = copy(source, tmp_path / "copy.whl")
    assert contents(target) == MEMBERS
    assert raw(target) == raw(source)
    with zipfile.ZipFile(target) as archive:
        assert not any(info.flag_bits & 8 for info in archive.infolist())
    again = copy(target, tmp_path / "again.whl")
    assert again.read_bytes() == target.read_bytes()


def test_sizes_in_64_bits_that_nobody_needs_are_made_plain(tmp_path: Path) -> None:
    source = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(source, "w") as archive:
        for name, content in MEMBERS.items():
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(content)
    target = copy(source, tmp_path / "copy.whl")
    assert contents(target) == MEMBERS
    assert target.stat().st_size < source.stat().st_size


@pytest.mark.parametrize("large", [4 * 1024**3 - 2, 4 * 1024**3 - 1, 5 * 1024**3])
def test_members_beyond_4_gib_are_found_again_by_another_reader(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    # The data are holes in a sparse file: only what the headers say is looked at.
    monkeypatch.setattr(wheel_module, "_copy", lambda _fd, _start, count, out: out.seek(count, 1))
    target = tmp_path / "copy.whl"
    with Wheel(source) as wheel, target.open("wb") as out:
        wheel.members["a/code.py"].info.file_size = large
        wheel.members["a/code.py"].info.compress_size = large
        write(wheel, out, {}, str)
    with zipfile.ZipFile(target) as archive:
        found = {info.filename: info for info in archive.infolist()}
    assert list(found) == list(MEMBERS)
    assert (found["a/code.py"].file_size, found["a/code.py"].compress_size) == (large, large)
    assert found["a/data.bin"].header_offset > large
    again = tmp_path / "again.whl"
    assert copy(target, again).stat().st_size == target.stat().st_size
    with target.open("rb") as one, again.open("rb") as two:
        for start in (0, found["a/data.bin"].header_offset):
            one.seek(start)
            two.seek(start)
            assert one.read(500) == two.read(500)
        one.seek(-900, os.SEEK_END)
        two.seek(-900, os.SEEK_END)
        assert one.read() == two.read()


def test_more_than_65535_members_are_copied(tmp_path: Path) -> None:
    source = tmp_path / "a-1-py3-none-any.whl"
    names = [f"a/{number}" for number in range(65_600)]
    with zipfile.ZipFile(source, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name, TIME), b"")
    target = copy(source, tmp_path / "copy.whl")
    with zipfile.ZipFile(target) as archive:
        assert archive.namelist() == names


def test_what_stands_before_the_zip_file_is_left_out(source: Path, tmp_path: Path) -> None:
    plain = source.read_bytes()
    source.write_bytes(b"#!/bin/sh\nexit 1\n" + plain)
    assert copy(source, tmp_path / "copy.whl").read_bytes() == plain


def test_without_sendfile_the_copy_is_the_same(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_sendfile(*_: object) -> int:
        raise OSError(22, "not on this file system")

    monkeypatch.setattr(os, "sendfile", no_sendfile)
    assert copy(source, tmp_path / "copy.whl").read_bytes() == source.read_bytes()


def test_a_wheel_cut_short_while_it_is_copied_is_an_error(source: Path, tmp_path: Path) -> None:
    with Wheel(source) as wheel, (tmp_path / "copy.whl").open("wb") as out:
        os.truncate(source, 100_000)
        with pytest.raises(OSError, match="cut short"):
            write(wheel, out, {}, str)


names = st.from_regex(r"[a-z]{1,8}(/[a-zé]{1,8}){0,2}\.[a-z]{1,3}", fullmatch=True)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(names, st.binary(max_size=3000), min_size=1), st.sampled_from([0, 8, 12]))
def test_any_copy_is_sound_and_a_second_one_the_same(
    tmp_path_factory: pytest.TempPathFactory, members: dict[str, bytes], method: int
) -> None:
    folder = tmp_path_factory.mktemp("copies")
    source = folder / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(source, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    first = copy(source, folder / "first.whl")
    assert contents(first) == members
    assert copy(first, folder / "second.whl").read_bytes() == first.read_bytes()


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
    assert contents(copy(source, tmp_path / "copy.whl")) == {"a.py": b"a" * 100}
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


def test_only_the_64_bit_field_goes_from_extra_fields() -> None:
    time = struct.pack("<HHBI", 0x5455, 5, 1, 0)
    sizes = struct.pack("<HHQQ", 1, 16, 1, 1)
    assert without_zip64(time + sizes) == time
    assert without_zip64(sizes + time + b"xyz") == time + b"xyz"
