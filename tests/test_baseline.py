"""What an earlier run found, and what of it no longer holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvpatch import pairs
from kvpatch.baseline import catalogue_before, green_before, regressions
from kvpatch.outcome import ExitCode, KvpatchError
from matrices import PAIRS, matrix

PAIR = "vLLM 0.33.0 with LMCache 0.5.6"
SHIPPED = Path(pairs.__file__).with_name("pairs.json")


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
    assert len(list(regressions(matrix(), dict.fromkeys(was, True)))) == count


def test_a_pair_that_was_green_and_cant_be_read_is_a_regression() -> None:
    (error,) = regressions(matrix(pairs=PAIRS[:1]), {("0.33.0", "0.5.6"): False})
    assert "is not to be read" in error.message


def odd_catalogues() -> list[str]:
    shipped = json.loads(SHIPPED.read_text())
    changes: list[dict[str, Any]] = [
        {"states": []},
        {"states": [1] * 99},
        {"rows": {"0.5.6": "0xfoo"}},
        {"rows": {"0.5.6": "99x45"}},
        {"rows": [1]},
        {"rows": {}},
        {"vllm": {**shipped["vllm"], "newest": ""}},
        {"vllm": list(shipped["vllm"])},
        {"lmcache": {"newest": ""}},
        {"lmcache": {"0.5.6": None}},
        {"ran": [5]},
        {"ran": [{**shipped["ran"][0], "vllm": "newest"}]},
    ]
    return [json.dumps({**shipped, **change}) for change in changes]


NO_REPORTS = ["", "[]", "{}", '{"data": {"pairs": [1]}}', "[" * 100_000, *odd_catalogues()]


@pytest.mark.parametrize("content", NO_REPORTS, ids=range(len(NO_REPORTS)))
def test_a_baseline_that_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "was.json"
    path.write_text(content)
    with pytest.raises(KvpatchError, match="no report"):
        green_before(path)


def test_the_regression_names_what_became_of_the_pair() -> None:
    (error,) = regressions(matrix(), {("0.9.0", "0.5.6"): False})
    assert (error.code, error.exit_code) == ("regression", ExitCode.NO)
    assert error.message == "vLLM 0.9.0 with LMCache 0.5.6 was green and is R"


def test_without_a_baseline_nothing_was_green() -> None:
    assert green_before(None) == {}


@pytest.mark.parametrize("enveloped", [True, False])
def test_a_report_serves_as_a_baseline_with_its_envelope_and_without(
    tmp_path: Path, enveloped: bool
) -> None:
    data = {"pairs": list(PAIRS)}
    path = tmp_path / "was.json"
    path.write_text(json.dumps({"data": data} if enveloped else data))
    assert green_before(path) == {("0.33.0", "0.5.6"): True}


@pytest.mark.parametrize(("settings", "told"), [(False, 1), (True, 0), (None, 0)])
def test_a_pair_that_now_needs_launch_settings_is_a_regression_where_it_did_not(
    tmp_path: Path, settings: bool | None, told: int
) -> None:
    # Reports of before there was that word say nothing of it, and are read all the same.
    was = {**PAIRS[1], "after": [], "settings": settings}
    path = tmp_path / "was.json"
    kept = {key: value for key, value in was.items() if value is not None}
    path.write_text(json.dumps({"pairs": [kept]}))
    errors = list(regressions(matrix(), green_before(path)))
    assert [(error.code, error.exit_code, error.message) for error in errors] == told * [
        (
            "regression",
            ExitCode.NO,
            f"{PAIR} was green without launch settings and now needs them: V",
        )
    ]


def test_a_catalogue_serves_as_a_baseline() -> None:
    known = pairs.load().known
    found = green_before(SHIPPED)
    assert found == {pair: told.settings for pair, told in known.items() if told.ok}
    assert set(found.values()) == {True, False}


def test_a_baseline_that_cant_be_read_is_the_environments_fault(tmp_path: Path) -> None:
    with pytest.raises(KvpatchError, match="can't be read") as caught:
        green_before(tmp_path)
    assert (caught.value.code, caught.value.exit_code) == ("unreadable", ExitCode.ENVIRONMENT)


def test_the_catalogue_that_is_to_be_written_anew_is_read_first(tmp_path: Path) -> None:
    assert catalogue_before(None) is None
    assert catalogue_before(tmp_path / "new.json") is None
    found = catalogue_before(SHIPPED)
    assert found is not None
    assert found.known == pairs.load().known


NO_CATALOGUES = [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, *map(str.encode, odd_catalogues())]


@pytest.mark.parametrize("content", NO_CATALOGUES, ids=range(len(NO_CATALOGUES)))
def test_a_file_that_is_no_catalogue_is_not_written_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pairs.json"
    path.write_bytes(content)
    with pytest.raises(KvpatchError, match="no catalogue") as caught:
        catalogue_before(path)
    assert (caught.value.code, caught.value.exit_code) == ("bad-catalogue", ExitCode.USAGE)
