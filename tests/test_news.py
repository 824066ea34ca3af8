"""The text of an issue: what is new or red since the catalogue was made."""

from __future__ import annotations

from typing import Any

from kvpatch.matrix import Row
from kvpatch.news import issue
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
    assert "- vLLM 0.9.0 with LMCache 0.4.0: A" in text


def test_a_release_that_cant_be_read_is_told_with_the_reason() -> None:
    error = KvpatchError("bad-wheel", "it is damaged", "try again")
    new = Row("lmcache", "0.6.0", "x", error=error)
    text = issue(matrix(rows(new=new), MATRIX), (error,), built())
    assert text is not None
    assert "- can't be read: it is damaged" in text
    assert "- **bad-wheel**: it is damaged" in text
