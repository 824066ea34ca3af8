"""A package index in this process that holds small wheels of the stand-in pair."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kvpatch.connection import connection
from kvpatch.index import configured, releases
from kvpatch.matrix import Release
from kvpatch.remote import RemoteWheel
from pair_stand_in import FILES
from web import Answer, Asked, Web, ranges_of, serving

Changes = Mapping[str, "str | None"]


def wheel_bytes(package: str, version: str, changes: Changes | None = None) -> bytes:
    texts = {path: text for path, text in {**FILES, **(changes or {})}.items() if text is not None}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in texts.items():
            if path.startswith(f"{package}/"):
                archive.writestr(path, text)
        archive.writestr(f"{package}/big.so", bytes(200_000), zipfile.ZIP_STORED)
        archive.writestr(f"{package}-{version}.dist-info/METADATA", f"Name: {package}\n")
    return stream.getvalue()


@dataclass
class SmallIndex:
    """Wheels by file name; what a test does to the server is in ``broken`` and ``yanked``."""

    wheels: dict[str, bytes] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    yanked: set[str] = field(default_factory=set)
    rangeless: bool = False
    web: Web | None = None

    def add(self, package: str, version: str, changes: Changes | None = None) -> str:
        name = f"{package}-{version}-py3-none-any.whl"
        self.wheels[name] = wheel_bytes(package, version, changes)
        return name

    def damage(self, name: str, path: str) -> None:
        """Give a member other bytes than the wheel's directory says."""
        data = bytearray(self.wheels[name])
        info = zipfile.ZipFile(io.BytesIO(data)).getinfo(path)
        names, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
        data[info.header_offset + 30 + names + extra] ^= 0xFF
        self.wheels[name] = bytes(data)

    def answer(self, asked: Asked) -> Answer:
        path = asked.path.strip("/")
        if path.startswith("simple/"):
            return self._page(path.removeprefix("simple/"))
        name = path.removeprefix("files/")
        if name in self.broken:
            return Answer(b"", 404)
        if self.rangeless:
            return Answer(self.wheels[name])
        return ranges_of(self.wheels[name])(asked)

    @property
    def ranges(self) -> list[str]:
        assert self.web is not None
        return [asked.path for asked in self.web.asked if asked.range]

    def _page(self, package: str) -> Answer:
        entries = [
            {
                "filename": name,
                "url": f"/files/{name}",
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
                "size": len(data),
                "yanked": name in self.yanked,
            }
            for name, data in self.wheels.items()
            if name.startswith(f"{package.replace('-', '_')}-")
        ]
        data = {"meta": {"api-version": "1.1"}, "name": package, "files": entries, "versions": []}
        kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
        return Answer(json.dumps(data).encode(), headers=kind)


@contextlib.contextmanager
def small_index(monkeypatch: pytest.MonkeyPatch, cache: object) -> Iterator[SmallIndex]:
    """The index that kvpatch is configured with while the test runs, and an empty cache."""
    index = SmallIndex()
    with serving(index.answer) as web:
        index.web = web
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{web.url}/simple/")
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        yield index


@contextlib.contextmanager
def listed(cache: Path) -> Iterator[list[Release]]:
    """Every release of the index by package and version, to be read by ranges."""
    with connection(configured()) as session:
        wheels = [w for name in ("vllm", "lmcache") for w in releases(name, cache=cache)]
        yield [
            Release.of(w, RemoteWheel(w, session, cache))
            for w in sorted(wheels, key=lambda w: (w.distribution, w.version))
        ]


@pytest.fixture
def found(index: SmallIndex, tmp_path: Path) -> Iterator[list[Release]]:
    """The releases of the test's own ``index``, as :func:`listed`."""
    with listed(tmp_path / "cache") as releases:
        yield releases
