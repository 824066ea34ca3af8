"""A doctor's rows for findings: what to do is an action, and what was looked at was checked."""

from __future__ import annotations

import pytest
from kvpatch.diagnosis import State
from kvpatch.finding_checks import finding_check
from kvpatch.lint_combinations import NOT_LOOKED
from kvpatch.rules import APART, MEMORY, OVERRULED, PREFIX, SEED, Finding, Fix, Level

FIX = Fix("set", "use_layerwise", value=True)


@pytest.mark.parametrize(
    ("finding", "state", "todo"),
    [
        (Finding(OVERRULED, "m", "chunk_size", "file", 3), State.NOTE, ""),
        (Finding(MEMORY, "m", source="launch", lower=Level.NOTE), State.NOTE, ""),
        (
            Finding(SEED, f"m{NOT_LOOKED}", lower=Level.NOTE),
            State.NOT_CHECKED,
            "give --pid PID to have it checked",
        ),
        (Finding(PREFIX, "m", source="launch"), State.FAIL, "change the command that starts vLLM"),
        (
            Finding(SEED, "m", "PYTHONHASHSEED", "environment"),
            State.FAIL,
            "change PYTHONHASHSEED in the environment that vLLM is started with",
        ),
        (
            Finding(APART, "m", "chunk_size", "environment"),
            State.WARN,
            "change LMCACHE_CHUNK_SIZE in the environment that vLLM is started with",
        ),
        (Finding(APART, "m", "a", line=7), State.WARN, "change a in line 7 of the file"),
        (Finding(APART, "m", "a"), State.WARN, "write a into the file"),
        (
            Finding(PREFIX, "m", "", "launch", 3, path="/s.yaml"),
            State.FAIL,
            "change line 3 of /s.yaml",
        ),
        (Finding(PREFIX, "m", "", "launch", path="/s.yaml"), State.FAIL, "change /s.yaml"),
        (Finding(APART, "m", "a", fix=FIX), State.WARN, "write use_layerwise: true"),
        (Finding(APART, "m: do it", "a", line=7, todo="do it"), State.WARN, "do it"),
    ],
)
def test_a_row_says_what_is_wrong_why_and_what_to_do(
    finding: Finding, state: State, todo: str
) -> None:
    row = finding_check(finding)
    assert (row.state, row.todo) == (state, todo)
    assert row.reason == f"m. {finding.rule.why}"
