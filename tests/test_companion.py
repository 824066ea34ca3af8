"""The second process: what it takes, what it leaves, and how it ends."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kvpatch.checking import Checker
from kvpatch.companion import Work, companion, serve
from kvpatch.fold import Memo, Options
from kvpatch.matrix import Release, Workshop
from kvpatch.remote import Traffic
from kvpatch.series import discover
from kvpatch.sources import Folder
from kvpatch.verdicts import Kept
from packaging.version import Version
from small_index import SmallIndex, listed, small_index

LMCACHE = ("0.5.4", "0.5.5", "0.5.6")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallIndex]:
    with small_index(monkeypatch, tmp_path / "cache") as served:
        for version in ("0.12.0", "0.25.1"):
            served.add("vllm", version)
        for version in LMCACHE:
            served.add("lmcache", version)
        yield served


@pytest.fixture
def found(index: SmallIndex, tmp_path: Path) -> Iterator[dict[str, list[Release]]]:
    with listed(tmp_path / "cache" / "kvpatch") as releases:
        yield {name: [r for r in releases if r.package == name] for name in ("vllm", "lmcache")}


def work(found: dict[str, list[Release]], tmp_path: Path) -> Work:
    newest = {name: side[-1] for name, side in found.items()}
    told = Work.of(tmp_path / "cache" / "kvpatch", found["vllm"], newest, lambda _: True)
    assert told is not None
    return told


def kept(tmp_path: Path) -> Kept:
    return Kept.by(discover(), tmp_path / "cache" / "kvpatch")


def plain(found: dict[str, list[Release]], tmp_path: Path) -> list[dict[str, object]]:
    """What this process finds and keeps by itself, elsewhere."""
    newest = {name: side[-1] for name, side in found.items()}
    shop = Workshop(discover(), Options(memo=Memo()))
    checker = Checker(shop, Kept(tmp_path / "plain"), newest)
    for lmcache in found["lmcache"]:
        checker.lmcache(lmcache, found["vllm"], print)
    return [checker.kept.of(lmcache) for lmcache in found["lmcache"]]


def test_it_finds_and_keeps_what_this_process_would(
    found: dict[str, list[Release]], tmp_path: Path, index: SmallIndex
) -> None:
    traffic, taken = Traffic(), list[Release]()
    waiting = deque(found["lmcache"])
    with companion(traffic) as helper:
        assert helper is not None
        helper.begin(lambda: work(found, tmp_path), waiting, lambda r: not taken.append(r))
        helper.wait()
    assert (taken, list(waiting)) == (found["lmcache"][::-1], [])
    assert traffic.requests == len(index.ranges) > 0
    assert [kept(tmp_path).of(lmcache) for lmcache in taken[::-1]] == plain(found, tmp_path)


def test_it_takes_no_more_when_nothing_waits(
    found: dict[str, list[Release]], tmp_path: Path
) -> None:
    with companion(Traffic()) as helper:
        assert helper is not None
        helper.begin(lambda: work(found, tmp_path), deque(), lambda _: True)
        helper.wait()
    assert kept(tmp_path).of(found["lmcache"][0]) == {}


def test_one_that_dies_leaves_the_rest_to_others(
    found: dict[str, list[Release]], tmp_path: Path
) -> None:
    waiting = deque(found["lmcache"])
    with companion(Traffic()) as helper:
        assert helper is not None
        helper.begin(lambda: work(found, tmp_path), waiting, lambda _: not helper._process.kill())
        helper.wait()
    assert list(waiting) == found["lmcache"][:2]


def test_one_that_cant_be_started_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", None)
    with companion(Traffic()) as helper:
        assert helper is None


def test_it_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    starting = (
        "import sys, time\n"
        "from kvpatch.companion import companion\n"
        "from kvpatch.remote import Traffic\n"
        "with companion(Traffic()) as helper:\n"
        "    print(helper._process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starting], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        assert child.exists()
        parent.kill()
    limit = time.monotonic() + 20
    while child.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not child.exists()


def test_what_is_not_of_the_index_is_not_for_it(
    found: dict[str, list[Release]], tmp_path: Path
) -> None:
    local = Release("vllm", Version("0.26.0"), Folder(tmp_path), "vllm", None)
    newest = {name: side[-1] for name, side in found.items()}
    most = Work.of(tmp_path, [*found["vllm"], local], newest, lambda _: True)
    assert most is not None
    assert most.vllm == [release.holder for release in found["vllm"]]
    assert Work.of(tmp_path, found["vllm"], {**newest, "vllm": local}, lambda _: True) is None


def test_what_could_not_be_fetched_is_not_for_it_either(
    found: dict[str, list[Release]], tmp_path: Path
) -> None:
    newest = {name: side[-1] for name, side in found.items()}
    bad, good = found["vllm"]
    told = Work.of(tmp_path, [bad, good], newest, lambda release: release is not bad)
    assert told is not None
    assert told.vllm == [good.holder]


def test_each_order_is_answered_with_what_it_took(
    found: dict[str, list[Release]], tmp_path: Path, index: SmallIndex
) -> None:
    told = work(found, tmp_path).data
    asked = {"wheel": found["lmcache"][0].holder.wheel.data, "max_download": 0}  # type: ignore[attr-defined]
    answers = io.StringIO()
    serve(iter(map(json.dumps, [told, asked, asked])), answers)
    first, second = map(json.loads, answers.getvalue().splitlines())
    assert (first[0], second) == (len(index.ranges), [0, 0])
    assert first[1] > 0


def test_what_is_unsound_or_has_no_hash_is_left_to_others(
    found: dict[str, list[Release]], tmp_path: Path, index: SmallIndex
) -> None:
    first, second, third = found["lmcache"]
    waiting = deque([first, replace(second, key=None), third])
    with companion(Traffic()) as helper:
        assert helper is not None
        helper.begin(lambda: work(found, tmp_path), waiting, lambda release: release is not third)
        helper.wait()
    assert not waiting
    assert [bool(kept(tmp_path).of(r)) for r in found["lmcache"]] == [True, False, False]
    assert not any(third.name in path for path in index.ranges)


def test_one_that_hangs_is_not_waited_for_for_ever(
    found: dict[str, list[Release]], tmp_path: Path
) -> None:
    with companion(Traffic()) as helper:
        assert helper is not None
        helper._process.send_signal(signal.SIGSTOP)
        helper.begin(lambda: work(found, tmp_path), deque(found["lmcache"]), lambda _: True)
        begun = time.monotonic()
        helper.wait(0.2)
        assert helper._thread is not None
        assert helper._thread.is_alive()
    assert not helper._thread.is_alive()
    assert time.monotonic() - begun < 10


def test_without_a_further_thread_all_is_left_to_others(
    found: dict[str, list[Release]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    waiting = deque(found["lmcache"])
    with companion(Traffic()) as helper:
        assert helper is not None
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", failing)
            helper.begin(lambda: work(found, tmp_path), waiting, lambda _: True)
        helper.wait()
    assert list(waiting) == found["lmcache"]
