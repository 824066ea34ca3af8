"""Members of wheels by ranges: against a server that keeps to the rules, and ones that don't."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kvpatch import ranged
from kvpatch.index import Wheel
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.ranged import read_members
from packaging.version import Version
from web import Answer, Asked, Web, ranges_of, serving

NAME = "demo-1.0-py3-none-any.whl"
WORKER = "demo/v1/worker.py"
TEXT = b"".join(b"line %d of a worker\n" % number for number in range(5000))


def packed(files: int = 10, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("demo/big.so", bytes(range(256)) * 4000, zipfile.ZIP_STORED)
        archive.writestr(WORKER, TEXT)
        for number in range(files):
            archive.writestr(f"demo/module_with_a_rather_long_name_{number:05}.py", b"x = 1\n")
        archive.writestr("demo/stored.txt", b"as it is", zipfile.ZIP_STORED)
        archive.writestr("demo/empty.py", b"")
    return stream.getvalue()


WHEEL = packed()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    # A small tail, so that a small wheel takes several requests.
    monkeypatch.setattr(ranged, "_TAIL", 1024)
    monkeypatch.setattr(ranged, "_LEAST", 64)
    with serving(ranges_of(WHEEL)) as server:
        yield server


def wheel(web: Web, data: bytes = WHEEL, *, sized: bool = True, version: str = "1.0") -> Wheel:
    name = f"demo-{version}-py3-none-any.whl"
    digest = hashlib.sha256(data).hexdigest()
    size = len(data) if sized else None
    return Wheel("demo", Version(version), name, f"{web.url}/{name}", size, digest, False)


def test_members_come_as_they_were_packed(web: Web, tmp_path: Path) -> None:
    paths = [WORKER, "demo/stored.txt", "demo/empty.py"]
    members = read_members(wheel(web), paths, tmp_path)
    assert list(members.items()) == list(zip(paths, (TEXT, b"as it is", b""), strict=True))


def test_a_member_that_the_wheel_has_not_is_none(web: Web, tmp_path: Path) -> None:
    members = read_members(wheel(web), ["demo/gone.py", WORKER], tmp_path)
    assert members == {"demo/gone.py": None, WORKER: TEXT}


def test_only_explicit_ranges_are_asked_for_and_little_of_the_wheel(
    web: Web, tmp_path: Path
) -> None:
    read_members(wheel(web), [WORKER], tmp_path)
    asked = [re.fullmatch(r"bytes=(\d+)-(\d+)", request.range or "") for request in web.asked]
    assert all(asked)
    sizes = [int(found[2]) - int(found[1]) + 1 for found in asked if found]
    assert 0 < sum(sizes) < len(WHEEL) / 10
    assert all(int(found[2]) < len(WHEEL) for found in asked if found)


def test_all_ranges_of_a_wheel_come_over_one_connection(web: Web, tmp_path: Path) -> None:
    read_members(wheel(web), [WORKER, "demo/stored.txt"], tmp_path)
    assert len(web.asked) > 2
    assert len({request.connection for request in web.asked}) == 1


def test_what_was_read_once_is_not_asked_for_again(web: Web, tmp_path: Path) -> None:
    first = read_members(wheel(web), [WORKER, "demo/gone.py"], tmp_path)
    count = len(web.asked)
    assert read_members(wheel(web), [WORKER, "demo/gone.py"], tmp_path) == first
    assert len(web.asked) == count
    assert read_members(wheel(web), ["demo/stored.txt"], tmp_path) == {
        "demo/stored.txt": b"as it is"
    }
    count = len(web.asked)
    assert read_members(wheel(web), [WORKER, "demo/stored.txt"], tmp_path)[WORKER] == TEXT
    assert len(web.asked) == count


def test_another_wheel_of_the_same_name_is_not_taken_from_the_cache(
    web: Web, tmp_path: Path
) -> None:
    read_members(wheel(web), [WORKER], tmp_path)
    other = packed(11)
    web.answer = ranges_of(other)
    count = len(web.asked)
    read_members(wheel(web, other), [WORKER], tmp_path)
    assert len(web.asked) > count


def test_a_wheel_of_unknown_size_is_asked_for_it(web: Web, tmp_path: Path) -> None:
    assert read_members(wheel(web, sized=False), [WORKER], tmp_path)[WORKER] == TEXT


def test_a_directory_longer_than_the_tail_is_read_whole(web: Web, tmp_path: Path) -> None:
    data = packed(3000)
    web.answer = ranges_of(data)
    last = "demo/module_with_a_rather_long_name_02999.py"
    members = read_members(wheel(web, data), [WORKER, last], tmp_path)
    assert members == {WORKER: TEXT, last: b"x = 1\n"}


def test_damaged_entries_of_the_cache_are_fetched_anew(web: Web, tmp_path: Path) -> None:
    read_members(wheel(web), [WORKER, "demo/gone.py"], tmp_path)
    (manifest,) = (tmp_path / "wheels").iterdir()
    (blob,) = (path for path in (tmp_path / "members").rglob("*") if path.is_file())
    blob.write_bytes(TEXT[:-1])
    assert read_members(wheel(web), [WORKER], tmp_path) == {WORKER: TEXT}
    assert blob.read_bytes() == TEXT
    blob.unlink()
    assert read_members(wheel(web), [WORKER], tmp_path) == {WORKER: TEXT}
    for text in ("", "[]", '{"schema": 99}', manifest.read_text().replace('"demo/v1', '"../v1')):
        manifest.write_text(text)
        assert read_members(wheel(web), [WORKER], tmp_path) == {WORKER: TEXT}


def test_a_pipe_in_the_cache_keeps_nobody_waiting(web: Web, tmp_path: Path) -> None:
    read_members(wheel(web), [WORKER], tmp_path)
    (manifest,) = (tmp_path / "wheels").iterdir()
    (blob,) = (path for path in (tmp_path / "members").rglob("*") if path.is_file())
    for path in (manifest, blob):
        path.unlink()
        os.mkfifo(path)
        assert read_members(wheel(web), [WORKER], tmp_path) == {WORKER: TEXT}
        assert path.is_file()


def test_a_manifest_cannot_point_out_of_the_cache(web: Web, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    cache = tmp_path / "cache"
    read_members(wheel(web), [WORKER], cache)
    (manifest,) = (cache / "wheels").iterdir()
    digest = hashlib.sha256(TEXT).hexdigest()
    manifest.write_text(manifest.read_text().replace(digest, "../../../secret"))
    assert read_members(wheel(web), [WORKER], cache) == {WORKER: TEXT}


def whole_file(asked: Asked) -> Answer:
    return Answer(WHEEL)


def other_range(asked: Asked) -> Answer:
    answer = ranges_of(WHEEL)(asked)
    return Answer(answer.body, 206, {"Content-Range": f"bytes 0-9/{len(WHEEL)}"})


def no_range_said(asked: Asked) -> Answer:
    return Answer(ranges_of(WHEEL)(asked).body, 206)


def unknown_total(asked: Asked) -> Answer:
    answer = ranges_of(WHEEL)(asked)
    said = answer.headers["Content-Range"].partition("/")[0]
    return Answer(answer.body, 206, {"Content-Range": f"{said}/*"})


def other_size(asked: Asked) -> Answer:
    answer = ranges_of(WHEEL)(asked)
    said = answer.headers["Content-Range"].partition("/")[0]
    return Answer(answer.body, 206, {"Content-Range": f"{said}/{len(WHEEL) + 1}"})


def shorter(asked: Asked) -> Answer:
    answer = ranges_of(WHEEL)(asked)
    return Answer(answer.body[:-1], 206, answer.headers)


def broken_off(asked: Asked) -> Answer:
    answer = ranges_of(WHEEL)(asked)
    return Answer(answer.body[:-1], 206, answer.headers, length=len(answer.body))


def more(asked: Asked) -> Answer:
    answer = ranges_of(WHEEL)(asked)
    return Answer(answer.body + b"x", 206, answer.headers)


def odd_numbers(asked: Asked) -> Answer:
    many = "9" * 5000
    return Answer(ranges_of(WHEEL)(asked).body, 206, {"Content-Range": f"bytes 0-{many}/{many}"})


def coded_otherwise(asked: Asked) -> Answer:
    answer = ranges_of(WHEEL)(asked)
    return Answer(answer.body, 206, {**answer.headers, "Content-Encoding": "gzip"})


def forbidden(asked: Asked) -> Answer:
    return Answer(b"", 403)


def gone(asked: Asked) -> Answer:
    return Answer(b"", 416)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (whole_file, "no-ranges"),
        (other_range, "no-ranges"),
        (no_range_said, "no-ranges"),
        (unknown_total, "no-ranges"),
        (other_size, "bad-wheel"),
        (shorter, "bad-wheel"),
        (more, "bad-wheel"),
        (odd_numbers, "no-ranges"),
        (coded_otherwise, "no-network"),
        (broken_off, "no-network"),
        (forbidden, "no-network"),
        (gone, "no-network"),
    ],
)
def test_a_server_that_does_not_do_as_asked_is_refused(
    web: Web, tmp_path: Path, answer: Callable[[Asked], Answer], code: str
) -> None:
    web.answer = answer
    with pytest.raises(KvpatchError) as caught:
        read_members(wheel(web), [WORKER], tmp_path)
    assert (caught.value.code, caught.value.exit_code) == (code, ExitCode.ENVIRONMENT)
    assert web.host not in f"{caught.value.message} {caught.value.hint}"
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("address", ["http://" + "a" * 300 + "/x", "http://[::1", "ftp://host/x"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(KvpatchError) as caught:
        read_members(Wheel("demo", Version("1.0"), NAME, address, 10, None, False), ["a"], tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("no-network", ExitCode.ENVIRONMENT)


def test_a_member_with_a_wrong_checksum_is_refused_and_not_kept(web: Web, tmp_path: Path) -> None:
    spot = WHEEL.index(b"as it is")
    data = WHEEL[:spot] + b"as it Is" + WHEEL[spot + 8 :]
    web.answer = ranges_of(data)
    with pytest.raises(KvpatchError, match="CRC") as caught:
        read_members(wheel(web, data), ["demo/stored.txt"], tmp_path)
    assert caught.value.code == "bad-wheel"
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 5000, WHEEL[:-30], WHEEL[:-200]])
def test_what_is_no_wheel_is_refused(web: Web, tmp_path: Path, data: bytes) -> None:
    web.answer = ranges_of(data)
    with pytest.raises(KvpatchError) as caught:
        read_members(wheel(web, data), [WORKER], tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("bad-wheel", ExitCode.ENVIRONMENT)


def test_an_oversized_member_is_refused_before_it_is_read(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "_MOST_MEMBER", len(TEXT) - 1)
    with pytest.raises(KvpatchError, match="oversized"):
        read_members(wheel(web), [WORKER], tmp_path)


def test_a_cache_that_cannot_be_written_is_told_apart(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvpatchError) as caught:
        read_members(wheel(web), [WORKER], tmp_path / "file")
    assert (caught.value.code, caught.value.exit_code) == ("no-cache", ExitCode.ENVIRONMENT)


def read_in_process(one: Wheel, cache: Path, paths: list[str]) -> list[int | None]:
    members = read_members(one, paths, cache)
    return [None if data is None else len(data) for data in members.values()]


def test_several_processes_share_a_cache(web: Web, tmp_path: Path) -> None:
    one = wheel(web)
    paths = [WORKER, "demo/gone.py", "demo/stored.txt"]
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        found = pool.starmap(read_in_process, [(one, tmp_path, paths)] * 8)
    assert found == [[len(TEXT), None, 8]] * 8
    assert not list(tmp_path.rglob(".new-*"))
    count = len(web.asked)
    assert read_in_process(one, tmp_path, paths) == [len(TEXT), None, 8]
    assert len(web.asked) == count
