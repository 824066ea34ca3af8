from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from kvpatch.smoke_checks import Measured, judge, wrong_keys
from smokes import EVENTS, ROUNDING, blended, measured, reference, start


def _failed(found: Measured) -> list[str]:
    return [check.name for check in judge(found) if check.ok is False]


def _check(found: Measured, name: str) -> Any:
    return next(check for check in judge(found) if check.name == name)


def test_a_pair_that_blends_rightly_passes_every_check_that_was_made() -> None:
    found = judge(measured())
    assert [check.name for check in found if check.ok is not True] == ["gds"]


def _where(name: str, **change: Any) -> Callable[[dict[str, Any]], float]:
    def spoil(facts: dict[str, Any]) -> float:
        if facts["prompt"].startswith(name):
            facts.update({key: value for key, value in change.items() if key != "off"})
            return float(change.get("off", 0.0))
        return 0.0

    return spoil


def _at_ratio_one(facts: dict[str, Any]) -> float:
    reordered = facts["prompt"].startswith("reordered-")
    return 0.5 if reordered and facts.get("ratio") == 1.0 else 0.0


def _nothing_reused(facts: dict[str, Any]) -> float:
    if facts.get("rows"):
        facts["rows"] = [facts["asked"]] * 2
    return 0.0


def _not_moved(facts: dict[str, Any]) -> float:
    if facts.get("reused") and facts["ratio"] < 1:
        facts["reused"][1] |= {"keys": 1.4, "still": 0.0}
    return 0.0


def _lost(facts: dict[str, Any]) -> float:
    if facts.get("written") and facts["ratio"] < 1:
        facts["written"][1]["reused"] = 1.0
    return 0.0


FAULTS: dict[str, Callable[[], Measured]] = {
    "registered": lambda: measured(blend=start("blend", code=1, result={"events": EVENTS[1:2]})),
    "starts": lambda: measured(
        blend=start("blend", code=1, result={"events": EVENTS[:2], "stages": {}, "stage": "start"})
    ),
    "blender": lambda: measured(blend=start("blend", blended(), result={"events": EVENTS[:2]})),
    "answers": lambda: measured(
        blend=start("blend", blended()[:2], code=None, result={"stage": "requests"})
    ),
    "stored": lambda: measured(_where("store", known=64)),
    "hit": lambda: measured(_where("reordered-2", retrieved=50)),
    "layers": lambda: measured(_where("reordered-2", layers=[0])),
    "written": lambda: measured(_lost),
    "oracle": lambda: measured(_at_ratio_one),
    "reused": lambda: measured(_nothing_reused),
    "moved": lambda: measured(_not_moved),
    "twice": lambda: measured(_where("twice", off=0.5)),
    "permutation": lambda: measured(_where("permutation", off=0.5)),
    "new-chunk": lambda: measured(_where("new-chunk", retrieved=20)),
    "together": lambda: measured(_where("together-reordered", retrieved=60)),
    "one-token": lambda: measured(_where("one-token", off=0.5)),
    "layerwise": lambda: measured(layerwise=start("layerwise", code=1)),
    "untouched": lambda: measured(reference=reference(originals=1e-9)),
    "gds": lambda: measured(_where("reordered-", retrieved=0), gds=True),
}


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "gds"])
def test_a_fault_makes_exactly_its_check_fail(name: str) -> None:
    assert _failed(FAULTS[name]()) == [name]


def test_nothing_from_files_is_a_miss_and_no_gds() -> None:
    assert _failed(FAULTS["gds"]()) == ["hit", "gds"]


@pytest.mark.parametrize("name", FAULTS)
def test_every_failure_says_what_it_means(name: str) -> None:
    assert len(_check(FAULTS[name](), name).means) > 20


def test_what_needs_a_failed_check_is_not_checked_and_says_because_of_which() -> None:
    check = _check(FAULTS["registered"](), "oracle")
    assert (check.ok, check.seen) == (None, "not checked, because of layers")


def test_a_difference_within_rounding_is_none() -> None:
    assert _failed(measured(_where("twice", off=3 * ROUNDING))) == []
    assert _failed(measured(_where("twice", off=5 * ROUNDING))) == ["twice"]


@pytest.mark.parametrize("place", range(5))
def test_an_answer_of_no_numbers_fails_wherever_it_stands(place: int) -> None:
    found = measured(_where(f"reordered-{place}", off=math.nan))
    assert _check(found, "oracle").ok is False


def test_the_oracle_names_scaled_rope_where_the_rotated_keys_are_wrong() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        facts["key_error"] = 1.8
        return _at_ratio_one(facts)

    seen = _check(measured(spoil, rope="llama3"), "oracle").seen
    assert "scaled rope" in seen
    assert "'llama3'" in seen


def test_wrong_keys_of_a_plain_rope_are_not_laid_on_scaling() -> None:
    found = measured(_where("reordered-", key_error=0.4))
    assert "scaled" not in wrong_keys(found)
    assert "wrong positions" in wrong_keys(found)


def test_right_keys_are_not_blamed() -> None:
    assert "right" in wrong_keys(measured())
    assert "vLLM's cache doesn't hold" in wrong_keys(measured(_lost))


def test_the_gap_is_that_of_the_configured_ratio_as_lmcache_is() -> None:
    value = _check(measured(), "gap").value
    assert value["ratio"] == 0.15
    assert value["separators_filled"] is False
    assert value["max_logprob_gap"] == pytest.approx(0.3)


def test_zeros_at_separators_are_told_from_wrong_keys() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        return 0.0 if facts.get("fill") else _at_ratio_one(facts)

    found = measured(spoil)
    assert _failed(found) == ["separators"]
    assert _check(found, "separators").value == pytest.approx(0.5)


def test_zeros_in_vllms_cache_are_told_whatever_the_answers_are() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        if facts.get("written") and not facts["fill"]:
            facts["written"][0]["empty"] = 15
        return 0.0

    found = measured(spoil)
    assert _failed(found) == ["separators"]
    seen = _check(found, "separators").seen
    assert seen.endswith("; at 0.15: 15 of 20 tokens of separators are zeros in layer 0")


def test_without_a_journal_the_originals_are_not_checked() -> None:
    check = _check(measured(journal=False, reference=reference(originals=None)), "untouched")
    assert check.ok is None
    assert "no journal" in check.seen


def test_a_journal_without_answers_of_the_originals_is_not_checked_either() -> None:
    assert _check(measured(reference=reference(originals=None)), "untouched").ok is None


def test_a_cache_that_could_not_start_is_the_reason_for_nothing_stored() -> None:
    output = "LMCache ERROR: LMCacheEngine marked as init failed: ...\nOSError: no libcufile\n"
    found = measured(blend=start("blend", blended(_where("store", known=0)), output=output))
    assert "OSError: no libcufile" in _check(found, "stored").seen


def test_a_broken_patch_is_named_whatever_became_of_its_error() -> None:
    broken = {"broken": "KV006 gives a cache to the kernel", "stage": "requests"}
    error = {"type": "RuntimeError", "text": "generator raised StopIteration", "where": "exit"}
    ended = start("blend", code=1, result={**broken, "error": error})
    assert "KV006 gives a cache" in _check(measured(blend=ended), "answers").seen
    # Where LMCache went on, nothing is stored.
    answers = blended(_where("store", known=0))
    silent = start("blend", answers, result={**broken, "stage": "done"})
    assert "KV006 gives a cache" in _check(measured(blend=silent), "stored").seen


def test_what_is_reported_and_not_judged_is_not_called_ok() -> None:
    found = {check.name: check.verdict for check in judge(measured())}
    assert (found["gap"], found["separators"]) == ("reported", "ok")
    assert (found["oracle"], found["gds"]) == ("ok", "not run")
    assert _check(FAULTS["oracle"](), "oracle").verdict == "NO"


@pytest.mark.parametrize("code", [1, -6, -11])
def test_an_engine_that_ends_before_its_connector_does_not_start(code: int) -> None:
    gone = start("blend", code=code, result={"events": [], "stages": {}, "stage": "start"})
    verdicts = {check.name: check.ok for check in judge(measured(blend=gone))}
    # Who registered what is not known, and all the same this is no success.
    assert (verdicts["registered"], verdicts["starts"]) == (None, False)
