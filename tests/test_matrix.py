"""Pairs in a workshop: what is planned once, and what a pair's data says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from kvpatch.fold import Memo, Options
from kvpatch.matrix import Release, Row, UnreadError, Workshop, blocking, summary
from kvpatch.outcome import KvpatchError
from packaging.version import Version
from pair_stand_in import ATTENTION, UTILS, WORKER, files
from planning import series


@dataclass
class Held:
    texts: Mapping[str, bytes]
    reads: list[str] = field(default_factory=list)
    forgotten: int = 0

    def read(self, path: str) -> bytes | None:
        self.reads.append(path)
        return self.texts.get(path)

    def opaque(self, module: str) -> bool:
        return any(path.startswith(f"{module.replace('.', '/')}/") for path in self.texts)

    def metadata(self) -> bytes | None:
        return self.texts.get("METADATA")

    def forget(self) -> None:
        self.forgotten += 1


def release(package: str, version: str, changes: dict[str, str | None] | None = None) -> Release:
    return Release(package, Version(version), Held(files(changes)), f"{package}.whl")


@pytest.fixture
def workshop() -> Workshop:
    return Workshop(series(), Options(memo=Memo()))


def test_a_pair_is_plain_data_with_the_first_failure_first(workshop: Workshop) -> None:
    data = workshop.pair(release("vllm", "0.12.0", {ATTENTION: ""}), release("lmcache", "0.5.6"))
    assert list(data) == [
        "vllm",
        "lmcache",
        "before",
        "after",
        "ok",
        "settings",
        "findings",
        "notes",
    ]
    assert (data["before"], data["after"], data["ok"]) == (["H", "A"], ["A"], False)
    assert [(f["letter"], f["before"], f["after"]) for f in data["findings"]] == [
        ("H", True, False),
        ("A", True, True),
    ]
    assert (blocking(data, "before"), blocking(data, "after")) == ({"H", "A"}, {"A"})


def test_no_patch_cures_a_finding_that_stays(workshop: Workshop) -> None:
    broken = release("vllm", "0.25.1", {WORKER: "class Worker:\n    pass\n"})
    cured = workshop.pair(release("vllm", "0.25.1"), release("lmcache", "0.5.6"))
    stays = workshop.pair(broken, release("lmcache", "0.5.6"))
    told = [f for data in (cured, stays) for f in data["findings"] if f["letter"] == "H"]
    assert [(f["after"], f["cures"]) for f in told] == [(False, ["KV001"]), (True, [])]


def test_a_release_is_planned_once_for_all_its_pairs(workshop: Workshop) -> None:
    vllm = release("vllm", "0.25.1")
    first = workshop.planned(vllm, release("lmcache", "0.5.6"))
    assert workshop.planned(vllm, release("lmcache", "0.5.5")) is first
    assert list(first.after) == [WORKER]
    workshop.forget(vllm)
    assert workshop.planned(vllm, release("lmcache", "0.5.5")) is not first
    assert isinstance(vllm.holder, Held)
    assert vllm.holder.forgotten == 1


def test_where_a_patch_is_refused_nothing_changes(workshop: Workshop) -> None:
    broken = release("vllm", "0.25.1", {WORKER: "class Worker:\n    pass\n"})
    data = workshop.pair(broken, release("lmcache", "0.5.6"))
    assert data["before"] == data["after"] == ["H"]
    assert not workshop.row(broken).ok
    assert workshop.row(release("vllm", "0.25.1")).ok


def test_a_row_of_lmcache_needs_no_registration(workshop: Workshop) -> None:
    assert workshop.row(release("lmcache", "0.5.6")).ok
    assert not workshop.row(release("vllm", "0.8.4")).ok


def test_a_release_that_cant_be_read_is_a_row_with_its_error(workshop: Workshop) -> None:
    class Broken(Held):
        def read(self, path: str) -> bytes | None:
            raise KvpatchError("bad-wheel", "it is damaged", "try again")

    row = workshop.row(Release("vllm", Version("0.25.1"), Broken({}), "broken.whl"))
    assert (row.ok, row.data["error"]) == (False, {"code": "bad-wheel", "message": "it is damaged"})


@pytest.mark.parametrize("package", ["vllm", "lmcache"])
@pytest.mark.parametrize("what", ["read", "metadata"])
def test_whose_file_it_is_that_can_t_be_read_is_told(
    workshop: Workshop, package: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = {name: release(name, "0.25.1") for name in ("vllm", "lmcache")}

    def broken(*_: object) -> bytes | None:
        raise KvpatchError("bad-wheel", "it is damaged", "try again")

    monkeypatch.setattr(pair[package].holder, what, broken)
    with pytest.raises(UnreadError, match="it is damaged") as caught:
        workshop.pair(pair["vllm"], pair["lmcache"])
    assert (caught.value.package, caught.value.code) == (package, "bad-wheel")
    monkeypatch.setattr(pair[package].holder, "opaque", broken)
    with pytest.raises(UnreadError) as caught:
        pair[package].opaque("vllm.attention")
    assert (caught.value.package, caught.value.hint) == (package, "try again")


def test_the_summary_counts_what_people_ask_for(workshop: Workshop) -> None:
    lmcache = release("lmcache", "0.5.6")
    pairs = [
        workshop.pair(release("vllm", "0.25.1"), lmcache),
        workshop.pair(release("vllm", "0.25.0", {UTILS: ""}), lmcache),
        workshop.pair(release("vllm", "0.12.0", {ATTENTION: ""}), lmcache),
    ]
    rows = [Row("vllm", "0.1", "x", error=KvpatchError("a", "b", "c"))]
    told = summary(pairs, rows)
    assert told == {
        "pairs": 3,
        "green_as_released": 0,
        "green_by_registration_alone": 1,
        "green_after": 1,
        "green_after_with_settings": 0,
        "green_after_with_notes": 0,
        "vllm_without_a_green_pair": ["0.12.0", "0.25.0"],
        "unreadable": ["vllm 0.1"],
    }
