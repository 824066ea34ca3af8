"""A matrix as a JUnit file, read back by a parser."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from kvpatch.baseline import regressions
from kvpatch.junit import junit
from kvpatch.matrix import Row
from kvpatch.outcome import ExitCode, KvpatchError
from matrices import MISSING, PAIRS, PATCHED, ROWS, matrix, pair


def test_junit_has_a_case_for_each_release_and_each_vllm() -> None:
    lost = Row("lmcache", "0.5.7", "e.whl", error=KvpatchError("a", "it is <damaged>", "c"))
    suites = ElementTree.fromstring(junit(matrix((*ROWS, lost))).encode())
    counts = {
        suite.get("name"): (suite.get("tests"), suite.get("failures"), suite.get("errors"))
        for suite in suites
    }
    assert counts == {"releases": ("4", "0", "1"), "vLLM with some LMCache": ("2", "1", "0")}
    (error,) = suites.iter("error")
    assert error.get("message") == "it is <damaged>"


def test_what_cant_be_patched_is_a_failure_with_its_reason() -> None:
    rows = (
        Row("vllm", "0.34.0", "d.whl", MISSING),
        Row("vllm", "0.35.0", "e.whl", registered=False),
        *ROWS,
    )
    suites = ElementTree.fromstring(junit(matrix(rows)).encode())
    failed = {
        case.get("name"): failure.get("message")
        for case in suites[0]
        if (failure := case.find("failure")) is not None
    }
    assert failed == {
        "0.34.0": "KV001 missing: no | anchor",
        "0.35.0": "no patch registers its model",
    }


def test_a_vllm_that_no_lmcache_blends_with_is_told_by_its_newest_pair() -> None:
    pairs = (*PAIRS, pair("0.9.0", "0.5.7", "HK", "K"))
    suites = ElementTree.fromstring(junit(matrix(pairs=pairs)).encode())
    (failure,) = suites[1].iter("failure")
    assert failure.get("message") == "no LMCache blends with it; with 0.5.7: K"


def test_a_vllm_that_blends_is_not_in_error_for_an_lmcache_that_could_not_be_read() -> None:
    why = {"distribution": "lmcache", "message": "e.whl has a damaged lmcache/x.py"}
    unread = tuple({"vllm": vllm, "lmcache": "0.5.5", **why} for vllm in ("0.9.0", "0.33.0"))
    rows = (*ROWS, Row("lmcache", "0.5.5", "e.whl", PATCHED))
    suites = ElementTree.fromstring(junit(replace(matrix(rows), unread=unread)))
    errors = {case.get("name"): case.find("error") for case in suites.iter("testcase")}
    # Of 0.9.0, which is red with the other LMCache, it isn't known that none blends with it.
    assert {name for name, error in errors.items() if error is not None} == {"0.5.5", "0.9.0"}
    assert [suite.get("failures") for suite in suites] == ["0", "0"]


def test_what_else_fails_the_run_is_a_case_of_its_own() -> None:
    was = dict.fromkeys([("0.9.0", "0.5.6"), ("0.33.0", "0.5.6")], True)
    (lost,) = regressions(matrix(), was)
    down = KvpatchError("no-network", "it is down", "c", ExitCode.ENVIRONMENT)
    suites = ElementTree.fromstring(junit(matrix(), (lost, down)))
    told = suites[-1]
    assert (told.get("failures"), told.get("errors")) == ("1", "1")
    assert [case[0].get("message") for case in told] == [lost.message, down.message]
    assert [suite.get("name") for suite in suites][:-1] == [
        suite.get("name") for suite in ElementTree.fromstring(junit(matrix()))
    ]


def test_a_vllm_with_pairs_that_could_not_be_checked_is_an_error() -> None:
    why = {"code": "bad-wheel", "message": "b.whl has a damaged vllm/x.py"}
    unread = ({"vllm": "0.33.0", "lmcache": "0.5.6", **why},)
    suites = ElementTree.fromstring(junit(replace(matrix(pairs=PAIRS[:1]), unread=unread)))
    (case,) = suites.findall(".//testcase[@classname='vllm'][error]")
    assert case.get("name") == "0.33.0"
    assert "b.whl has a damaged" in str(case.findall("error")[0].get("message"))
