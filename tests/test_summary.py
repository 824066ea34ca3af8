"""What a matrix is reported as, and what makes a run a no."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from kvpatch.matrix import Row
from kvpatch.outcome import KvpatchError
from kvpatch.remote import Traffic
from kvpatch.summary import failures, green_before, junit, markdown, regressions, text
from kvpatch.validate import Matrix


def pair(vllm: str, lmcache: str, before: str, after: str, **more: Any) -> dict[str, Any]:
    findings = [
        {
            "letter": letter,
            "scope": "at default settings" if letter == "V" else "always",
            "before": letter in before,
            "after": letter in after,
        }
        for letter in dict.fromkeys(before + after)
    ]
    ok = not set(after) - {"V"}
    data = {"vllm": vllm, "lmcache": lmcache, "before": list(before), "after": list(after)}
    return {**data, "ok": ok, "settings": "V" in after, "findings": findings, **more}


PATCHED = ({"id": "KV001", "outcome": "pending", "reason": "apply would put it in"},)
MISSING = ({"id": "KV001", "outcome": "missing", "reason": "no | anchor"},)
ROWS = (
    Row("vllm", "0.9.0", "a.whl", PATCHED),
    Row("vllm", "0.33.0", "b.whl", PATCHED),
    Row("lmcache", "0.5.6", "c.whl", PATCHED),
)
PAIRS = (pair("0.9.0", "0.5.6", "HR", "R"), pair("0.33.0", "0.5.6", "HV", "V"))


def matrix(rows: tuple[Row, ...] = ROWS, pairs: tuple[Any, ...] = PAIRS) -> Matrix:
    return Matrix(rows, pairs, Traffic(3, 2_000_000), 1.5)


def test_text_has_the_counts_and_what_is_red() -> None:
    told = text(matrix())
    assert "releases: 2 of vLLM, 1 of LMCache; pairs: 2; in 1.5 s (3 requests, 2.0 MB)" in told
    assert "after `kvpatch apply`            1, 1 of them with launch settings" in told
    assert "no LMCache blends with after apply: 0.9.0" in told
    rows = (Row("vllm", "0.34.0", "d.whl", MISSING), *ROWS)
    assert "can't be patched: vllm 0.34.0: KV001 missing: no | anchor" in text(matrix(rows))


def test_only_the_newest_release_that_cant_be_patched_is_a_no() -> None:
    assert list(failures(matrix())) == []
    old = (Row("vllm", "0.10.0", "d.whl", MISSING), *ROWS)
    assert list(failures(matrix(old))) == []
    # 0.34.0 is newer than 0.9.0 though its text is not.
    new = (Row("vllm", "0.34.0", "d.whl", MISSING), *ROWS)
    assert [error.code for error in failures(matrix(new))] == ["newest-unpatched"]
    lost = KvpatchError("bad-wheel", "it is damaged", "try again")
    assert list(failures(matrix((Row("vllm", "0.34.0", "d.whl", error=lost), *ROWS)))) == [lost]


@pytest.mark.parametrize(
    ("was", "count"),
    [
        ({("0.33.0", "0.5.6")}, 0),
        ({("0.9.0", "0.5.6")}, 1),
        ({("0.1.0", "0.5.6")}, 0),
    ],
)
def test_a_regression_is_a_pair_that_was_green_and_was_looked_at(
    was: set[tuple[str, str]], count: int
) -> None:
    assert len(list(regressions(matrix(), frozenset(was)))) == count


def test_a_pair_that_was_green_and_cant_be_read_is_a_regression() -> None:
    (error,) = regressions(matrix(pairs=PAIRS[:1]), frozenset({("0.33.0", "0.5.6")}))
    assert "is not to be read" in error.message


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"data": {"pairs": [1]}}'])
def test_a_baseline_that_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "was.json"
    path.write_text(content)
    with pytest.raises(KvpatchError, match="no report"):
        green_before(path)


def test_the_job_summary_is_a_table_by_vllm_newest_first() -> None:
    rows = (Row("vllm", "0.34.0", "d.whl", MISSING), *ROWS)
    made = markdown(matrix(rows), list(failures(matrix(rows))))
    lines = made.splitlines()
    assert lines[0].startswith("# ")
    assert lines.index("| 0.33.0 | 0.5.6 | 0.5.6* |") < lines.index("| 0.9.0 | none | none |")
    assert any("newest-unpatched" in line for line in lines)


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
