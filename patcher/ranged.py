"""Members of a wheel read by explicit range requests, and kept in a cache.

Suffix ranges are answered 501 by the index that was measured, a range may be answered 200 with the
whole file, and Content-Range may not be what was asked for: each is an error here, not a surprise.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .index import Wheel, session, without_credentials
from .outcome import ExitCode, KvpatchError

if TYPE_CHECKING:
    import requests

_BLOCK = 256 * 1024
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class RemoteFile(io.RawIOBase):
    """A file on a server as a seekable one, read in blocks of 256 KiB that are kept.

    Raises:
        KvpatchError: ``bad-range``, where the server doesn't answer what it was asked.
    """

    def __init__(self, http: requests.Session, url: str, size: int | None = None) -> None:
        super().__init__()
        self._http = http
        self._url = url
        self._blocks: dict[int, bytes] = {}
        self._position = 0
        self._size = size if size is not None else self._ask(0, 0)[1]

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next read starts."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another place; nothing is fetched for it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: object) -> int:
        """Fill the buffer from the blocks, fetching those that are not here yet."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        end = min(self._position + len(view), self._size)
        if end <= self._position:
            return 0
        data = self._read(self._position, end)
        view[: len(data)] = data
        self._position = end
        return len(data)

    def _read(self, start: int, end: int) -> bytes:
        first, last = start // _BLOCK, (end - 1) // _BLOCK
        missing = [number for number in range(first, last + 1) if number not in self._blocks]
        if missing:
            low = missing[0] * _BLOCK
            high = min((missing[-1] + 1) * _BLOCK, self._size) - 1
            data, size = self._ask(low, high)
            if size != self._size:
                raise self._lie(f"the file has {size} bytes, not {self._size}")
            for number in range(missing[0], missing[-1] + 1):
                at = number * _BLOCK - low
                self._blocks[number] = data[at : at + _BLOCK]
        whole = b"".join(self._blocks[number] for number in range(first, last + 1))
        return whole[start - first * _BLOCK : end - first * _BLOCK]

    def _ask(self, low: int, high: int) -> tuple[bytes, int]:
        headers = {"Range": f"bytes={low}-{high}", "Accept-Encoding": "identity"}
        with self._http.get(self._url, headers=headers, timeout=60, stream=True) as answer:
            if answer.status_code != 206:
                raise self._lie(f"it answered {answer.status_code} instead of 206")
            found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if found is None or (int(found[1]), int(found[2])) != (low, high):
                raise self._lie("it sent another range than it was asked for")
            data = answer.content
        if len(data) != high - low + 1:
            raise self._lie(f"it sent {len(data)} bytes instead of {high - low + 1}")
        return data, int(found[3])

    def _lie(self, what: str) -> KvpatchError:
        return KvpatchError(
            "bad-range",
            f"the server of {without_credentials(self._url)} can't be read in parts: {what}",
            "use an index that serves range requests",
            ExitCode.ENVIRONMENT,
        )


def read_members(
    wheel: Wheel, paths: Sequence[str], cache: Path, http: requests.Session | None = None
) -> Mapping[str, bytes | None]:
    """Members of a wheel by path; None for one that the wheel doesn't have.

    Several processes may share the cache; what is in it is checked by its hash.

    Raises:
        KvpatchError: ``bad-range``, ``bad-wheel`` or ``no-index``; exit 4.
    """
    folder = cache / hashlib.sha256((wheel.sha256 or wheel.url).encode()).hexdigest()[:32]
    found: dict[str, bytes | None] = {}
    for path in paths:
        with contextlib.suppress(OSError, ValueError, KeyError):
            found[path] = _kept(folder, path)
    missing = [path for path in paths if path not in found]
    if missing:
        fetched = _fetch(wheel, missing, http or session())
        for path, content in fetched.items():
            _keep(folder, path, content)
        found.update(fetched)
    return found


def _fetch(
    wheel: Wheel, paths: Sequence[str], http: requests.Session
) -> Mapping[str, bytes | None]:
    import requests

    where = without_credentials(wheel.url)
    try:
        remote = io.BufferedReader(RemoteFile(http, wheel.url, wheel.size), _BLOCK)
        with zipfile.ZipFile(remote) as archive:
            names = set(archive.namelist())
            return {path: archive.read(path) if path in names else None for path in paths}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise KvpatchError(
            "bad-wheel",
            f"{where} is not a wheel that can be read: {error}",
            "report it to whoever keeps the index",
            ExitCode.ENVIRONMENT,
        ) from error
    except requests.RequestException as error:
        raise KvpatchError(
            "no-index",
            f"{where} can't be read: {type(error).__name__}",
            "check the network and the configured index, then run it again",
            ExitCode.ENVIRONMENT,
        ) from error


def _kept(folder: Path, path: str) -> bytes | None:
    note = json.loads((folder / f"{_name(path)}.json").read_text("utf-8"))
    if note["sha256"] is None:
        return None
    content = (folder / _name(path)).read_bytes()
    if hashlib.sha256(content).hexdigest() != note["sha256"]:
        raise ValueError("the cache is damaged")
    return content


def _keep(folder: Path, path: str, content: bytes | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    digest = None if content is None else hashlib.sha256(content).hexdigest()
    if content is not None:
        _write(folder / _name(path), content)
    note = {"path": path, "sha256": digest}
    _write(folder / f"{_name(path)}.json", json.dumps(note).encode())


def _write(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(temporary).replace(path)


def _name(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:32]
