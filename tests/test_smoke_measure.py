from __future__ import annotations

import math
from typing import Any

import pytest
from kvpatch.smoke_measure import SAFETY, Answer, distance, failure
from smokes import COLD, ROUNDING, measured, moved, start


def test_a_distribution_is_no_distance_from_itself() -> None:
    same = distance(COLD, COLD)
    assert (same.most, same.mean, same.divergence, same.same_first) == (0.0, 0.0, 0.0, True)


def test_the_distance_is_over_the_whole_vocabulary() -> None:
    swapped = (COLD[1], COLD[0], *COLD[2:])
    found = distance(COLD, swapped)
    assert found.most == pytest.approx(math.log(2))
    assert found.mean == pytest.approx(math.log(2) / 2)
    assert found.divergence == pytest.approx(0.25 * math.log(2))
    assert not found.same_first


def test_what_is_no_number_is_as_far_as_can_be_and_equal_infinities_are_equal() -> None:
    nothing = (math.nan,) * len(COLD)
    assert distance(COLD, nothing).most == distance(nothing, COLD).most == math.inf
    assert distance(COLD, (*COLD[:-1], math.nan)).most == math.inf
    never = (*COLD[:-1], -math.inf)
    same = distance(never, never)
    assert (same.most, same.mean, same.divergence) == (0.0, 0.0, 0.0)


def test_distributions_of_two_vocabularies_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        distance(COLD, COLD[:-1])


def test_the_tolerance_is_what_rounding_was_seen_to_do_times_a_margin() -> None:
    assert measured().tolerance == pytest.approx(SAFETY * ROUNDING)


def test_the_gaps_come_by_ratio_and_by_separators() -> None:
    found = [(gap.filled, gap.ratio) for gap in measured().gaps()]
    assert found == [(filled, r) for filled in (False, True) for r in (0.0, 0.15, 1.0)]


def test_an_answer_that_was_never_asked_cold_is_an_error() -> None:
    with pytest.raises(LookupError, match="else"):
        measured().off(Answer("else", moved(0.0)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"code": None, "result": {"stage": "requests"}}, "hung at stage requests"),
        ({"code": -9, "result": {"stage": "start"}}, "killed by signal 9"),
        ({"code": 3, "result": {"stage": "start"}}, "ended with 3"),
        (
            {"code": 1, "result": {"error": {"type": "ValueError", "text": "\nno\nmore"}}},
            "ValueError: no",
        ),
        (
            {"code": 1, "result": {"error": {"type": "KeyError", "text": "", "where": "get"}}},
            "KeyError in get (at stage done)",
        ),
    ],
)
def test_a_start_that_went_wrong_says_how(change: dict[str, Any], words: str) -> None:
    assert words in failure(start("blend", **change))
