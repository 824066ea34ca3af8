"""validate against an index in this process: what is read, kept, and left when things go wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import Ran, kvpatch
from kvpatch import summary
from kvpatch.pairs import read
from pair_stand_in import (
    ATTENTION,
    BASE,
    CONTEXT,
    FILES,
    GPU,
    LAYER,
    UTILS,
    WORKER,
    replaced,
    vllm_patches_alone,
)
from planning import series
from small_index import SmallIndex, small_index, wheel_bytes

__all__ = ["vllm_patches_alone"]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallIndex]:
    with small_index(monkeypatch, tmp_path / "cache") as served:
        served.add("vllm", "0.25.1")
        served.add("vllm", "0.12.0", {ATTENTION: ""})
        served.add("lmcache", "0.5.6")
        yield served


def pairs(ran: Ran) -> dict[tuple[str, str], tuple[str, str, bool]]:
    return {
        (pair["vllm"], pair["lmcache"]): (
            "".join(pair["before"]),
            "".join(pair["after"]),
            pair["ok"],
        )
        for pair in ran.data["pairs"]
    }


def test_every_pair_has_its_letters_before_and_after(index: SmallIndex) -> None:
    ran = kvpatch("validate", "--json")
    assert ran.code == 0
    assert pairs(ran) == {
        ("0.12.0", "0.5.6"): ("HA", "A", False),
        ("0.25.1", "0.5.6"): ("H", "", True),
    }
    told = ran.data["summary"]
    assert (told["pairs"], told["green_as_released"]) == (2, 0)
    assert (told["green_by_registration_alone"], told["green_after"]) == (1, 1)
    assert told["vllm_without_a_green_pair"] == ["0.12.0"]
    (row,) = [row for row in ran.data["releases"] if row["version"] == "0.25.1"]
    assert (row["ok"], row["patches"][0]["outcome"], row["error"]) == (True, "pending", None)
    (finding,) = [f for f in ran.data["pairs"][1]["findings"] if f["letter"] == "H"]
    assert (finding["before"], finding["after"], finding["cures"]) == (True, False, ["KV001"])


def test_progress_is_on_stderr_and_the_counts_are_in_the_text(index: SmallIndex) -> None:
    ran = kvpatch("validate")
    assert "releases: 2 of vLLM, 1 of LMCache; pairs: 2;" in ran.out
    assert "vLLM that no LMCache blends with after apply: 0.12.0" in ran.out
    assert "checking LMCache 0.5.6 against 2 vLLM (1/1)" in ran.err


def test_a_second_run_reads_no_wheel_and_says_the_same(index: SmallIndex) -> None:
    first = kvpatch("validate", "--json")
    asked = len(index.ranges)
    assert asked > 0
    second = kvpatch("validate", "--json")
    assert len(index.ranges) == asked
    assert second.data["pairs"] == first.data["pairs"]
    assert second.data["releases"] == first.data["releases"]
    index.add("lmcache", "0.5.7")
    # The list of releases is kept for an hour.
    for kept in (Path(str(index_folder())) / "index").rglob("lmcache.json"):
        kept.unlink()
    third = kvpatch("validate", "--json")
    assert set(pairs(third)) > set(pairs(first))


def index_folder() -> Path:
    from kvpatch.stack import default_cache

    return default_cache()


def test_little_of_the_wheels_is_read(index: SmallIndex) -> None:
    ran = kvpatch("validate", "--json")
    # The extensions are most of the bytes, and are never asked for.
    assert 0 < ran.data["summary"]["bytes"] < sum(map(len, index.wheels.values())) / 2
    assert ran.data["summary"]["requests"] == len(index.ranges)


def test_specs_choose_and_yanked_and_pre_releases_are_left_out(index: SmallIndex) -> None:
    index.add("vllm", "0.26.0rc1")
    index.yanked.add(index.add("vllm", "0.24.0"))
    assert {key[0] for key in pairs(kvpatch("validate", "--json"))} == {"0.12.0", "0.25.1"}
    newer = kvpatch("validate", "--json", "--pre", "--vllm", ">=0.20")
    assert {key[0] for key in pairs(newer)} == {"0.25.1", "0.26.0rc1"}


def test_a_release_that_cant_be_read_is_a_row_and_the_rest_goes_on(
    index: SmallIndex, tmp_path: Path
) -> None:
    index.broken.add("vllm-0.12.0-py3-none-any.whl")
    page = tmp_path / "page.html"
    ran = kvpatch("validate", "--json", "--html", page)
    assert "not read: vllm 0.12.0: vllm-0.12.0-py3-none-any.whl could not" in page.read_text()
    assert ran.code == 0
    assert set(pairs(ran)) == {("0.25.1", "0.5.6")}
    (row,) = [row for row in ran.data["releases"] if row["error"]]
    assert (row["version"], row["error"]["code"], row["ok"]) == ("0.12.0", "no-network", False)
    assert ran.data["summary"]["unreadable"] == ["vllm 0.12.0"]


@pytest.mark.parametrize("package", ["vllm", "lmcache"])
def test_a_damaged_file_of_an_old_release_is_told_and_the_rest_goes_on(
    index: SmallIndex, tmp_path: Path, package: str
) -> None:
    # Planning reads neither; whether the pairs blend hangs on each.
    path, version = {"vllm": (LAYER, "0.24.0"), "lmcache": (BASE, "0.5.5")}[package]
    whole = pairs(kvpatch("validate", "--json"))
    name = index.add(package, version, {path: f"{FILES[path]}\n# as of {version}\n"})
    index.damage(name, path)
    for kept in (index_folder() / "index").rglob("*.json"):
        kept.unlink()
    junit = tmp_path / "junit.xml"
    ran = kvpatch("validate", "--json", "--junit", junit)
    assert (ran.code, ran.envelope["errors"], pairs(ran)) == (0, [], whole)
    assert {(one[package], one["distribution"]) for one in ran.data["unread"]} == {
        (version, package)
    }
    assert f"{name} has a damaged {path}" in ran.data["unread"][0]["message"]
    (row,) = [row for row in ran.data["releases"] if row["version"] == version]
    assert (row["ok"], row["error"]) == (True, None)
    told = kvpatch("validate")
    assert told.code == 0
    count = "1 pair" if package == "vllm" else "2 pairs"
    assert f"not checked: {count}: {name} has a damaged {path}" in told.out
    # Whether nothing blends with it is not known either.
    assert ran.data["summary"]["vllm_without_a_green_pair"] == (
        ["0.12.0"] if package == "vllm" else []
    )
    cases = ElementTree.parse(junit).getroot().iter("testcase")
    errors = {
        (case.get("classname"), case.get("name"))
        for case in cases
        if case.find("error") is not None
    }
    assert errors == (
        {("vllm", "0.24.0")} if package == "vllm" else {("lmcache", "0.5.5"), ("vllm", "0.12.0")}
    )


@pytest.mark.parametrize("package", ["vllm", "lmcache"])
def test_a_damaged_file_of_the_newest_release_is_a_no(index: SmallIndex, package: str) -> None:
    path, version = {"vllm": (LAYER, "0.26.0"), "lmcache": (BASE, "0.5.7")}[package]
    name = index.add(package, version, {path: f"{FILES[path]}\n# as of {version}\n"})
    index.damage(name, path)
    ran = kvpatch("validate", "--json")
    (error,) = ran.envelope["errors"]
    assert (ran.code, error["code"]) == (1, "bad-wheel")
    assert f"of {package} {version} can't be checked" in error["message"]
    assert set(pairs(ran)) == {("0.12.0", "0.5.6"), ("0.25.1", "0.5.6")}


@pytest.mark.parametrize("version", ["0.24.0", "0.26.0"])
def test_a_damaged_file_that_no_verdict_hangs_on_changes_none(
    index: SmallIndex, version: str
) -> None:
    name = index.add("vllm", version, {CONTEXT: f"{FILES[CONTEXT]}\n# as of {version}\n"})
    whole = kvpatch("validate", "--json")
    index.damage(name, CONTEXT)
    for kept in (index_folder() / "index").rglob("*.json"):
        kept.unlink()
    ran = kvpatch("validate", "--json")
    assert (ran.code, ran.data["unread"]) == (0, [])
    assert pairs(ran) == pairs(whole)
    assert len(pairs(ran)) == 3


def test_a_newest_release_that_cant_be_read_is_a_no(index: SmallIndex) -> None:
    index.wheels["vllm-0.25.1-py3-none-any.whl"] = b"not a zip"
    ran = kvpatch("validate", "--json")
    assert (ran.code, ran.data["releases"][1]["error"]["code"]) == (1, "bad-wheel")


def test_a_release_without_a_wheel_is_a_row_that_says_so(index: SmallIndex) -> None:
    index.wheels["vllm-0.24.0.tar.gz"] = b""
    ran = kvpatch("validate", "--json")
    assert (ran.code, ran.data["summary"]["unreadable"]) == (0, ["vllm 0.24.0"])
    (row,) = [row for row in ran.data["releases"] if row["error"]]
    assert row["error"]["code"] == "only-sdist"
    assert "vllm-0.24.0.tar.gz is all that the index has" in row["error"]["message"]


def test_an_old_release_without_a_wheel_is_no_reason_to_fail(index: SmallIndex) -> None:
    # No patch is for this one, so that planning reads nothing of it.
    index.wheels["lmcache-0.3.0.tar.gz"] = b""
    ran = kvpatch("validate", "--json", "--lmcache", ">=0.3")
    assert (ran.code, ran.data["summary"]["unreadable"]) == (0, ["lmcache 0.3.0"])
    assert ran.data["unread"] == []
    told = kvpatch("validate", "--lmcache", ">=0.3")
    assert told.code == 0
    assert "not read: lmcache 0.3.0: lmcache-0.3.0.tar.gz is all" in told.out
    alone = kvpatch("validate", "--json", "--lmcache", "==0.3.0")
    assert (alone.code, [one["code"] for one in alone.envelope["errors"]]) == (1, ["only-sdist"])
    assert "--source" in alone.error["hint"]


def test_an_index_that_is_down_is_named_and_the_rest_goes_on(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = kvpatch("validate", "--json")
    monkeypatch.setenv("UV_INDEX", "http://127.0.0.1:9/simple/")
    files = {name: tmp_path / name for name in ("junit", "html", "catalogue")}
    wanted = [word for name, path in files.items() for word in (f"--{name}", path)]
    ran = kvpatch("validate", "--json", *wanted)
    assert (ran.code, ran.data["pairs"]) == (4, whole.data["pairs"])
    told = "the list of releases of vllm could not be read from the package index of 127.0.0.1:9 ("
    assert ran.error["message"].startswith(told)
    assert all(told in files[name].read_text() for name in ("junit", "html"))
    # No index that is asked for wheels of a folder alone.
    (tmp_path / "links").mkdir()
    for name, data in index.wheels.items():
        (tmp_path / "links" / name).write_bytes(data)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple/")
    monkeypatch.delenv("UV_INDEX")
    ran = kvpatch("validate", "--json")
    assert (ran.code, pairs(ran)) == (4, pairs(whole))
    for name in ("UV_DEFAULT_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    ran = kvpatch("validate", "--json")
    assert (ran.code, pairs(ran)) == (0, pairs(whole))


def test_wheels_of_find_links_are_checked_where_the_index_lacks_the_release(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vllm-0.26.0", "vllm-0.25.1", "vllm-0.27.0rc1", "other-1.0"):
        content = wheel_bytes("vllm", name.partition("-")[2])
        (tmp_path / f"{name}-py3-none-any.whl").write_bytes(content)
    (tmp_path / "no wheel.whl").write_bytes(b"")
    monkeypatch.setenv("UV_FIND_LINKS", f"{tmp_path},/nowhere")
    ran = kvpatch("validate", "--json")
    assert {vllm for vllm, _ in pairs(ran)} == {"0.12.0", "0.25.1", "0.26.0"}


def test_a_catalogue_is_written_and_serves_as_a_baseline(index: SmallIndex, tmp_path: Path) -> None:
    catalogue = tmp_path / "pairs.json"
    assert kvpatch("validate", "--catalogue", catalogue).code == 0
    found = read(catalogue.read_text())
    assert {pair for pair, known in found.known.items() if known.ok} == {("0.25.1", "0.5.6")}
    assert found.series == series().digest
    assert kvpatch("validate", "--baseline", catalogue).code == 0
    index.add("vllm", "0.25.1", {ATTENTION: ""})
    for kept in (index_folder() / "index").rglob("vllm.json"):
        kept.unlink()
    ran = kvpatch("validate", "--json", "--baseline", catalogue)
    assert (ran.code, ran.envelope["errors"][0]["code"]) == (1, "regression")
    catalogue.write_text("[]")
    ran = kvpatch("validate", "--json", "--catalogue", catalogue)
    assert (ran.code, ran.envelope["errors"][0]["code"]) == (2, "bad-catalogue")


def test_the_issue_is_written_where_something_is_new_and_taken_away_where_nothing_is(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, catalogue = tmp_path / "issue.md", tmp_path / "pairs.json"
    kvpatch("validate", "--catalogue", catalogue)
    shipped = read(catalogue.read_text())
    monkeypatch.setattr(summary, "load", lambda: shipped)
    text.write_text("of an earlier run")
    assert kvpatch("validate", "--issue", text).code == 0
    assert not text.exists()
    index.add("vllm", "0.40.0", NEWER["gone"])
    for kept in (index_folder() / "index").rglob("vllm.json"):
        kept.unlink()
    assert kvpatch("validate", "--issue", text).code == 1
    assert text.read_text().startswith("vLLM 0.40.0: red\n\n")
    assert "KV001 is missing" in text.read_text()


def test_without_ranges_small_wheels_are_read_whole_where_that_is_allowed(
    index: SmallIndex,
) -> None:
    by_ranges = pairs(kvpatch("validate", "--json"))
    for path in index_folder().rglob("*"):
        if path.is_file():
            path.unlink()
    index.rangeless = True
    ran = kvpatch("validate", "--json")
    rows = [row for row in ran.data["releases"] if row["distribution"] == "vllm"]
    assert [row["error"]["code"] for row in rows] == ["no-ranges", "no-ranges"]
    assert "--max-download" in ran.envelope["errors"][0]["hint"]
    ran = kvpatch("validate", "--json", "--max-download", "1")
    assert pairs(ran) == by_ranges
    assert ran.data["summary"]["bytes"] == sum(map(len, index.wheels.values()))


def test_a_wheel_that_was_read_whole_and_was_damaged_since_is_fetched_anew(
    index: SmallIndex,
) -> None:
    index.rangeless = True
    asked = ("validate", "--json", "--max-download", "1")
    first = kvpatch(*asked)
    for path in index_folder().rglob("*"):
        if path.is_file() and "index" not in path.parts:
            path.write_bytes(path.read_bytes()[:-10] if "whole" in path.parts else b"")
    again = kvpatch(*asked)
    assert (again.data["releases"], again.data["pairs"]) == (
        first.data["releases"],
        first.data["pairs"],
    )


@pytest.mark.parametrize(("folder", "options"), [("files", ()), ("whole", ("--max-download", 1))])
def test_a_cache_that_can_t_be_written_is_no_answer(
    index: SmallIndex, folder: str, options: tuple[object, ...]
) -> None:
    index.rangeless = bool(options)
    index_folder().mkdir(parents=True)
    (index_folder() / folder).write_text("in the way")
    ran = kvpatch("validate", "--json", *options)
    assert (ran.code, [error["code"] for error in ran.envelope["errors"]]) == (4, ["no-cache"])
    left_out = [row["error"] for row in ran.data["releases"] if row["error"]]
    assert {error["code"] for error in [*left_out, *ran.data["unread"]]} == {"no-cache"}


def test_a_run_clears_away_what_killed_ones_left_and_what_other_kvpatch_found(
    index: SmallIndex,
) -> None:
    first = kvpatch("validate", "--json")
    (own,) = (index_folder() / "verdicts").iterdir()
    others = [own.with_name(f"{number:016x}") for number in range(5)]
    for number, other in enumerate(others):
        other.mkdir()
        os.utime(other, (number, number))
    half, written = (
        own / ".new-killed_1",
        next((index_folder() / "files").iterdir()) / ".new-young__1",
    )
    half.touch()
    written.touch()
    os.utime(half, (1, 1))
    # Somebody looked when the first run ended.
    again = kvpatch("validate", "--json")
    assert (half.exists(), again.data["pairs"]) == (True, first.data["pairs"])
    (stamp,) = index_folder().glob(".left*")
    os.utime(stamp, (1, 1))
    again = kvpatch("validate", "--json")
    assert (half.exists(), written.exists()) == (False, True)
    assert sorted(own.parent.iterdir()) == sorted([*others[-3:], own])
    assert again.data["pairs"] == first.data["pairs"]
    assert again.err == kvpatch("validate", "--json").err


def test_a_damaged_cache_is_read_anew(index: SmallIndex) -> None:
    first = kvpatch("validate", "--json")
    for path in index_folder().rglob("*"):
        if path.is_file() and "index" not in path.parts:
            path.write_bytes(b"{}")
    assert kvpatch("validate", "--json").data["pairs"] == first.data["pairs"]


ANCHOR = "        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)\n"
NEWER = {
    "gone": replaced(WORKER, ANCHOR, ""),
    "moved": replaced(WORKER, ANCHOR, "        self._start(kv_cache_config)\n"),
    "doubled": replaced(WORKER, ANCHOR, ANCHOR + ANCHOR),
    "absorbed": replaced(
        WORKER,
        ANCHOR,
        "        VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.get_model())\n"
        + ANCHOR,
    ),
}
NEWER["absorbed"][WORKER] = (
    "from lmcache.integration.vllm.utils import ENGINE_NAME\n"
    "from lmcache.v1.compute.models.utils import VLLMModelTracker\n"
    + str(NEWER["absorbed"][WORKER])
)


@pytest.mark.parametrize(
    ("what", "outcome", "code"),
    [
        ("gone", "missing", 1),
        ("moved", "missing", 1),
        ("doubled", "ambiguous", 1),
        ("absorbed", "absorbed", 0),
    ],
)
def test_a_new_release_is_red_or_absorbed_as_its_anchor_stands(
    index: SmallIndex, what: str, outcome: str, code: int
) -> None:
    index.add("vllm", "0.40.0", NEWER[what])
    ran = kvpatch("validate", "--json")
    (row,) = [row for row in ran.data["releases"] if row["version"] == "0.40.0"]
    assert {p["id"]: p["outcome"] for p in row["patches"]}["KV001"] == outcome
    assert ran.code == code
    assert row["ok"] is (code == 0)
    if code:
        assert "newest-unpatched" in [error["code"] for error in ran.envelope["errors"]]
        assert pairs(ran)["0.40.0", "0.5.6"][1].startswith("H")
    else:
        assert pairs(ran)["0.40.0", "0.5.6"] == ("", "", True)


def test_a_wheel_and_a_folder_are_checked_beside_the_index(
    index: SmallIndex, tmp_path: Path
) -> None:
    wheel = tmp_path / "vllm-0.41.0-py3-none-any.whl"
    wheel.write_bytes(wheel_bytes("vllm", "0.41.0", {UTILS: ""}))
    folder = tmp_path / "checkout"
    (folder / "lmcache").mkdir(parents=True)
    (folder / "lmcache" / "__init__.py").write_text("")
    (folder / "lmcache" / "_version.py").write_text("__version__ = version = '0.6.0.dev1'\n")
    ran = kvpatch("validate", "--json", "--source", wheel, "--source", folder)
    found = pairs(ran)
    assert found["0.41.0", "0.5.6"][0] == "XH"
    assert found["0.25.1", "0.6.0.dev1"][0].startswith("X")


def test_a_source_of_a_release_that_the_index_has_too_is_told_from_it(
    index: SmallIndex, tmp_path: Path
) -> None:
    wheel = tmp_path / "vllm-0.25.1-py3-none-any.whl"
    wheel.write_bytes(wheel_bytes("vllm", "0.25.1", {ATTENTION: ""}))
    for _ in range(2):
        found = kvpatch("validate", "--json", "--source", wheel).data["pairs"]
        told = [(p["ok"], p.get("sources")) for p in found if p["vllm"] == "0.25.1"]
        assert told == [(True, None), (False, {"vllm": wheel.name})]
    catalogue, beside = tmp_path / "pairs.json", tmp_path / "beside.json"
    kvpatch("validate", "--catalogue", catalogue)
    # Neither is it taken into a catalogue for it, nor does it hide what became of it.
    ran = kvpatch(
        "validate", "--source", wheel, "--catalogue", beside, "--baseline", catalogue, "--json"
    )
    assert beside.read_text() == catalogue.read_text()
    assert [error["message"] for error in ran.envelope["errors"]] == [
        f"vLLM 0.25.1 with LMCache 0.5.6 was green and is A ({wheel.name})"
    ]
    report = tmp_path / "was.json"
    report.write_text(json.dumps(ran.envelope))
    assert kvpatch("validate", "--baseline", report).code == 0
    out = kvpatch("validate", "--source", wheel).out
    assert "0.25.1 (source)  0.5.6    H A          A            does not blend" in out
    assert f"(source) vLLM 0.25.1: {wheel.name}" in out


def test_two_sources_of_one_release_are_a_matter_of_usage(
    index: SmallIndex, tmp_path: Path
) -> None:
    given: list[object] = []
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        wheel = tmp_path / folder / "vllm-0.41.0-py3-none-any.whl"
        wheel.write_bytes(wheel_bytes("vllm", "0.41.0"))
        given += ["--source", wheel]
    assert kvpatch("validate", *given[:2]).code == 0
    ran = kvpatch("validate", "--json", *given)
    assert (ran.code, ran.envelope["errors"][0]["code"]) == (2, "same-source")


def test_where_lmcache_was_asked_for_only_that_is_said_not_to_blend(
    index: SmallIndex, tmp_path: Path
) -> None:
    summary = tmp_path / "told.md"
    ran = kvpatch("validate", "--lmcache", "==0.5.6", "--markdown", summary)
    for told in (ran.out, summary.read_text()):
        assert "vLLM that none of the LMCache asked for blends with after apply: 0.12.0" in told
        assert "no LMCache blends" not in told


def test_a_pair_that_was_green_and_is_red_is_a_no(index: SmallIndex, tmp_path: Path) -> None:
    report = tmp_path / "was.json"
    report.write_text(json.dumps(kvpatch("validate", "--json").envelope))
    assert kvpatch("validate", "--baseline", report).code == 0
    data = json.loads(report.read_text())
    data["data"]["pairs"][0]["ok"] = True
    report.write_text(json.dumps(data))
    files = {name: tmp_path / name for name in ("markdown", "junit", "html")}
    wanted = [word for name, path in files.items() for word in (f"--{name}", path)]
    ran = kvpatch("validate", "--json", "--baseline", report, *wanted)
    assert (ran.code, [error["code"] for error in ran.envelope["errors"]]) == (1, ["regression"])
    told = "vLLM 0.12.0 with LMCache 0.5.6 was green and is A"
    assert told in ran.envelope["errors"][0]["message"]
    # Whichever file a CI system looks at.
    assert {name: told in path.read_text() for name, path in files.items()} == dict.fromkeys(
        files, True
    )
    kvpatch("validate", "--json", *wanted)
    assert not any(told in path.read_text() for path in files.values())


@pytest.mark.parametrize(
    ("options", "code", "word"),
    [
        (["--vllm", "newest"], 2, "bad-spec"),
        (["--vllm", ">99"], 4, "no-releases"),
        (["--baseline", "/nowhere"], 4, "unreadable"),
        (["--baseline", __file__], 2, "bad-baseline"),
        (["--source", "/nowhere"], 4, "bad-source"),
        (["--jobs", "0"], 2, "usage"),
        (["--html", "/nowhere/page.html"], 4, "not-written"),
        (["--junit", "/"], 4, "not-written"),
    ],
)
def test_bad_input_has_its_code(
    index: SmallIndex, options: list[str], code: int, word: str
) -> None:
    ran = kvpatch("validate", "--json", *options)
    assert (ran.code, ran.envelope["errors"][0]["code"]) == (code, word)
    assert ran.envelope["errors"][0]["hint"]


def test_a_file_that_can_not_be_written_takes_no_result_along(
    index: SmallIndex, tmp_path: Path
) -> None:
    whole = kvpatch("validate", "--json")
    page = tmp_path / "page.html"
    ran = kvpatch("validate", "--json", "--markdown", "/dev/full", "--html", page)
    assert (ran.code, [error["code"] for error in ran.envelope["errors"]]) == (4, ["not-written"])
    assert ran.data["pairs"] == whole.data["pairs"]
    assert page.is_file()


def test_without_an_index_it_is_the_network(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple/")
    ran = kvpatch("validate", "--json")
    assert (ran.code, ran.envelope["errors"][0]["code"]) == (4, "no-network")


def test_a_changed_lmcache_file_changes_the_verdict(index: SmallIndex) -> None:
    kvpatch("validate", "--json")
    index.add("lmcache", "0.5.6", {GPU: "", UTILS: None})
    for kept in (index_folder() / "index").rglob("lmcache.json"):
        kept.unlink()
    before = len(index.ranges)
    kvpatch("validate", "--json")
    assert len(index.ranges) > before


def test_only_without_run_is_a_matter_of_usage() -> None:
    ran = kvpatch("validate", "--json", "--only", "KV001")
    assert (ran.code, ran.error["code"]) == (2, "only-without-run")
    assert "--run" in ran.error["hint"]
