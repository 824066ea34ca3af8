"""What is fetched ahead, and what waits for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvpatch.ahead import _start, build, fetching, load, reads_of
from kvpatch.compat import WORKER
from kvpatch.fold import Memo, Options
from kvpatch.matrix import Release, Workshop
from kvpatch.outcome import KvpatchError
from kvpatch.series import discover
from pair_stand_in import ATTENTION, vllm_patches_alone
from planning import series
from small_index import SmallIndex, found, small_index

__all__ = ["found", "vllm_patches_alone"]

VLLM = ("0.22.0", "0.23.0", "0.24.0", "0.25.0", "0.25.1")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallIndex]:
    with small_index(monkeypatch, tmp_path / "cache") as served:
        for version in VLLM:
            # The middle one alone needs another file than all the others.
            served.add("vllm", version, {ATTENTION: ""} if version == "0.24.0" else None)
        served.add("lmcache", "0.5.6")
        yield served


def workshop() -> Workshop:
    return Workshop(series(), Options(memo=Memo()))


def test_after_waiting_for_a_release_nothing_of_it_is_left_to_fetch(
    index: SmallIndex, found: list[Release]
) -> None:
    shop, said = workshop(), list[str]()
    (lmcache,) = [r for r in found if r.package == "lmcache"]
    with fetching(found, load(), 2, said.append) as ready:
        for release in found:
            ready(release)
    asked = len(index.ranges)
    for vllm in (r for r in found if r.package == "vllm"):
        shop.pair(vllm, lmcache)
    assert len(index.ranges) == asked
    assert said == ["reading 6 wheels by ranges"]


def test_a_wheel_that_cant_be_read_keeps_nobody_and_fails_where_it_is_read(
    index: SmallIndex, found: list[Release]
) -> None:
    index.broken.add("vllm-0.23.0-py3-none-any.whl")
    shop = workshop()
    (broken,) = [r for r in found if str(r.version) == "0.23.0"]
    with fetching(found, load(), 2, lambda _: None) as ready:
        assert [r for r in (*found, *found) if not ready(r)] == [broken, broken]
    with pytest.raises(KvpatchError):
        shop.planned(broken, None)


def test_an_error_ends_the_fetching_and_comes_through(found: list[Release]) -> None:
    with pytest.raises(KeyboardInterrupt), fetching(found, load(), 1, lambda _: None):
        raise KeyboardInterrupt


def test_nothing_remote_is_nothing_to_wait_for() -> None:
    said: list[str] = []
    with fetching([], load(), 2, said.append) as ready:
        ready(None)  # type: ignore[arg-type]
    assert said == []


def test_the_files_that_were_read_are_told_and_not_those_that_were_but_fetched(
    found: list[Release],
) -> None:
    assert reads_of(found) == {"vllm": (), "lmcache": ()}
    with fetching(found, load(), 2, lambda _: None) as ready:
        for release in found:
            ready(release)
    assert reads_of(found) == {"vllm": (), "lmcache": ()}
    (lmcache,) = [r for r in found if r.package == "lmcache"]
    workshop().pair(found[-1], lmcache)
    reads = reads_of(found)
    assert WORKER in reads["vllm"]
    assert all(set(paths) <= set(load()[name]) for name, paths in reads.items())
    assert not any(path.endswith("METADATA") for paths in reads.values() for path in paths)


def test_the_list_is_written_as_it_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kvpatch.ahead._FILE", tmp_path / "reads.json")
    (tmp_path / "reads.json").write_text(build({"vllm": ("vllm/b.py", "vllm/a.py"), "lmcache": ()}))
    assert load() == {"vllm": ("vllm/a.py", "vllm/b.py"), "lmcache": ()}


def test_every_file_that_a_patch_changes_is_in_the_list() -> None:
    for member in discover().members:
        for target in member.patch.targets:
            assert target.path in load()[member.patch.distribution], target.path


def test_who_is_interrupted_does_not_wait_for_an_index_that_does_not_answer(
    index: SmallIndex, found: list[Release]
) -> None:
    assert index.web is not None
    answer, goes_on = index.web.answer, threading.Event()
    index.web.answer = lambda asked: (goes_on.wait(20), answer(asked))[1]
    begun, waiting = time.monotonic(), list[threading.Thread]()

    def interrupted() -> None:
        with fetching(found, load(), 2, print) as ready:

            def wait() -> None:
                with contextlib.suppress(KvpatchError):
                    ready(found[0])

            waiting.append(threading.Thread(target=wait))
            waiting[0].start()
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        waiting[0].join(10)
        assert not waiting[0].is_alive()
        assert time.monotonic() - begun < 10
    finally:
        goes_on.set()


def test_without_a_further_thread_all_is_fetched_in_this_one(
    found: list[Release], index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    # The server of the test needs threads of its own.
    monkeypatch.setattr("kvpatch.ahead._start", lambda *_: 0)
    with fetching(found, load(), 2, lambda _: None) as ready:
        assert all(ready(release) for release in found)
    assert len(index.ranges) >= len(found)
    monkeypatch.undo()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", failing)
        assert _start(lambda: None, 3) == 0
