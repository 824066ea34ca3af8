"""A wheel on the index as a folder of files: its directory and single members, read by ranges."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import sys
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .digest import sha256, sha256_of
from .index import Wheel, kept_file, no_cache, write_atomically
from .outcome import ExitCode, KvpatchError
from .ranged import RangedFile
from .sealed import seal, unseal
from .workshop import workshop

if TYPE_CHECKING:
    import requests

# Members this close together are cheaper in one request than in two (bytes).
_GAP = 96 * 1024
_LOCAL_HEADER = 30
# Holds the directory of a small wheel; that of a large one takes a second request.
_TAIL = 48 * 1024
_MOST_MEMBER = 16 * 1024 * 1024
_MOST_RATIO = 200
_MOST_MEMBERS = 50_000
_MOST_DIRECTORY = 8 * 1024 * 1024
_SCHEMA = 1
_ENCRYPTED = -1
_KEPT_SUFFIXES = (".py", ".so", ".dist-info/METADATA")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a member lies in its wheel: all numbers in bytes, ``crc`` that of the directory.

    ``method`` is how it is packed, as zip numbers it; negative where it is encrypted.
    """

    offset: int
    packed: int
    size: int
    crc: int
    method: int


@dataclass
class Traffic:
    """What was read over the network in one run; several threads count in it."""

    requests: int = 0
    bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, size: int, requests: int = 1) -> None:
        """Count so many bytes in one answer, or in several."""
        with self.lock:
            self.requests += requests
            self.bytes += size


@dataclass
class RemoteWheel:
    """One wheel of the index. Nothing but the directory is read until a member is asked for.

    Where its server answers no ranges, a wheel of at most ``max_download`` bytes is read whole.
    ``held`` are members by path, CRC and size: the wheels of one run share it, for most members are
    the same in the next release. A server that could not be reached for this wheel is not asked for
    it again.
    """

    wheel: Wheel
    session: requests.Session
    cache: Path
    traffic: Traffic = field(default_factory=Traffic)
    max_download: int = 0
    held: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    _whole: Path | None = None
    _entries: Mapping[str, Entry] | None = None
    _members: dict[str, bytes] = field(default_factory=dict)
    _read: dict[str, None] = field(default_factory=dict)
    _failed: dict[str, KvpatchError] = field(default_factory=dict)
    _down: KvpatchError | None = None
    _other: frozenset[str] | None = None

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Path to where it lies, of the Python sources, extensions and METADATA.

        Raises:
            KvpatchError: ``no-network``, ``no-ranges``, ``bad-wheel``, ``no-cache``; exit 4.
        """
        if self._entries is None:
            self._entries = self._kept_directory()
        if self._entries is None:
            with self._asking():
                self._entries = self._fetched_directory()
        return self._entries

    def read(self, path: str) -> bytes | None:
        """The bytes of one member, None where the wheel has none of that path.

        Raises:
            KvpatchError: as :attr:`entries`; the same again for a path that failed before.
        """
        if path not in self._members:
            if path in self._failed:
                raise self._failed[path].again
            try:
                self.prefetch([path])
            except KvpatchError as error:
                # Dozens of pairs ask for it, and each would wait for the network anew.
                self._failed[path] = error
                raise
        found = self._members.get(path)
        if found is not None:
            self._read[path] = None
        return found

    def opaque(self, module: str) -> bool:
        """Whether the wheel has an extension of that module, or a folder of that name."""
        if self._other is None:
            folders = {path.rpartition("/")[0] for path in self.entries}
            parents = {"/".join(f.split("/")[:end]) for f in folders for end in range(1, 9)}
            compiled = {path.partition(".")[0] for path in self.entries if path.endswith(".so")}
            self._other = frozenset(parents | folders | compiled)
        return module.replace(".", "/") in self._other

    @property
    def read_paths(self) -> tuple[str, ...]:
        """The members that were read so far, what was but fetched ahead left out."""
        return tuple(self._read)

    def metadata(self) -> bytes | None:
        """The text of METADATA; None where there is none."""
        found = [path for path in self.entries if path.endswith(".dist-info/METADATA")]
        return self.read(min(found, key=len)) if found else None

    def prefetch(self, paths: Iterable[str]) -> None:
        """Read the members of those paths that there are, in as few requests as it takes."""
        wanted: list[tuple[Entry, str]] = []
        for path in paths:
            entry = self.entries.get(path)
            if entry is None or path in self._members:
                continue
            kept = self._kept_member(path, entry)
            if kept is None:
                self._check(entry, path)
                wanted.append((entry, path))
            else:
                self._hold(path, entry, kept)
        for run in _runs(sorted(wanted, key=lambda item: item[0].offset)):
            with self._asking():
                self._fetch(run)

    def forget(self) -> None:
        """Drop what is held in memory; the cache folder keeps it."""
        self._members.clear()
        self._entries = None
        self._other = None

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        # Each request was tried again and again already: that may have taken minutes.
        if self._down is not None:
            raise self._down.again
        try:
            yield
        except KvpatchError as error:
            if error.code == "no-network":
                self._down = error
            raise

    def _fetch(self, run: list[tuple[Entry, str]]) -> None:
        start = run[0][0].offset
        end = max(_end(entry, path) for entry, path in run)
        file = self._opened(tail=0)
        if isinstance(file, RangedFile):
            file.fetch(start, end)
        last = min(end, file.seek(0, io.SEEK_END))
        file.seek(start)
        data = file.read(last - start)
        if isinstance(file, RangedFile):
            self.traffic.add(len(data))
        # A view: the rest of a run, copied for each of its members, is most of the time there.
        view = memoryview(data)
        for entry, path in run:
            member = self._unpacked(entry, path, view[entry.offset - start :])
            self._hold(path, entry, member)
            write_atomically(self._member_place(path, entry), member)

    def _hold(self, path: str, entry: Entry, member: bytes) -> None:
        self._members[path] = self.held.setdefault((path, entry.crc, entry.size), member)

    def _opened(self, tail: int) -> RangedFile | BinaryIO:
        """The wheel by ranges, or the whole of it where its server knows none and it is small."""
        wheel = self.wheel
        if self._whole is None:
            try:
                # Only who looks for the directory asks for a tail.
                most = _MOST_DIRECTORY if tail else None
                name, size = wheel.filename, wheel.size
                return RangedFile(self.session, wheel.url, size, name, tail=tail, most=most)
            except KvpatchError as error:
                if error.code != "no-ranges" or not 0 < (wheel.size or 0) <= self.max_download:
                    raise
            self._whole = self._downloaded()
        return self._whole.open("rb")

    def _downloaded(self) -> Path:
        from .download import fetch

        place = self.cache / "whole" / f"{self.wheel.sha256}.whl"
        try:
            # A disk may have changed it since.
            if not place.is_file() or sha256_of(place) != self.wheel.sha256:
                with workshop(place.parent) as folder:
                    fetch(self.wheel, folder, lambda _: None).replace(place)
                self.traffic.add(self.wheel.size or 0)
        except OSError as error:
            raise no_cache(place.parent, error) from None
        return place

    def _unpacked(self, entry: Entry, path: str, data: memoryview) -> bytes:
        if bytes(data[:4]) != b"PK\x03\x04" or len(data) < _LOCAL_HEADER:
            raise self._bad(f"has no header where {path} should be")
        name, extra = struct.unpack_from("<HH", data, 26)
        first = _LOCAL_HEADER + name + extra
        packed = data[first : first + entry.packed]
        if len(packed) != entry.packed:
            raise self._bad(f"breaks off in {path}")
        try:
            if entry.method == zipfile.ZIP_STORED:
                member = bytes(packed)
            else:
                # One byte more than the directory says is enough to see that it says wrong.
                member = zlib.decompressobj(-15).decompress(packed, entry.size + 1)
        except zlib.error as error:
            raise self._bad(f"has a damaged {path} ({error})") from None
        if len(member) != entry.size or zlib.crc32(member) != entry.crc:
            raise self._bad(f"has a damaged {path}")
        return member

    def _fetched_directory(self) -> Mapping[str, Entry]:
        file = self._opened(tail=_TAIL)
        try:
            with zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
            raise self._bad(f"is not a sound wheel ({error})") from None
        finally:
            if isinstance(file, RangedFile):
                self.traffic.add(file.fetched)
        if len(infos) > _MOST_MEMBERS:
            raise self._bad(f"has {len(infos)} members, more than {_MOST_MEMBERS}")
        entries = {
            sys.intern(info.filename): Entry(
                info.header_offset,
                info.compress_size,
                info.file_size,
                info.CRC,
                _ENCRYPTED if info.flag_bits & 0x1 else info.compress_type,
            )
            for info in infos
            if info.filename.endswith(_KEPT_SUFFIXES)
        }
        data = {
            "schema": _SCHEMA,
            "wheel": [self.wheel.filename, self.wheel.sha256],
            "members": {
                path: [entry.offset, entry.packed, entry.size, entry.crc, entry.method]
                for path, entry in entries.items()
            },
        }
        write_atomically(self._directory_place, seal(json.dumps(data).encode()))
        return entries

    def _check(self, entry: Entry, path: str) -> None:
        """See that a member can be unpacked, and how large it would be, before it is fetched.

        One that nobody reads is no reason to read none of the wheel.
        """
        if entry.method == _ENCRYPTED:
            raise self._bad(f"has an encrypted {path}")
        if entry.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._bad(f"packs {path} in a way that is not known here")
        too_big = max(entry.size, entry.packed) > _MOST_MEMBER
        if too_big or entry.size > _MOST_RATIO * max(entry.packed, 1024):
            raise self._bad(f"has an oversized {path}")

    def _kept_directory(self) -> Mapping[str, Entry] | None:
        try:
            data = json.loads(unseal(kept_file(self._directory_place)))
            if data["schema"] != _SCHEMA:
                return None
            if data["wheel"] != [self.wheel.filename, self.wheel.sha256]:
                return None
            # The same paths come again in every release.
            members = data["members"].items()
            return {sys.intern(path): Entry(*numbers) for path, numbers in members}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _kept_member(self, path: str, entry: Entry) -> bytes | None:
        held = self.held.get((path, entry.crc, entry.size))
        if held is not None:
            return held
        try:
            data = kept_file(self._member_place(path, entry))
        except OSError:
            return None
        sound = len(data) == entry.size and zlib.crc32(data) == entry.crc
        return data if sound else None

    @property
    def _directory_place(self) -> Path:
        key = self.wheel.sha256 or sha256(f"{self.wheel.filename} {self.wheel.url}".encode())
        return self.cache / "directories" / f"{self.wheel.filename}-{key[:16]}.json"

    def _member_place(self, path: str, entry: Entry) -> Path:
        key = sha256(f"{path} {entry.crc} {entry.size}".encode())
        return self.cache / "files" / key[:2] / key

    def _bad(self, why: str) -> KvpatchError:
        return KvpatchError(
            "bad-wheel",
            f"{self.wheel.filename} {why}",
            "try again; if it stays so, the wheel on the index is damaged",
            ExitCode.ENVIRONMENT,
        )


def _end(entry: Entry, path: str) -> int:
    # The local header repeats the name and may have extra fields of its own.
    return entry.offset + _LOCAL_HEADER + len(path.encode()) + 128 + entry.packed


def _runs(wanted: list[tuple[Entry, str]]) -> list[list[tuple[Entry, str]]]:
    runs: list[list[tuple[Entry, str]]] = []
    end = 0
    for entry, path in wanted:
        if runs and entry.offset - end <= _GAP:
            runs[-1].append((entry, path))
        else:
            runs.append([(entry, path)])
        end = max(end, _end(entry, path))
    return runs
