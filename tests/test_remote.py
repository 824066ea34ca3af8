"""Single members of wheels by ranges, and what is kept of them; servers and wheels that lie."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import requests
from kvpatch import remote
from kvpatch.index import Wheel
from kvpatch.outcome import KvpatchError
from kvpatch.remote import RemoteWheel
from packaging.version import Version
from web import Answer, Web, missing, ranges_of, serving

TEXT = b"".join(b"line %d\n" % number for number in range(3000))


def packed(change: Callable[[zipfile.ZipFile], None] = lambda _: None) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("demo/__init__.py", b"")
        archive.writestr("demo/near.py", b"x = 1\n", zipfile.ZIP_STORED)
        archive.writestr("demo/big.abi3.so", bytes(range(256)) * 2000, zipfile.ZIP_STORED)
        archive.writestr("demo/deep/text.py", TEXT)
        archive.writestr("demo-1.0.dist-info/METADATA", b"Name: demo\n")
        change(archive)
    return stream.getvalue()


WHEEL = packed()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(remote, "_TAIL", 256)
    monkeypatch.setattr(remote, "_GAP", 1024)
    with serving(ranges_of(WHEEL)) as server:
        yield server


def wheel_on(web: Web, cache: Path, data: bytes = WHEEL) -> RemoteWheel:
    name = "demo-1.0-py3-none-any.whl"
    digest = sha256(data).hexdigest()
    wheel = Wheel("demo", Version("1.0"), name, f"{web.url}/{name}", len(data), digest, False)
    return RemoteWheel(wheel, requests.Session(), cache)


def test_members_come_as_they_were_packed_and_few_bytes_are_read(web: Web, tmp_path: Path) -> None:
    wheel = wheel_on(web, tmp_path)
    assert wheel.read("demo/deep/text.py") == TEXT
    assert wheel.read("demo/near.py") == b"x = 1\n"
    assert wheel.read("demo/__init__.py") == b""
    assert wheel.read("demo/gone.py") is None
    assert wheel.metadata() == b"Name: demo\n"
    assert 0 < wheel.traffic.bytes < len(WHEEL) / 10
    assert wheel.traffic.requests >= len(web.asked) - 1
    assert all(asked.range for asked in web.asked)


def test_members_that_lie_together_come_in_one_request(web: Web, tmp_path: Path) -> None:
    wheel = wheel_on(web, tmp_path)
    wheel.entries  # noqa: B018
    before = len(web.asked)
    wheel.prefetch(["demo/__init__.py", "demo/near.py", "demo/gone.py"])
    assert len(web.asked) == before + 1
    wheel.read("demo/near.py")
    assert len(web.asked) == before + 1
    assert set(wheel.read_paths) == {"demo/near.py"}


def test_a_second_look_asks_the_server_nothing(web: Web, tmp_path: Path) -> None:
    wheel_on(web, tmp_path).read("demo/near.py")
    asked = len(web.asked)
    again = wheel_on(web, tmp_path)
    assert again.read("demo/near.py") == b"x = 1\n"
    assert len(web.asked) == asked


def test_the_same_member_of_another_wheel_is_not_fetched_again(web: Web, tmp_path: Path) -> None:
    wheel_on(web, tmp_path).read("demo/deep/text.py")
    other = packed(lambda archive: archive.writestr("demo/new.py", b"y = 2\n"))
    web.answer = ranges_of(other)
    second = wheel_on(web, tmp_path, other)
    second.entries  # noqa: B018
    asked = len(web.asked)
    assert second.read("demo/deep/text.py") == TEXT
    assert len(web.asked) == asked


def test_a_damaged_cache_is_fetched_anew(web: Web, tmp_path: Path) -> None:
    wheel_on(web, tmp_path).read("demo/near.py")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(b"broken")
    assert wheel_on(web, tmp_path).read("demo/near.py") == b"x = 1\n"


def test_a_pipe_in_the_cache_keeps_nobody_waiting(web: Web, tmp_path: Path) -> None:
    wheel_on(web, tmp_path).read("demo/near.py")
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in kept:
        path.unlink()
        os.mkfifo(path)
    assert wheel_on(web, tmp_path).read("demo/near.py") == b"x = 1\n"
    assert kept
    assert all(path.is_file() for path in kept)


def test_extensions_and_folders_are_known_from_the_directory_alone(
    web: Web, tmp_path: Path
) -> None:
    wheel = wheel_on(web, tmp_path)
    modules = ("demo.big", "demo.deep", "demo", "demo.gone")
    assert [wheel.opaque(module) for module in modules] == [True, True, True, False]
    wheel.forget()
    assert wheel.opaque("demo.big")


def flipped(data: bytes) -> bytes:
    place = data.index(b"demo/deep/text.py") + 40
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


def bomb(archive: zipfile.ZipFile) -> None:
    archive.writestr("demo/bomb.py", bytes(8_000_000))


def squeezed(archive: zipfile.ZipFile) -> None:
    archive.writestr("demo/odd.py", b"z = 3\n", zipfile.ZIP_LZMA)


def encrypted(data: bytes) -> bytes:
    changed = bytearray(data)
    place = changed.rindex(b"PK\x01\x02", 0, changed.rindex(b"demo/deep/text.py"))
    changed[place + 8] |= 1
    return bytes(changed)


@pytest.mark.parametrize(
    ("data", "path", "why"),
    [
        (flipped(WHEEL), "demo/deep/text.py", "damaged demo/deep/text.py"),
        (packed(bomb), "demo/bomb.py", "oversized demo/bomb.py"),
        (packed(squeezed), "demo/odd.py", "packs demo/odd.py in a way that is not known"),
        (encrypted(WHEEL), "demo/deep/text.py", "encrypted demo/deep/text.py"),
        (b"no zip at all" * 100, "demo/deep/text.py", "not a sound wheel"),
    ],
)
def test_wheels_that_lie_are_named(
    web: Web, tmp_path: Path, data: bytes, path: str, why: str
) -> None:
    web.answer = ranges_of(data)
    # The second one finds the directory in the cache.
    for _ in range(2):
        with pytest.raises(KvpatchError, match=why) as caught:
            wheel_on(web, tmp_path, data).read(path)
        assert (caught.value.code, int(caught.value.exit_code)) == ("bad-wheel", 4)


@pytest.mark.parametrize("data", [flipped(WHEEL), packed(bomb), packed(squeezed), encrypted(WHEEL)])
def test_a_member_that_nobody_reads_is_in_nobodys_way(
    web: Web, tmp_path: Path, data: bytes
) -> None:
    web.answer = ranges_of(data)
    for _ in range(2):
        wheel = wheel_on(web, tmp_path, data)
        assert (wheel.read("demo/near.py"), wheel.metadata()) == (b"x = 1\n", b"Name: demo\n")
    assert max(_length(asked.range) for asked in web.asked) < 1000


def test_a_directory_that_is_larger_than_any_is_not_read(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def many(archive: zipfile.ZipFile) -> None:
        for number in range(500):
            archive.writestr(f"demo/{number}", b"")

    data = packed(many)
    web.answer = ranges_of(data)
    monkeypatch.setattr(remote, "_MOST_DIRECTORY", 10_000)
    with pytest.raises(KvpatchError, match=r"has a directory of \d+ bytes") as caught:
        wheel_on(web, tmp_path, data).read("demo/near.py")
    assert caught.value.code == "bad-wheel"
    assert all(_length(asked.range) < 10_000 for asked in web.asked)
    monkeypatch.setattr(remote, "_MOST_DIRECTORY", 100_000)
    assert wheel_on(web, tmp_path, data).read("demo/near.py") == b"x = 1\n"
    monkeypatch.setattr(remote, "_MOST_MEMBERS", 500)
    with pytest.raises(KvpatchError, match="has 505 members"):
        wheel_on(web, tmp_path / "other", data).read("demo/near.py")


def _length(asked: str | None) -> int:
    assert asked is not None
    first, last = asked.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


def test_a_server_that_ignores_ranges_is_found_out(web: Web, tmp_path: Path) -> None:
    web.answer = lambda _: Answer(WHEEL)
    with pytest.raises(KvpatchError) as caught:
        wheel_on(web, tmp_path).read("demo/near.py")
    assert caught.value.code == "no-ranges"


def test_a_server_that_sends_another_member_is_found_out(web: Web, tmp_path: Path) -> None:
    wheel_on(web, tmp_path).entries  # noqa: B018
    web.answer = ranges_of(bytes(len(WHEEL)))
    with pytest.raises(KvpatchError, match="has no header"):
        wheel_on(web, tmp_path).read("demo/near.py")


def test_a_damaged_member_is_asked_for_once_and_the_others_are_read(
    web: Web, tmp_path: Path
) -> None:
    damaged = bytearray(WHEEL)
    damaged[WHEEL.index(b"demo/near.py") + len("demo/near.py")] ^= 1
    web.answer = ranges_of(bytes(damaged))
    wheel = wheel_on(web, tmp_path)
    for _ in range(3):
        with pytest.raises(KvpatchError, match=r"has a damaged demo/near\.py"):
            wheel.read("demo/near.py")
    assert len(web.asked) == 3
    assert wheel.read("demo/deep/text.py") == TEXT


def test_a_server_that_is_down_is_asked_once_and_what_is_kept_is_read(
    web: Web, tmp_path: Path
) -> None:
    wheel_on(web, tmp_path).read("demo/near.py")
    web.answer = missing
    before = len(web.asked)
    wheel = wheel_on(web, tmp_path)
    for path in ("demo/deep/text.py", "demo/__init__.py", "demo/deep/text.py"):
        with pytest.raises(KvpatchError, match="could not be read from the package index"):
            wheel.read(path)
    assert wheel.read("demo/near.py") == b"x = 1\n"
    assert len(web.asked) == before + 1


def test_a_directory_with_another_byte_in_it_is_fetched_anew(web: Web, tmp_path: Path) -> None:
    wheel_on(web, tmp_path).read("demo/near.py")
    (place,) = (tmp_path / "directories").iterdir()
    place.write_bytes(place.read_bytes().replace(b"demo/near.py", b"demo/near.pq"))
    assert wheel_on(web, tmp_path).read("demo/near.py") == b"x = 1\n"
