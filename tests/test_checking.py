"""Single releases, and one LMCache against every vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kvpatch.checking import Checker
from kvpatch.fold import Memo, Options
from kvpatch.matrix import Release, Row, Workshop
from kvpatch.outcome import KvpatchError
from kvpatch.patches.kv004_find_attention import SPARSE
from kvpatch.series import Series, discover
from kvpatch.verdicts import Kept
from packaging.version import Version
from pair_stand_in import ATTENTION
from planning import series
from small_index import SmallIndex, found, listed, small_index

__all__ = ["found"]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallIndex]:
    with small_index(monkeypatch, tmp_path / "cache") as served:
        served.add("vllm", "0.12.0", {ATTENTION: ""})
        served.add("vllm", "0.25.1")
        served.add("lmcache", "0.5.6")
        yield served


def checker(found: list[Release], folder: Path, patches: Series | None = None) -> Checker:
    lmcache, *_, vllm = found
    newest = {"vllm": vllm, "lmcache": lmcache}
    return Checker(Workshop(patches or series(), Options(memo=Memo())), Kept(folder), newest)


def test_one_lmcache_has_a_row_and_a_pair_with_each_vllm(
    found: list[Release], tmp_path: Path
) -> None:
    lmcache, *vllm = found
    checked = checker(found, tmp_path).lmcache(lmcache, vllm, print)
    assert (checked.row.version, checked.row.ok) == ("0.5.6", True)
    assert [(pair["vllm"], pair["after"]) for pair in checked.pairs] == [
        ("0.12.0", ["A"]),
        ("0.25.1", []),
    ]


def test_what_was_found_is_kept_and_not_looked_for_again(
    found: list[Release], tmp_path: Path, index: SmallIndex
) -> None:
    lmcache, *vllm = found
    first = checker(found, tmp_path)
    rows = [first.vllm(release) for release in vllm]
    checked = first.lmcache(lmcache, vllm, print)
    index.broken |= set(index.wheels)
    with listed(tmp_path / "empty") as anew:
        second = checker(anew, tmp_path)
        assert [second.vllm(release) for release in anew[1:]] == rows
        assert second.lmcache(anew[0], anew[1:], print) == checked


def test_a_vllm_that_is_new_since_then_is_checked_alone(
    found: list[Release], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmcache, *vllm = found
    checker(found, tmp_path).lmcache(lmcache, vllm[:1], print)
    asked: list[Release] = []
    pair = Workshop.pair
    monkeypatch.setattr(Workshop, "pair", lambda s, *p: (asked.append(p[0]), pair(s, *p))[1])
    checked = checker(found, tmp_path).lmcache(lmcache, vllm, print)
    assert (len(checked.pairs), asked) == (2, vllm[1:])


def test_an_lmcache_that_cant_be_read_is_a_row_without_pairs(
    found: list[Release], tmp_path: Path, index: SmallIndex
) -> None:
    index.broken.add(found[0].name)
    whole = checker(found, tmp_path / "kept", discover())
    checked = whole.lmcache(found[0], found[1:], print)
    assert checked.row.error is not None
    assert (checked.row.error.code, checked.pairs) == ("no-network", ())
    assert not (tmp_path / "kept").exists()


def test_a_file_that_is_for_newer_vllm_is_not_in_the_way_of_older_ones(
    tmp_path: Path, index: SmallIndex
) -> None:
    old = index.add("vllm", "0.11.0")
    name = index.add("lmcache", "0.5.6", {SPARSE: "from vllm.attention import Attention\n"})
    index.damage(name, SPARSE)
    said: list[str] = []
    with listed(tmp_path / "cache") as found:
        lmcache, *vllm = found
        assert vllm[0].name == old
        checked = checker(found, tmp_path, discover()).lmcache(lmcache, vllm, said.append)
    assert checked.row.error is not None
    assert f"{name} has a damaged {SPARSE}" in checked.row.error.message
    # KV004 is for vLLM 0.12.0 and newer.
    assert [pair["vllm"] for pair in checked.pairs] == ["0.11.0"]
    assert {(one["vllm"], one["distribution"]) for one in checked.unread} == {
        ("0.12.0", "lmcache"),
        ("0.25.1", "lmcache"),
    }
    assert said == []


def test_a_pair_that_cant_be_read_is_told_and_left_out(
    found: list[Release], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmcache, *vllm = found
    said: list[str] = []
    broken = replace(vllm[0], key=vllm[0].key)
    pair = Workshop.pair

    def failing(self: Workshop, one: Release, other: Release) -> object:
        if one is broken:
            raise KvpatchError("bad-wheel", "it is damaged", "try again")
        return pair(self, one, other)

    monkeypatch.setattr(Workshop, "pair", failing)
    anew = checker(found, tmp_path)
    checked = anew.lmcache(lmcache, [broken, vllm[1]], said.append)
    assert [pair["vllm"] for pair in checked.pairs] == ["0.25.1"]
    assert [dict(pair) for pair in checked.unread] == [
        {
            "vllm": "0.12.0",
            "lmcache": "0.5.6",
            "code": "bad-wheel",
            "message": "it is damaged",
            "hint": "try again",
        }
    ]
    # Said once, however many pairs it is in the way of.
    assert anew.lmcache(lmcache, [broken], said.append).unread == checked.unread
    assert said == ["it is damaged; try again"]


def test_a_row_does_not_depend_on_what_an_earlier_run_planned_it_beside(
    found: list[Release], tmp_path: Path
) -> None:
    lmcache, oldest, newest = found
    old = Release("vllm", Version("0.9.0"), oldest.holder, oldest.name)

    def row(vllm: Release, folder: str) -> Row:
        workshop = Workshop(discover(), Options(memo=Memo()))
        kept = Kept(tmp_path / folder)
        return (
            Checker(workshop, kept, {"vllm": vllm, "lmcache": lmcache})
            .lmcache(lmcache, [newest], print)
            .row
        )

    first, then, back = row(old, "one"), row(newest, "one"), row(old, "one")
    assert (then, back) == (row(newest, "two"), first)
    assert then != first
