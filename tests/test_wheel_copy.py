"""Wheels written anew: what is copied as it lay, and that other readers take the result."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvpatch import wheel_copy
from kvpatch.wheel import Wheel
from kvpatch.wheel_copy import without_zip64, write
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


def copy_sparsely(source: int, start: int, count: int, out: IO[bytes]) -> None:
    """Copy what is not a hole, so that gigabytes cost nothing."""
    end = start + count
    while start < end:
        try:
            data = min(os.lseek(source, start, os.SEEK_DATA), end)
        except OSError:
            data = end
        out.seek(data - start, os.SEEK_CUR)
        start = data
        if start < end:
            hole = min(os.lseek(source, start, os.SEEK_HOLE), end, start + (1 << 20))
            out.write(os.pread(source, hole - start, start))
            start = hole


@pytest.mark.parametrize("large", [4 * 1024**3 - 2, 4 * 1024**3 - 1, 5 * 1024**3])
def test_members_beyond_4_gib_are_found_again_by_another_reader(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(wheel_copy, "_copy", copy_sparsely)
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


def test_only_the_64_bit_field_goes_from_extra_fields() -> None:
    time = struct.pack("<HHBI", 0x5455, 5, 1, 0)
    sizes = struct.pack("<HHQQ", 1, 16, 1, 1)
    assert without_zip64(time + sizes) == time
    assert without_zip64(sizes + time + b"xyz") == time + b"xyz"
