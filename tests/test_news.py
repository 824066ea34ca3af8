"""The text of an issue: what is new or red since the catalogue was made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvpatch.matrix import Row
from kvpatch.news import _first, issue
from kvpatch.outcome import KvpatchError
from kvpatch.remote import Traffic
from kvpatch.validate import Matrix
from test_pairs import MATRIX, WHEELS, built, pair


def rows(**more: Row) -> tuple[Row, ...]:
    known = [Row(name, version, "x") for name, found in WHEELS.items() for version in found]
    return (*known, *more.values())


def matrix(found: tuple[Row, ...], pairs: list[dict[str, Any]]) -> Matrix:
    return Matrix(found, tuple(pairs), Traffic(), 0.0)


def test_nothing_is_told_where_nothing_is_new() -> None:
    assert issue(matrix(rows(), MATRIX), (), built()) is None


def test_a_new_release_that_is_patched_is_told_with_what_it_blends_with() -> None:
    new = Row("vllm", "0.12.0", "x", ({"id": "KV001", "outcome": "pending", "reason": ""},))
    pairs = [*MATRIX, pair("0.12.0", "0.5.0", "HV", "V", "*"), pair("0.12.0", "0.4.0", "HK", "K")]
    text = issue(matrix(rows(new=new), pairs), (), built())
    assert text is not None
    assert text.splitlines()[0] == "vLLM 0.12.0: new"
    assert "- every patch goes in" in text
    assert "- blends with 1 of 2 releases of LMCache: 0.5.0 with launch settings" in text


def test_a_new_release_that_is_patched_and_blends_with_nothing_is_red() -> None:
    new = Row("lmcache", "0.6.0", "x", ({"id": "KV003", "outcome": "pending", "reason": ""},))
    pairs = [*MATRIX, pair("0.9.0", "0.6.0", "XH", "X")]
    text = issue(matrix(rows(new=new), pairs), (), built())
    assert text is not None
    assert text.splitlines()[0] == "LMCache 0.6.0: red"
    assert "- with vLLM 0.9.0 the letters X stay" in text


def test_a_title_is_one_line_within_its_limit() -> None:
    error = KvpatchError("bad-wheel", "it is\ndamaged " + "and so on " * 40, "try again")
    text = issue(matrix(rows(), MATRIX), (error,), built())
    assert text is not None
    title, empty, *_ = text.splitlines()
    assert (len(title), empty) == (256, "")
    assert title.startswith("it is damaged and so on")


def test_a_new_release_whose_anchor_is_gone_is_red_with_its_reason() -> None:
    patch = {"id": "KV001", "outcome": "missing", "reason": "no anchor"}
    new = Row("vllm", "0.12.0", "x", (patch,), registered=False)
    pairs = [*MATRIX, pair("0.12.0", "0.5.0", "H", "H")]
    text = issue(matrix(rows(new=new), pairs), (), built())
    assert text is not None
    assert text.splitlines()[0] == "vLLM 0.12.0: red"
    assert "- KV001 is missing: no anchor" in text
    assert "- with LMCache 0.5.0 the letters H stay" in text


def test_a_pair_that_was_green_is_named_with_its_letters() -> None:
    pairs = [pair("0.9.0", "0.4.0", "HA", "A"), *MATRIX[1:]]
    text = issue(matrix(rows(), pairs), (), built())
    assert text is not None
    assert text.splitlines()[0] == "1 pair no longer green"
    assert "- vLLM 0.9.0 with LMCache 0.4.0 was green and is A" in text


def test_a_pair_that_was_green_and_now_needs_launch_settings_is_named() -> None:
    pairs = [pair("0.9.0", "0.4.0", "HV", "V", "*"), *MATRIX[1:]]
    text = issue(matrix(rows(), pairs), (), built())
    assert text is not None
    assert text.splitlines()[0] == "1 pair now with launch settings only"
    assert "0.9.0 with LMCache 0.4.0 was green without launch settings and now needs" in text
    assert "no longer green" not in text
    assert "are not" not in text


def test_a_title_tells_of_all_that_may_be_news() -> None:
    # Else the issue that is open for the new release would keep a later one from being opened.
    red = Row("vllm", "0.12.0", "x", registered=False)
    new = [Row("lmcache", f"0.6.{n}", "x") for n in range(6)]
    found = rows(red=red, **{row.version: row for row in new})
    green = [pair("0.10.0", row.version, "H", "", "+") for row in new]
    told = [pair("0.9.0", "0.4.0", "HA", "A"), *MATRIX[1:], *green]
    text = issue(matrix(found, told), (), built())
    assert text is not None
    assert text.splitlines()[0] == (
        "vLLM 0.12.0: red; LMCache 0.6.0, LMCache 0.6.1, LMCache 0.6.2, LMCache 0.6.3, 2 more: new"
        "; 1 pair no longer green"
    )


def test_a_known_release_that_cant_be_read_any_more_is_told_with_its_pairs() -> None:
    error = KvpatchError("bad-wheel", "it is damaged", "try again")
    found = tuple(
        replace(row, error=error) if (row.package, row.version) == ("vllm", "0.9.0") else row
        for row in rows()
    )
    gone = [one for one in MATRIX if one["vllm"] == "0.9.0"]
    text = issue(matrix(found, [one for one in MATRIX if one not in gone]), (), built())
    assert text is not None
    assert text.splitlines()[0] == f"{sum(one['ok'] for one in gone)} pairs no longer green"
    assert "- vLLM 0.9.0 with LMCache 0.4.0 was green and is not to be read" in text


def test_what_is_neither_new_nor_was_green_is_told_by_its_own_words() -> None:
    error = KvpatchError("newest-unpatched", "vllm 0.11.0 can't be patched: no anchor", "mend it")
    text = issue(matrix(rows(), MATRIX), (error,), built())
    assert text is not None
    assert text.splitlines()[0] == "vllm 0.11.0 can't be patched: no anchor"


def test_many_lost_pairs_are_counted_so_that_the_text_stays_within_its_limit() -> None:
    text = "\n".join(_first([f"pair {number}" for number in range(103)]))
    assert text.splitlines()[-2:] == ["- pair 99", "- and 3 more"]


def test_a_release_that_cant_be_read_is_told_with_the_reason() -> None:
    error = KvpatchError("bad-wheel", "it is damaged", "try again")
    new = Row("lmcache", "0.6.0", "x", error=error)
    text = issue(matrix(rows(new=new), MATRIX), (error,), built())
    assert text is not None
    assert "- can't be read: it is damaged" in text
    assert "- **bad-wheel**: it is damaged" in text
