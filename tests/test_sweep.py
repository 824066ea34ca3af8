"""One sweep: in which order releases are fetched and checked, with a second process and without."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvpatch import companion as companions
from kvpatch import sweep
from kvpatch.matrix import Release, Workshop
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.remote import RemoteWheel, Traffic
from kvpatch.sources import Folder
from kvpatch.supply import Request
from kvpatch.validate import validate
from packaging.version import Version
from pair_stand_in import ATTENTION
from small_index import SmallIndex, small_index, wheel_bytes

VLLM = ("0.12.0", "0.25.1")
LMCACHE = ("0.5.4", "0.5.5", "0.5.6")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallIndex]:
    with small_index(monkeypatch, tmp_path / "cache") as served:
        for name, versions in (("vllm", VLLM), ("lmcache", LMCACHE)):
            for version in versions:
                served.add(name, version)
        yield served


def releases(package: str, count: int) -> list[Release]:
    holder = Folder(Path("/nowhere"))
    return [Release(package, Version(f"0.{n}"), holder, f"{package}-{n}") for n in range(count)]


@pytest.mark.parametrize("affordable", [True, False])
def test_it_comes_to_the_same_with_a_second_process_and_without(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affordable: bool
) -> None:
    monkeypatch.setattr(sweep, "_MANY", 1)
    monkeypatch.setattr(sweep, "affordable", lambda: affordable)
    started: list[Traffic] = []
    start = companions.companion
    monkeypatch.setattr(sweep, "companion", lambda t: (started.append(t), start(t))[1])
    said: list[str] = []
    matrix = validate(Request({}), tmp_path / "one", said.append)
    alone = validate(Request({}, jobs=1), tmp_path / "two", lambda _: None)
    assert bool(started) is affordable
    assert (matrix.rows, matrix.pairs) == (alone.rows, alone.pairs)
    assert [(p["vllm"], p["lmcache"]) for p in matrix.pairs] == [
        (vllm, lmcache) for lmcache in LMCACHE for vllm in VLLM
    ]
    assert sum(line.startswith("checking LMCache") for line in said) == len(LMCACHE)


def test_who_take_from_both_ends_find_what_they_take_fetched_in_that_order() -> None:
    vllm, lmcache = releases("vllm", 2), releases("lmcache", 5)
    waiting = deque(lmcache)
    taken = [waiting.pop()]
    for own in sweep._taking(waiting):
        taken.append(own)
        if waiting:
            taken.append(waiting.pop())
    fetched = list(sweep._order(vllm, lmcache))
    assert [release for release in fetched if release.package == "lmcache"] == taken
    assert fetched[:3] == [lmcache[-1], *vllm]
    assert list(sweep._order(vllm, [])) == vllm


def test_a_second_run_says_nothing_of_checking_and_the_same_of_all(
    index: SmallIndex, tmp_path: Path
) -> None:
    first = validate(Request({}), tmp_path / "one", lambda _: None)
    said: list[str] = []
    second = validate(Request({}), tmp_path / "one", said.append)
    assert (second.rows, second.pairs) == (first.rows, first.pairs)
    assert not any(line.startswith("checking") for line in said)


def test_of_two_files_of_one_release_each_has_its_row_and_its_pairs(
    index: SmallIndex, tmp_path: Path
) -> None:
    wheel = tmp_path / "vllm-0.25.1-py3-none-any.whl"
    wheel.write_bytes(wheel_bytes("vllm", "0.25.1", {ATTENTION: ""}))
    matrix = validate(Request({}, sources=(wheel,)), tmp_path / "one", lambda _: None)
    assert [row.given for row in matrix.rows if row.version == VLLM[1]] == [False, True]
    told = [
        (p["lmcache"], "A" in p["after"], p.get("sources"))
        for p in matrix.pairs
        if p["vllm"] == VLLM[1]
    ]
    given = {"vllm": wheel.name}
    assert told == [
        pair for lmcache in LMCACHE for pair in ((lmcache, False, None), (lmcache, True, given))
    ]


def test_a_pair_is_that_of_its_own_file_where_another_of_its_release_cant_be_read(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "vllm-0.25.1-py3-none-any.whl"
    wheel.write_bytes(wheel_bytes("vllm", "0.25.1", {ATTENTION: ""}))
    pair = Workshop.pair

    def damaged(shop: Workshop, vllm: Release, lmcache: Release) -> dict[str, Any]:
        if str(vllm.version) == "0.25.1" and isinstance(vllm.holder, RemoteWheel):
            raise KvpatchError("bad-wheel", "it is damaged", "try again", ExitCode.ENVIRONMENT)
        return pair(shop, vllm, lmcache)

    monkeypatch.setattr(Workshop, "pair", damaged)
    matrix = validate(Request({}, sources=(wheel,)), tmp_path / "one", lambda _: None)
    told = [p.get("sources") for p in matrix.pairs if p["vllm"] == "0.25.1"]
    assert told == [{"vllm": wheel.name}] * len(LMCACHE)
