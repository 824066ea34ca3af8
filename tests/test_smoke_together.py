from __future__ import annotations

from typing import Any

import pytest
from kvpatch.smoke_checks import Check, Measured, judge
from kvpatch.smoke_measure import Answer
from kvpatch.smoke_report import unable
from kvpatch.smoke_together import part_of
from smokes import blended, measured, start


def _check(found: Measured) -> Check:
    return next(check for check in judge(found) if check.name == "together")


def _spoilt(prompt: str, off: float = 0.0, **facts: Any) -> Measured:
    def spoil(answer: dict[str, Any]) -> float:
        if not answer["prompt"].startswith(prompt):
            return 0.0
        answer.update(facts)
        return off

    return measured(spoil)


def _died(**change: Any) -> Measured:
    answers = [a for a in blended() if not a.prompt.startswith("together-")]
    error = {"type": "RuntimeError", "text": "sizes", "where": "process_qkv (blender.py)"}
    given = {"code": 1, "result": {"stage": "together", "error": error}, **change}
    return measured(blend=start("blend", answers, **given))


def test_it_tells_how_many_tokens_the_first_steps_had_room_for() -> None:
    check = _check(measured())
    assert check.ok is True
    assert check.seen.startswith("first steps of 140, 64, 1 tokens: all stored, all reused; ")


@pytest.mark.parametrize("prompt", ["together-inside", "together-after", "together-reordered"])
def test_a_wrong_answer_is_a_failure_and_so_is_what_was_not_found(prompt: str) -> None:
    wrong, lost = _check(_spoilt(prompt, off=8.4)), _check(_spoilt(prompt, retrieved=40))
    assert (wrong.ok, wrong.value) == (False, pytest.approx(8.4))
    assert lost.ok is False
    assert "retrieved 40 of" in lost.seen


def test_an_engine_that_dies_of_it_fails_this_check_and_no_other() -> None:
    found = _died()
    assert unable(found) is None
    assert [check.name for check in judge(found) if check.ok is False] == ["together"]
    assert _check(found).seen == (
        "a step that ends inside a prompt ended the engine: RuntimeError in process_qkv "
        "(blender.py): sizes (at stage together)"
    )


def test_an_engine_that_hangs_or_is_ended_by_a_signal_fails_it_too() -> None:
    for code in (None, -11):
        change = {"code": code, "result": {"stage": "together"}}
        assert [one.name for one in judge(_died(**change)) if one.ok is False] == ["together"]


def test_what_other_checks_count_is_not_counted_from_prompts_in_parts() -> None:
    found = _spoilt("together-", layers=[0], rows=[3, 3])
    assert [check.name for check in judge(found) if check.ok is False] == []


@pytest.mark.parametrize("parts", [[], [[1900, 120]], [[2048], [120]]])
def test_where_no_step_ended_inside_a_prompt_nothing_was_checked(parts: list[list[int]]) -> None:
    check = _check(_spoilt("together-", parts=parts))
    assert check.ok is None
    assert check.seen.startswith("not checked")


def test_a_part_is_what_the_prompt_got_beside_the_other() -> None:
    assert part_of(Answer("x", (), {"parts": [[2000, 48], [10]]})) == 48
    assert part_of(Answer("x", (), {})) == 0
