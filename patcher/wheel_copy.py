"""A wheel written anew: new contents and names for some members, all others as they lie."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, NamedTuple

from .wheel import END, END64, LOCAL, LOCATOR64, STORED, Member, Wheel, encoded

_CENTRAL = struct.Struct("<4s6H3I5H2I")
_FIELD = struct.Struct("<2H")
_DESCRIPTOR = 0x8
_MOST_16, _MOST_32 = 0xFFFF, 0xFFFFFFFF
_VERSION_64 = 45
_SMALL = 1 << 16
_PIECE = 1 << 24
_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class Written:
    """One member as it goes into a new wheel; ``content`` is None for data copied as they lie."""

    member: Member
    name: bytes
    content: bytes | None


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
    # Neighbours that stay as they are, headers too, are copied in one stretch.
    begin = end = 0
    for member in source.members.values():
        item = Written(
            member,
            encoded(renamed(member.name), member.info.flag_bits),
            contents.get(member.name),
        )
        info = _described(item)
        header = _local_header(item, info, position)
        first = member.start - len(member.header)
        last = member.start + info.compress_size
        same = item.content is None and header == member.header
        if not same or first != end:
            _copy(source.fileno(), begin, end - begin, out)
            begin = end = first
        if same:
            end = last
        else:
            out.write(header)
            if item.content is None:
                _copy(source.fileno(), member.start, info.compress_size, out)
            else:
                out.write(item.content)
            begin = end = member.start + member.info.compress_size
        directory.append(_central_header(item, info, position))
        position += len(header) + info.compress_size
    _copy(source.fileno(), begin, end - begin, out)
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
        sizes = (STORED, zlib.crc32(item.content), len(item.content), len(item.content))
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
    name_length = len(encoded(item.member.name, item.member.info.flag_bits))
    extra = without_zip64(item.member.header[LOCAL.size + name_length :])
    sizes = (info.compress_size, info.file_size)
    large = max(sizes) >= _MOST_32
    if large:
        extra = _FIELD.pack(1, 16) + struct.pack("<2Q", info.file_size, info.compress_size) + extra
    return (
        LOCAL.pack(
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
    end = END.pack(
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
    rest = END64.size - 12
    version = _VERSION_64
    record = END64.pack(b"PK\6\6", rest, version, version, 0, 0, count, count, length, position)
    return record + LOCATOR64.pack(b"PK\6\7", 0, position + length, 1) + end


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
