"""Wheels as zip files: every member is looked at before any is read, and read within limits."""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from .outcome import ExitCode, KvpatchError

MOST_MEMBERS = 200_000
MOST_DIRECTORY = 64 * 1024 * 1024
MOST_READ = 64 * 1024 * 1024
MOST_RATIO = 200
"""The most that all members together may hold, in sizes of the wheel. Real wheels stay below 10."""

# The headers of the format (APPNOTE.TXT 4.3), of which wheel_copy writes new ones.
LOCAL = struct.Struct("<4s5H3I2H")
END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR64 = struct.Struct("<4sIQI")
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_UTF8 = 0x800
STORED, _DEFLATED = 0, 8
_MOST_COMMENT = 0xFFFF
_HEADER_GUESS = 256
_ODD_NAME = re.compile(r"[\x00-\x1f\x7f\\]|(^|/)\.{0,2}(/|$)|^[A-Za-z]:")


class Member(NamedTuple):
    """One member: what the directory says of it, its own header, and where its data lie.

    ``start`` is the offset of its data in the wheel's file, in bytes; the header ends there.
    """

    info: zipfile.ZipInfo
    header: bytes
    start: int

    @property
    def name(self) -> str:
        """Its path, with a slash at the end where it is a folder."""
        return self.info.filename


class Wheel:
    """A wheel that is open to be read; its members were looked at, and none is unsafe to copy.

    Raises:
        KvpatchError: ``no-wheel`` (exit 4), ``bad-wheel`` or ``unsafe-wheel`` (exit 3).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        why = "it is not a file"
        try:
            # Opening a pipe would wait for somebody to write into it.
            file = path.open("rb") if path.is_file() or not path.exists() else None
        except OSError as error:
            why, file = str(error.strerror), None
        if file is None:
            raise KvpatchError(
                "no-wheel",
                f"{path} can't be read: {why}",
                "give the path of a wheel, or the version of a release",
                ExitCode.ENVIRONMENT,
            )
        self._file = file
        try:
            self.size = os.fstat(self._file.fileno()).st_size
            self.members = self._members()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Wheel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def fileno(self) -> int:
        """The descriptor of the open file."""
        return self._file.fileno()

    def read(self, name: str) -> bytes | None:
        """The bytes of one member, checked by its CRC; None where there is no such file.

        Raises:
            KvpatchError: ``bad-wheel``, for one that is damaged or larger than ``MOST_READ``.
        """
        member = self.members.get(name)
        if member is None or name.endswith("/"):
            return None
        info = member.info
        if info.file_size > MOST_READ or info.compress_size > MOST_READ:
            raise unsafe(self.path, f"{name} is {info.file_size} bytes long")
        raw = os.pread(self.fileno(), info.compress_size, member.start)
        data = self._inflated(info, raw)
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise bad_wheel(self.path, f"{name} in it is damaged")
        return data

    def _inflated(self, info: zipfile.ZipInfo, raw: bytes) -> bytes:
        if info.compress_type == STORED:
            return raw
        if info.compress_type != _DEFLATED:
            raise bad_wheel(
                self.path, f"{info.filename} is compressed in a way that pip can't read"
            )
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # One byte more than promised, so that a longer member shows.
            return engine.decompress(raw, info.file_size + 1)
        except zlib.error:
            raise bad_wheel(self.path, f"{info.filename} in it is damaged") from None

    def _members(self) -> Mapping[str, Member]:
        self._check_directory()
        try:
            with zipfile.ZipFile(self._file) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise bad_wheel(self.path, f"it is not a zip file ({error})") from None
        members: dict[str, Member] = {}
        total, end = 0, self.size
        for info in sorted(infos, key=lambda item: item.header_offset, reverse=True):
            self._check(info)
            member = self._located(info, end)
            end = info.header_offset
            total += info.file_size
            if members.setdefault(member.name, member) is not member:
                raise unsafe(self.path, f"{member.name} is in it twice")
        if total > MOST_RATIO * self.size:
            raise unsafe(self.path, f"its members are {total} bytes, {total // self.size} times it")
        folders = {name.rstrip("/") for name in members if name.endswith("/")}
        if clash := folders & members.keys():
            raise unsafe(self.path, f"{min(clash)} is both a folder and a file in it")
        # In the order of the directory, which is the order of the new one.
        return {info.filename: members[info.filename] for info in infos}

    def _check_directory(self) -> None:
        """See how large the directory is, before all of it is read."""
        tail_start = max(0, self.size - END.size - _MOST_COMMENT)
        tail = os.pread(self.fileno(), self.size - tail_start, tail_start)
        at = tail.rfind(b"PK\5\6")
        if at < 0 or len(tail) - at < END.size:
            raise bad_wheel(self.path, "it is not a zip file")
        _, disk, first, _, count, length, _, _ = END.unpack_from(tail, at)
        before = at - LOCATOR64.size
        if before >= 0 and tail[before : before + 4] == b"PK\6\7":
            _, disk, place, _ = LOCATOR64.unpack_from(tail, before)
            record = os.pread(self.fileno(), END64.size, place) if place < self.size else b""
            if len(record) == END64.size and record[:4] == b"PK\6\6":
                _, _, _, _, disk, first, _, count, length, _ = END64.unpack(record)
        if disk or first:
            raise bad_wheel(self.path, "it is one part of a zip file in several")
        if count > MOST_MEMBERS or length > MOST_DIRECTORY:
            raise unsafe(self.path, f"it has {count} members")

    def _check(self, info: zipfile.ZipInfo) -> None:
        name = info.orig_filename
        shown = name.encode("unicode_escape").decode()
        if info.flag_bits & _ENCRYPTED:
            raise unsafe(self.path, f"{shown} in it is encrypted")
        if name != info.filename or _ODD_NAME.search(name[:-1] if name.endswith("/") else name):
            raise unsafe(self.path, f"a member is called {shown}, which is no path below a folder")

    def _located(self, info: zipfile.ZipInfo, end: int) -> Member:
        """The member with its data, which must end where the next one begins, or before."""
        offset = info.header_offset
        header = os.pread(self.fileno(), _HEADER_GUESS, offset) if offset >= 0 else b""
        if len(header) < LOCAL.size or header[:4] != b"PK\3\4":
            raise bad_wheel(self.path, f"{info.filename} in it has no header")
        fields = LOCAL.unpack_from(header)
        flags, method, name_length, extra_length = (fields[n] for n in (2, 3, 9, 10))
        length = LOCAL.size + name_length + extra_length
        if length > len(header):
            header = os.pread(self.fileno(), length, offset)
        header = header[:length]
        if header[LOCAL.size :][:name_length] != encoded(info.filename, info.flag_bits):
            raise unsafe(self.path, f"{info.filename} has another name in its own header")
        if flags & _ENCRYPTED or method != info.compress_type:
            raise unsafe(self.path, f"{info.filename} is another thing by its own header")
        start = offset + length
        if start + info.compress_size > end:
            raise unsafe(self.path, f"{info.filename} runs into what follows it")
        return Member(info, header, start)


def encoded(name: str, flags: int) -> bytes:
    """A name as it stands in the zip file."""
    # Python's own encoder for cp437 takes ten times as long as that for ASCII.
    return name.encode() if flags & _UTF8 or name.isascii() else name.encode("cp437")


def bad_wheel(path: Path, why: str) -> KvpatchError:
    """What to say of a file that is no sound wheel; exit 3."""
    return KvpatchError(
        "bad-wheel",
        f"{path.name}: {why}",
        "fetch the wheel again, and give the file as the index has it",
    )


def unsafe(path: Path, why: str) -> KvpatchError:
    """What to say of a wheel that nobody should install; exit 3."""
    return KvpatchError(
        "unsafe-wheel",
        f"{path.name}: {why}",
        "no build tool makes such a wheel: find out where it comes from",
    )
