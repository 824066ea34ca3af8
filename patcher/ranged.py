"""Single members of wheels, read by HTTP ranges and kept on disk; no wheel is downloaded whole."""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import body
from .connection import TIMEOUT_S, connection, no_network
from .digest import sha256
from .index import Wheel, configured, kept_file, write_atomically
from .outcome import ExitCode, KvpatchError

if TYPE_CHECKING:
    import requests

# Holds the directory of most wheels, so that a member takes two requests.
_TAIL = 320 * 1024
_LEAST = 16 * 1024
_MOST_MEMBER = 64 * 1024 * 1024
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SCHEMA = 1


def read_members(
    wheel: Wheel,
    paths: Sequence[str],
    cache_dir: Path,
    *,
    session: requests.Session | None = None,
) -> Mapping[str, bytes | None]:
    """The members of one wheel by path, None for each that it doesn't have.

    Each is checked by the CRC of the wheel when it is fetched, and by its sha256 when it comes from
    ``cache_dir``, which several processes may use at once.

    Raises:
        KvpatchError: ``no-network``, ``bad-wheel``, ``no-cache``, ``no-validate-extra``; exit 4.
    """
    kept = _manifest(wheel, cache_dir)
    members = {path: _kept_member(kept, path, cache_dir) for path in paths}
    wanting = [path for path, found in members.items() if isinstance(found, _Wanting)]
    if wanting:
        if session is None:
            with connection(configured()) as own:
                fetched = _fetch(wheel, wanting, own)
        else:
            fetched = _fetch(wheel, wanting, session)
        _keep(wheel, fetched, cache_dir)
        members.update(fetched)
    return {path: data for path, data in members.items() if not isinstance(data, _Wanting)}


class _Wanting:
    """A member that the cache doesn't tell of."""


class RangedFile(io.RawIOBase):
    """A seekable file over explicit ranges of a URL. Suffix ranges are not answered everywhere.

    ``tail`` bytes at its end are read at once; a read of more than ``most`` bytes is refused.
    """

    def __init__(
        self,
        session: requests.Session,
        url: str,
        size: int | None,
        what: str,
        *,
        tail: int | None = None,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self._most = most
        self._session = session
        self._url = url
        self._what = what
        self._position = 0
        self._spans: list[tuple[int, bytes]] = []
        self._size = self._ask_size() if size is None else size
        ahead = _TAIL if tail is None else tail
        self.fetch(max(0, self._size - ahead), self._size)

    @property
    def size(self) -> int:
        """The size of the whole file in bytes."""
        return self._size

    @property
    def fetched(self) -> int:
        """How many bytes were read over the network so far."""
        return sum(len(data) for _, data in self._spans)

    def seekable(self) -> bool:
        """It is."""
        return True

    def readable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves within the file.

        Raises:
            ValueError: before its start.
        """
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("seek before the start of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Exactly that many bytes, fewer only at the end."""
        end = self._size if size is None or size < 0 else self._position + size
        start, end = self._position, min(end, self._size)
        if start >= end:
            return b""
        if self._most is not None and end - start > self._most:
            raise _bad_wheel(self._what, f"has a directory of {end - start} bytes")
        span = self._span(start, end)
        if span is None:
            self.fetch(start, max(end, start + _LEAST))
            span = self._span(start, end)
            assert span is not None
        self._position = end
        return span

    def fetch(self, start: int, end: int) -> None:
        """Makes that stretch (in bytes, without its end) ready to be read."""
        end = min(end, self._size)
        if start < end and self._span(start, end) is None:
            data, total = self._ask(start, end)
            if total != self._size:
                raise _bad_wheel(self._what, "has another size than the index says")
            self._spans.append((start, data))

    def _span(self, start: int, end: int) -> bytes | None:
        for begin, data in reversed(self._spans):
            if begin <= start and end <= begin + len(data):
                return data[start - begin : end - begin]
        return None

    def _ask_size(self) -> int:
        return self._ask(0, 1)[1]

    def _ask(self, start: int, end: int) -> tuple[bytes, int]:
        import urllib3

        # Coded otherwise than "identity", a range is one of the coded bytes.
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        try:
            # Streamed, because a server that ignores the range sends half a gigabyte.
            with self._session.get(
                self._url, headers=headers, stream=True, timeout=TIMEOUT_S
            ) as answer:
                answer.raise_for_status()
                told = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
                if answer.status_code != 206 or told is None:
                    raise _no_ranges(self._what)
                first, last, total = (int(number) for number in told.groups())
                if (first, last) != (start, end - 1):
                    raise _no_ranges(self._what)
                data = body.read(answer.raw, end - start)
        except body.TooLongError:
            raise _bad_wheel(self._what, "is sent with more bytes than were asked for") from None
        except (OSError, urllib3.exceptions.HTTPError, ValueError) as error:
            raise no_network(self._what, error) from None
        if len(data) != end - start:
            raise _bad_wheel(self._what, "broke off in the middle of a range")
        return data, total


def _fetch(
    wheel: Wheel, paths: Sequence[str], session: requests.Session
) -> Mapping[str, bytes | None]:
    file = RangedFile(session, wheel.url, wheel.size, wheel.filename)
    members: dict[str, bytes | None] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for path in paths:
                try:
                    info = archive.getinfo(path)
                except KeyError:
                    members[path] = None
                    continue
                if info.file_size > _MOST_MEMBER:
                    raise _bad_wheel(wheel.filename, f"has an oversized {path}")
                # The local header has a name and extra fields of its own before the data.
                ahead = 30 + len(info.orig_filename.encode()) + len(info.extra) + 64
                start = info.header_offset
                file.fetch(start, start + ahead + info.compress_size)
                members[path] = archive.read(info)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise _bad_wheel(wheel.filename, f"is not a sound wheel ({error})") from None
    except (OSError, ValueError) as error:
        raise _bad_wheel(wheel.filename, f"can't be read ({type(error).__name__})") from None
    return members


def _manifest_place(wheel: Wheel, cache_dir: Path) -> Path:
    key = wheel.sha256 or sha256(f"{wheel.filename} {wheel.url}".encode())
    return cache_dir / "wheels" / f"{wheel.distribution}-{wheel.version}-{key[:16]}.json"


def _manifest(wheel: Wheel, cache_dir: Path) -> Mapping[str, str | None]:
    """Path of a member to the sha256 of its bytes, null for one that the wheel doesn't have."""
    try:
        data = json.loads(kept_file(_manifest_place(wheel, cache_dir)))
        if data["schema"] != _SCHEMA or data["wheel"] != [wheel.filename, wheel.sha256]:
            return {}
        members = data["members"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return members if isinstance(members, dict) else {}


def _kept_member(
    manifest: Mapping[str, str | None], path: str, cache_dir: Path
) -> bytes | _Wanting | None:
    if path not in manifest:
        return _Wanting()
    digest = manifest[path]
    if digest is None:
        return None
    try:
        data = kept_file(_blob_place(digest, cache_dir))
    except (OSError, ValueError):
        return _Wanting()
    return data if sha256(data) == digest else _Wanting()


def _keep(wheel: Wheel, members: Mapping[str, bytes | None], cache_dir: Path) -> None:
    digests: dict[str, str | None] = {}
    for path, data in members.items():
        digests[path] = None if data is None else sha256(data)
        if data is not None:
            write_atomically(_blob_place(str(digests[path]), cache_dir), data)
    # Two processes at once can lose each other's entries here: they are fetched again, no more.
    entry = {
        "schema": _SCHEMA,
        "wheel": [wheel.filename, wheel.sha256],
        "members": {**_manifest(wheel, cache_dir), **digests},
    }
    write_atomically(_manifest_place(wheel, cache_dir), json.dumps(entry, indent=1).encode())


def _blob_place(digest: str, cache_dir: Path) -> Path:
    if not re.fullmatch(r"[0-9a-f]{64}", str(digest)):
        raise ValueError("not a sha256")
    return cache_dir / "members" / digest[:2] / digest


def _no_ranges(what: str) -> KvpatchError:
    return KvpatchError(
        "no-ranges",
        f"the server that holds {what} does not answer a range of bytes with that range",
        "use an index whose file server supports HTTP ranges; `kvpatch validate --max-download MB` "
        "reads small wheels whole",
        ExitCode.ENVIRONMENT,
    )


def _bad_wheel(what: str, why: str) -> KvpatchError:
    return KvpatchError(
        "bad-wheel",
        f"{what} {why}",
        "try again; if it stays so, the wheel on the index is damaged",
        ExitCode.ENVIRONMENT,
    )
