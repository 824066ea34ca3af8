"""Wheels as zip files: members read within limits, and all others copied as they lie."""

from __future__ import annotations

import errno
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

from .outcome import ExitCode, KvpatchError

MOST_MEMBERS = 200_000
MOST_DIRECTORY = 64 * 1024 * 1024
MOST_READ = 64 * 1024 * 1024
MOST_RATIO = 200
"""The most that all members together may hold, in sizes of the wheel. Real wheels stay below 10."""

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_FIELD = struct.Struct("<2H")
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_DESCRIPTOR = 0x8
_UTF8 = 0x800
_STORED, _DEFLATED = 0, 8
_MOST_16, _MOST_32 = 0xFFFF, 0xFFFFFFFF
_VERSION_64 = 45
_SMALL = 1 << 16
_PIECE = 1 << 24
_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_ODD_NAME = re.compile(r"[\x00-\x1f\x7f\\]|(^|/)\.{0,2}(/|$)|^[A-Za-z]:")


class Member(NamedTuple):
    """One member: what the directory says of it, where its data lie, and its local extra fields.

    ``start`` is the offset of its data in the wheel's file, in bytes.
    """

    info: zipfile.ZipInfo
    start: int
    extra: bytes

    @property
    def name(self) -> str:
        """Its path, with a slash at the end where it is a folder."""
        return self.info.filename


@dataclass(frozen=True)
class Written:
    """One member as it goes into a new wheel; ``content`` is None for data copied as they lie."""

    member: Member
    name: bytes
    content: bytes | None


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
        if info.compress_type == _STORED:
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
        tail_start = max(0, self.size - _END.size - _MOST_16)
        tail = os.pread(self.fileno(), self.size - tail_start, tail_start)
        at = tail.rfind(b"PK\5\6")
        if at < 0 or len(tail) - at < _END.size:
            raise bad_wheel(self.path, "it is not a zip file")
        _, disk, first, _, count, length, _, _ = _END.unpack_from(tail, at)
        before = at - _LOCATOR64.size
        if before >= 0 and tail[before : before + 4] == b"PK\6\7":
            _, disk, place, _ = _LOCATOR64.unpack_from(tail, before)
            record = os.pread(self.fileno(), _END64.size, place) if place < self.size else b""
            if len(record) == _END64.size and record[:4] == b"PK\6\6":
                _, _, _, _, disk, first, _, count, length, _ = _END64.unpack(record)
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
        header = os.pread(self.fileno(), _LOCAL.size, offset) if offset >= 0 else b""
        if len(header) < _LOCAL.size or header[:4] != b"PK\3\4":
            raise bad_wheel(self.path, f"{info.filename} in it has no header")
        flags, method, name_length, extra_length = (_LOCAL.unpack(header)[n] for n in (2, 3, 9, 10))
        rest = os.pread(self.fileno(), name_length + extra_length, offset + _LOCAL.size)
        if rest[:name_length] != encoded(info.filename, info.flag_bits):
            raise unsafe(self.path, f"{info.filename} has another name in its own header")
        if flags & _ENCRYPTED or method != info.compress_type:
            raise unsafe(self.path, f"{info.filename} is another thing by its own header")
        start = offset + _LOCAL.size + name_length + extra_length
        if start + info.compress_size > end:
            raise unsafe(self.path, f"{info.filename} runs into what follows it")
        return Member(info, start, rest[name_length:])


def encoded(name: str, flags: int) -> bytes:
    """A name as it stands in the zip file."""
    return name.encode("utf-8" if flags & _UTF8 else "cp437")


def write(
    source: Wheel,
    out: IO[bytes],
    contents: Mapping[str, bytes],
    renamed: Callable[[str], str],
) -> None:
    """Write a wheel with other contents for some members and other names for some.

    All other data are copied as they lie, compressed as they are. New contents are stored without
    compression, so that the bytes don't depend on a release of zlib. Order, times and modes are
    those of the source; data descriptors become sizes in the headers.

    Args:
        source: the wheel to copy.
        out: an empty file, open to be written and unbuffered or flushed.
        contents: new bytes by member, under the source's names.
        renamed: the new name of a member.

    Raises:
        OSError: the file can't be written, or the source can't be read.
    """
    directory: list[bytes] = []
    position = 0
    for member in source.members.values():
        item = Written(
            member,
            encoded(renamed(member.name), member.info.flag_bits),
            contents.get(member.name),
        )
        info = _described(item)
        header = _local_header(item, info, position)
        out.write(header)
        if item.content is None:
            _copy(source.fileno(), member.start, info.compress_size, out)
        else:
            out.write(item.content)
        directory.append(_central_header(item, info, position))
        position += len(header) + info.compress_size
    listing = b"".join(directory)
    out.write(listing)
    out.write(_end(len(directory), len(listing), position))
    out.flush()


class _Described(NamedTuple):
    """What both headers of a member say of it."""

    flags: int
    method: int
    time: int
    date: int
    crc: int
    compress_size: int
    file_size: int


def _described(item: Written) -> _Described:
    info = item.member.info
    year, month, day, hour, minute, second = info.date_time
    sizes = (info.compress_type, info.CRC, info.compress_size, info.file_size)
    if item.content is not None:
        sizes = (_STORED, zlib.crc32(item.content), len(item.content), len(item.content))
    method, crc, compress_size, file_size = sizes
    return _Described(
        info.flag_bits & ~_DESCRIPTOR,
        method,
        hour << 11 | minute << 5 | second // 2,
        (year - 1980) << 9 | month << 5 | day,
        crc,
        compress_size,
        file_size,
    )


def _local_header(item: Written, info: _Described, offset: int) -> bytes:
    extra = without_zip64(item.member.extra)
    sizes = (info.compress_size, info.file_size)
    large = max(sizes) >= _MOST_32
    if large:
        extra = _FIELD.pack(1, 16) + struct.pack("<2Q", info.file_size, info.compress_size) + extra
    return (
        _LOCAL.pack(
            b"PK\3\4",
            _needed(item, info, offset),
            *info[:5],
            *((_MOST_32, _MOST_32) if large else sizes),
            len(item.name),
            len(extra),
        )
        + item.name
        + extra
    )


def _central_header(item: Written, info: _Described, offset: int) -> bytes:
    source = item.member.info
    sizes, large = (info.compress_size, info.file_size), []
    if max(sizes) >= _MOST_32:
        sizes, large = (_MOST_32, _MOST_32), [info.file_size, info.compress_size]
    if offset >= _MOST_32:
        large.append(offset)
    extra = without_zip64(source.extra)
    if large:
        extra = _FIELD.pack(1, 8 * len(large)) + struct.pack(f"<{len(large)}Q", *large) + extra
    return (
        _CENTRAL.pack(
            b"PK\1\2",
            source.create_version | source.create_system << 8,
            _needed(item, info, offset),
            *info[:5],
            *sizes,
            len(item.name),
            len(extra),
            len(source.comment),
            0,
            source.internal_attr,
            source.external_attr,
            min(offset, _MOST_32),
        )
        + item.name
        + extra
        + source.comment
    )


def _needed(item: Written, info: _Described, offset: int) -> int:
    """The release of the format that reads the member, the same in both headers."""
    large = max(info.compress_size, info.file_size, offset) >= _MOST_32
    return max(item.member.info.extract_version, _VERSION_64 if large else 0)


def _end(count: int, length: int, position: int) -> bytes:
    """What closes the file: where the directory is, in 64 bits where 32 don't hold it."""
    end = _END.pack(
        b"PK\5\6",
        0,
        0,
        *(min(count, _MOST_16),) * 2,
        min(length, _MOST_32),
        min(position, _MOST_32),
        0,
    )
    if count < _MOST_16 and length < _MOST_32 and position < _MOST_32:
        return end
    rest = _END64.size - 12
    version = _VERSION_64
    record = _END64.pack(b"PK\6\6", rest, version, version, 0, 0, count, count, length, position)
    return record + _LOCATOR64.pack(b"PK\6\7", 0, position + length, 1) + end


def without_zip64(extra: bytes) -> bytes:
    """Extra fields without the one that holds sizes in 64 bits; what is no field stays."""
    kept, at = b"", 0
    while at + _FIELD.size <= len(extra):
        kind, length = _FIELD.unpack_from(extra, at)
        end = at + _FIELD.size + length
        if kind != 1:
            kept += extra[at:end]
        at = end
    return kept + extra[at:]


def _copy(source: int, start: int, count: int, out: IO[bytes]) -> None:
    """Copy a stretch of a file, within the kernel where that pays and the file system can."""
    if count > _SMALL:
        out.flush()
        while count:
            try:
                sent = os.sendfile(out.fileno(), source, start, count)
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
                break
            if not sent:
                break
            start, count = start + sent, count - sent
    while count:
        piece = os.pread(source, min(count, _PIECE), start)
        if not piece:
            raise OSError(errno.EIO, "the file was cut short while it was read")
        out.write(piece)
        start, count = start + len(piece), count - len(piece)


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
