"""What a matrix is reported as, and what makes a run a no."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvpatch.matrix import Row
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.remote import Traffic
from kvpatch.summary import failures, markdown, text
from matrices import MISSING, PAIRS, PATCHED, ROWS, matrix, pair


def test_text_has_the_counts_and_what_is_red() -> None:
    told = text(matrix())
    assert "releases: 2 of vLLM, 1 of LMCache; pairs: 2; in 1.5 s (3 requests, 2.0 MB)" in told
    assert "after `kvpatch apply`            1, 1 of them with launch settings" in told
    assert "no LMCache blends with after apply: 0.9.0" in told
    rows = (Row("vllm", "0.34.0", "d.whl", MISSING), *ROWS)
    assert "can't be patched: vllm 0.34.0: KV001 missing: no | anchor" in text(matrix(rows))


def test_an_lmcache_that_could_not_be_read_is_not_said_not_to_blend() -> None:
    lost = Row("lmcache", "0.5.5", "e.whl", error=KvpatchError("a", "it is damaged", "c"))
    told = text(matrix((*ROWS, lost)))
    assert "none of the LMCache that could be read blends with after apply: 0.9.0" in told
    assert "no LMCache" not in told


def test_of_two_rows_of_one_version_the_file_is_named() -> None:
    twice = (*ROWS, Row("vllm", "0.33.0", "/src/vllm", MISSING))
    assert "can't be patched: vllm 0.33.0 (/src/vllm): KV001" in text(matrix(twice))


def test_only_the_newest_release_that_cant_be_patched_is_a_no() -> None:
    assert list(failures(matrix())) == []
    old = (Row("vllm", "0.10.0", "d.whl", MISSING), *ROWS)
    assert list(failures(matrix(old))) == []
    # 0.34.0 is newer than 0.9.0 though its text is not.
    new = (Row("vllm", "0.34.0", "d.whl", MISSING), *ROWS)
    assert [error.code for error in failures(matrix(new))] == ["newest-unpatched"]
    lost = KvpatchError("bad-wheel", "it is damaged", "try again")
    assert list(failures(matrix((Row("vllm", "0.34.0", "d.whl", error=lost), *ROWS)))) == [lost]


def test_each_file_of_the_newest_release_counts() -> None:
    given = Row("vllm", "0.33.0", "mine.whl", MISSING, given=True)
    for rows in ((*ROWS, given), (given, *ROWS)):
        (error,) = failures(matrix(rows))
        assert error.message == "vllm 0.33.0 (mine.whl) can't be patched: KV001 is missing"
    older = replace(given, version="0.9.0")
    assert list(failures(matrix((*ROWS, older)))) == []


def test_the_job_summary_is_a_table_by_vllm_newest_first() -> None:
    rows = (Row("vllm", "0.34.0", "d.whl", MISSING), *ROWS)
    made = markdown(matrix(rows), list(failures(matrix(rows))))
    lines = made.splitlines()
    assert lines[0].startswith("# ")
    assert lines.index("| 0.33.0 | 0.5.6 | 0.5.6* |") < lines.index("| 0.9.0 | none | none |")
    assert any("newest-unpatched" in line for line in lines)


def test_what_the_released_wheels_need_is_counted_and_said() -> None:
    noted = matrix(pairs=(*PAIRS, pair("0.32.0", "0.5.6", "H", "", notes=["for another torch"])))
    assert noted.data["summary"]["green_after_with_notes"] == 1
    assert "of these 1 need another build of LMCache or --no-deps" in text(noted)
    assert "--no-deps" not in text(matrix())
    assert "blends [1]" in text(noted)
    assert "[1] for another torch" in text(noted).splitlines()
    lines = markdown(noted, []).splitlines()
    assert "| 0.32.0 | 0.5.6 | 0.5.6 [1] |" in lines
    assert "- [1] for another torch" in lines


def test_one_request_is_one() -> None:
    one = replace(matrix(), traffic=Traffic(1, 0))
    assert "(1 request, " in text(one)


@pytest.mark.parametrize("version", ["0.9.0", "0.33.0"])
@pytest.mark.parametrize("unread", [True, False])
def test_a_full_disk_is_the_environments_fault_whichever_release_it_struck(
    version: str, unread: bool
) -> None:
    why = "/cache can't be written: No space left on device"
    error = KvpatchError("no-cache", why, "make room", ExitCode.ENVIRONMENT)
    pair = {"vllm": version, "lmcache": "0.5.6", "code": error.code, "message": why}
    rows = tuple(replace(r, error=error) if r.version == version else r for r in ROWS)
    found = replace(matrix(), unread=(pair,)) if unread else matrix(rows)
    (told,) = failures(found)
    assert (told.code, told.message, told.exit_code) == ("no-cache", why, ExitCode.ENVIRONMENT)


def test_pairs_that_could_not_be_checked_are_told_and_those_of_the_newest_are_a_no() -> None:
    why = {"code": "bad-wheel", "message": "b.whl has a damaged vllm/x.py", "hint": "go"}
    unread = ({"vllm": "0.33.0", "lmcache": "0.5.6", **why},)
    left = replace(matrix(pairs=PAIRS[:1]), unread=unread)
    assert "not checked: 1 pair: b.whl has a damaged vllm/x.py" in text(left)
    assert left.data["unread"] == list(unread)
    told = list(failures(left))
    assert {error.code for error in told} == {"bad-wheel"}
    assert "1 pair of vllm 0.33.0 can't be checked" in " ".join(error.message for error in told)
    assert {error.hint for error in told} == {"go; what could be read is kept"}
    # Neither is one whose file of an older release can't be read.
    (told_of,) = failures(replace(left, unread=({**unread[0], "distribution": "vllm"},)))
    assert "1 pair of vllm 0.33.0" in told_of.message
    elder = ({"vllm": "0.9.0", "lmcache": "0.5.6", "distribution": "vllm", **why},)
    assert list(failures(replace(left, unread=elder))) == []
    # An old vLLM beside an old LMCache is told, and no reason to fail.
    rows = (Row("lmcache", "0.5.7", "e.whl", PATCHED), *ROWS)
    old = ({"vllm": "0.9.0", "lmcache": "0.5.6", **why},)
    assert list(failures(replace(matrix(rows), unread=old))) == []
