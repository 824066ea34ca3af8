"""The envelope and the words of outcomes."""

from __future__ import annotations

import json

import pytest
from kvpatch.outcome import SEVERITY, ExitCode, KvpatchError, Outcome, Report, worst

WORDS = [
    "applied",
    "already",
    "pending",
    "absorbed",
    "out-of-range",
    "not-needed",
    "not-installed",
    "missing",
    "ambiguous",
    "foreign",
    "conflict",
]


def test_the_outcome_words_are_the_documented_ones() -> None:
    assert sorted(outcome.value for outcome in Outcome) == sorted(WORDS)


def test_fine_and_refused_outcomes_are_the_documented_ones() -> None:
    fine = {outcome.value for outcome in Outcome if outcome.fine}
    refused = {outcome.value for outcome in Outcome if outcome.refused}
    assert fine == {"applied", "already", "absorbed", "not-needed", "out-of-range"}
    assert refused == {"missing", "ambiguous", "foreign", "conflict"}


def test_every_outcome_has_a_severity_and_every_refusal_is_worse_than_any_other() -> None:
    assert sorted(SEVERITY) == sorted(Outcome)
    others = [SEVERITY.index(outcome) for outcome in Outcome if not outcome.refused]
    assert all(SEVERITY.index(o) > max(others) for o in Outcome if o.refused)


def test_the_worst_of_a_patchs_files_is_its_outcome() -> None:
    assert worst([Outcome.ALREADY, Outcome.PENDING]) is Outcome.PENDING
    assert worst([Outcome.MISSING, Outcome.PENDING, Outcome.FOREIGN]) is Outcome.MISSING
    with pytest.raises(ValueError, match="empty"):
        worst([])


@pytest.mark.parametrize(
    ("code", "number", "status"),
    [
        (ExitCode.DONE, 0, "ok"),
        (ExitCode.NO, 1, "no"),
        (ExitCode.USAGE, 2, "error"),
        (ExitCode.REFUSED, 3, "refused"),
        (ExitCode.ENVIRONMENT, 4, "error"),
        (ExitCode.BUG, 5, "error"),
    ],
)
def test_the_status_word_follows_the_exit_code(code: ExitCode, number: int, status: str) -> None:
    envelope = json.loads(Report("status", "text", exit_code=code).envelope())
    assert (envelope["exit_code"], envelope["status"]) == (number, status)


def test_the_envelope_has_exactly_the_documented_keys() -> None:
    error = KvpatchError("no-vllm", "no vLLM here", "name another one", ExitCode.ENVIRONMENT)
    report = Report("apply", "text", {"written": False}, error.exit_code, (error,))
    assert json.loads(report.envelope()) == {
        "schema": 1,
        "command": "apply",
        "status": "error",
        "exit_code": 4,
        "data": {"written": False},
        "errors": [{"code": "no-vllm", "message": "no vLLM here", "hint": "name another one"}],
    }


def test_the_envelope_is_ascii_whatever_a_path_is_called() -> None:
    envelope = Report("status", "", {"path": "caf\u00e9 \udcff"}).envelope()
    assert envelope.isascii()
    assert json.loads(envelope)["data"]["path"] == "caf\u00e9 \udcff"


def test_a_failure_without_a_code_of_its_own_is_a_refusal() -> None:
    assert KvpatchError("x", "message", "hint").exit_code is ExitCode.REFUSED
    assert str(KvpatchError("x", "message", "hint")) == "message"


def test_numbers_that_json_does_not_have_are_null() -> None:
    data = {"seen": [1.5, float("nan")], "gap": {"largest": float("inf"), "lines": 3}}
    found = json.loads(Report("smoke", "", data).envelope(), parse_constant=pytest.fail)
    assert found["data"] == {"seen": [1.5, None], "gap": {"largest": None, "lines": 3}}
