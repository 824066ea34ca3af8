"""What ratio 1 can't show, judged of made-up measurements, and of a tree that was broken so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from kvpatch.smoke_reuse import LIMIT, LIMITS, PARTS, emptied, moved, reused, twice, written
from smokes import blended, measured, start
from targets import target


def _each(**change: Any) -> Callable[[dict[str, Any]], float]:
    """Changes these numbers of the last layer wherever something is reused there."""

    def spoil(facts: dict[str, Any]) -> float:
        if facts.get("reused") and facts["ratio"] < 1:
            facts["reused"][1] |= change
        return 0.0

    return spoil


def _rows(rows: Callable[[float, int, int], int]) -> Callable[[dict[str, Any]], float]:
    """Gives the check layer that many rows, of a ratio, a length and what of it isn't cached."""

    def spoil(facts: dict[str, Any]) -> float:
        if facts.get("rows"):
            length = facts["asked"]
            facts["rows"][1] = rows(facts["ratio"], length, length - facts["retrieved"])
        return 0.0

    return spoil


def test_what_is_reused_is_told_in_numbers() -> None:
    found = reused(measured())
    assert found[0] is True
    assert found[3] == (
        "at 0.15: 19 of 130 tokens computed anew; answers at 0 and 1 differ by 0.3 nats"
    )
    told = moved(measured())
    assert told[0] is True
    assert told[1] == 2e-7
    assert told[3].startswith("in 2 of 2 layers: up to 90 tokens moved and reused")


def test_a_blender_that_computes_everything_anew_reuses_nothing() -> None:
    ok, value, wanted, seen = reused(measured(_rows(lambda _, length, __: length)))
    assert (ok, value, wanted) == (False, 130, 19)
    assert "computes 130 of 130 tokens anew from layer 1 on, where 19 were asked for" in seen
    assert seen.endswith("nothing is reused")


@pytest.mark.parametrize(
    ("rows", "ok"),
    [
        (lambda ratio, length, _: max(round(ratio * length), 1), True),
        # What isn't cached may come on top.
        (lambda ratio, length, more: min(int(ratio * length) + more, length), True),
        (lambda ratio, length, more: min(int(ratio * length) + more + 3, length), False),
        (lambda ratio, length, _: max(int(ratio * length / 2), 1), False),
        # Ratio 1 without every row is no oracle.
        (lambda ratio, length, _: int(min(ratio, 0.9) * length) or 1, False),
    ],
)
def test_the_share_that_is_computed_anew_is_the_one_asked_for(
    rows: Callable[[float, int, int], int], ok: bool
) -> None:
    assert reused(measured(_rows(rows)))[0] is ok


def test_rows_that_say_so_and_answers_that_do_not_are_no_reuse() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        # Not zero, which would leave the answer as it is.
        return 1e-6

    ok, value, limit, seen = reused(measured(spoil))
    assert ok is False
    assert value <= limit
    assert seen.endswith("which is rounding: nothing is reused")


def test_of_a_users_own_model_any_difference_will_do() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        return 1e-6 if facts.get("ratio") == 1.0 else 2e-6

    assert reused(measured(spoil, rope=""))[0] is True
    assert reused(measured(spoil))[0] is False


def test_without_a_ratio_below_1_reuse_is_not_checked() -> None:
    whole = [answer for answer in blended() if answer.get("ratio") in (None, 1.0)]
    found = reused(measured(blend=start("blend", whole)))
    assert found[0] is None
    assert "no ratio below 1" in found[3]


def test_no_layer_seen_is_no_reuse() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        facts.update(rows=[], layers=[])
        return 0.0

    ok, _, wanted, seen = reused(measured(spoil))
    assert (ok, wanted) == (False, 19)
    assert "no layer from 1 on" in seen


def test_keys_that_keep_their_old_positions_are_named_with_their_layers() -> None:
    ok, worst, limit, seen = moved(measured(_each(keys=1.4, still=1e-7)))
    assert (ok, worst, limit) == (False, 1.4, LIMITS["float32"])
    assert seen == (
        "keys that are reused in layer 1 keep the positions that they were stored at: off by 1.4 "
        "of their norm"
    )


def test_keys_of_another_turn_are_told_from_those_of_none() -> None:
    ok, _, _, seen = moved(measured(_each(keys=0.4, still=1.1)))
    assert ok is False
    assert "are not the stored ones turned to their new positions" in seen


def test_values_are_what_was_stored() -> None:
    ok, worst, _, seen = moved(measured(_each(values=0.5)))
    assert (ok, worst) == (False, 0.5)
    assert seen.startswith("values that are reused in layer 1 are not those that were stored")


def test_what_is_no_number_is_no_agreement() -> None:
    assert moved(measured(_each(keys=float("nan"))))[0] is False


def test_a_layer_of_which_nothing_was_seen_is_no_agreement() -> None:
    ok, _, _, seen = moved(measured(_each(moved=0)))
    assert ok is False
    assert seen.endswith("was seen in layer 1")


def test_chunks_of_an_earlier_smoke_leave_it_unchecked() -> None:
    ok, _, _, seen = moved(measured(_each(moved=0, unknown=90)))
    assert (ok, seen) == (None, "not checked: this smoke did not store the chunks it loaded")


def test_a_rope_that_can_not_be_asked_leaves_it_unchecked_and_says_why() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        facts["not_compared"] = "ValueError: the rope turns 2 of 4 dimensions"
        return 0.0

    ok, _, _, seen = moved(measured(spoil))
    assert (ok, seen) == (None, "not checked: ValueError: the rope turns 2 of 4 dimensions")


def _twice(dtype: str = "float32", whole: float = 0.0, **change: Any) -> Any:
    """What of a prompt that is sent again is computed anew; ``whole``: off by that at ratio 1."""

    def spoil(facts: dict[str, Any]) -> float:
        if facts["prompt"] == "twice":
            facts["reused"][1] |= change if facts["ratio"] < 1 else {"off": whole}
        return 0.0

    engine = {"layers": 2, "dtype": dtype}
    return twice(measured(blend=start("blend", blended(spoil), result={"engine": engine})))


def test_what_is_computed_anew_where_nothing_moved_is_what_was_stored() -> None:
    ok, value, limit, seen = _twice()
    assert (ok, value, limit) == (
        True,
        {"nats": 0.0, "norms": 3e-7},
        {"nats": pytest.approx(4e-5), "norms": LIMITS["float32"]},
    )
    assert seen == (
        "largest difference 0 nats, allowed 4e-05; what is computed anew is off from what was "
        "stored by 3e-07 of its norm in layer 1, allowed 0.001"
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("off", [0.4, float("nan")])
def test_a_row_that_is_wrong_fails_whatever_nats_are_taken_for_rounding(
    dtype: str, off: float
) -> None:
    assert _twice(dtype)[0] is True
    ok, value, limit, _ = _twice(dtype, off=off)
    assert ok is False
    assert not value["norms"] <= limit["norms"]


def test_rows_are_given_what_rounding_is_seen_to_do_at_ratio_1() -> None:
    assert _twice("bfloat16", whole=0.02, off=0.07)[0] is True
    assert _twice("bfloat16", whole=0.02, off=0.09)[0] is False
    assert _twice("bfloat16", whole=0.0, off=LIMIT)[0] is True


def test_a_wrong_answer_fails_where_rows_are_right() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        return 0.5 if facts["prompt"] == "twice" and facts["ratio"] < 1 else 0.0

    assert twice(measured(spoil))[0] is False


def test_the_layer_that_is_nearest_to_its_limit_is_told() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        if facts["prompt"] == "twice" and facts["ratio"] < 1:
            facts["reused"].append({"layer": 2, "anew": 1, "off": 0.5})
            facts["reused"].append({"layer": 3, "anew": 1, "off": 0.4})
        elif facts["prompt"] == "twice":
            facts["reused"].append({"layer": 2, "anew": 1, "off": 0.4})
        return 0.0

    ok, _, _, seen = twice(measured(spoil))
    assert ok is False
    assert "by 0.4 of its norm in layer 3, allowed 0.001" in seen


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"anew": 0}, "no token of a chunk was computed anew"),
        ({"anew": 0, "unknown": 9}, "this smoke did not store the chunks it loaded"),
    ],
)
def test_without_rows_the_answer_is_judged_and_why_is_told(
    change: dict[str, int], why: str
) -> None:
    ok, value, _, seen = _twice(**change, off=1.0)
    assert (ok, value) == (True, {"nats": 0.0})
    assert seen.endswith(f"allowed 4e-05; rows not compared: {why}")


def test_rows_that_can_not_be_compared_say_why() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        facts.update(reused=[], not_compared="ValueError: the rope turns 2 of 4 dimensions")
        return 0.0

    assert twice(measured(spoil))[3].endswith(
        "not compared: ValueError: the rope turns 2 of 4 dimensions"
    )


def _written(**change: Any) -> Callable[[dict[str, Any]], float]:
    """Changes these facts of what vLLM's cache holds of the last layer, at ratios below 1."""

    def spoil(facts: dict[str, Any]) -> float:
        if facts.get("written") and facts["ratio"] < 1:
            facts["written"][1] |= change
        return 0.0

    return spoil


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("off", [1.0, float("nan")])
def test_what_does_not_come_to_vllms_cache_is_named_with_its_layers(part: str, off: float) -> None:
    assert written(measured())[0] is True
    ok, _, limit, seen = written(measured(_written(**{part: off})))
    assert (ok, limit) == (False, LIMITS["float32"])
    assert seen.startswith(f"of {PARTS[part]} in layer 1, vLLM's cache holds something else")


def test_layers_that_are_right_are_not_named() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        if facts.get("written"):
            facts["written"][0 if facts["ratio"] == 1.0 else 1]["reused"] = 1.0
            facts["written"][1]["anew"] = 2.0
        return 0.0

    seen = written(measured(spoil))[3]
    assert seen.startswith("of tokens that are reused and tokens that are computed anew in layers")
    assert seen.endswith("off by 2 of their norm")


def test_a_cache_that_can_not_be_read_leaves_it_unchecked_and_says_why() -> None:
    def spoil(facts: dict[str, Any]) -> float:
        facts["not_read"] = "ValueError: a KV cache of [1] is of no known shape"
        return 0.0

    ok, _, _, seen = written(measured(spoil))
    assert (ok, seen) == (None, "not checked: ValueError: a KV cache of [1] is of no known shape")

    def nothing(facts: dict[str, Any]) -> float:
        facts["written"] = []
        return 0.0

    assert written(measured(nothing))[0] is None


def test_separators_that_are_zeros_in_any_layer_are_counted() -> None:
    def spoil(layer: int, filled: bool) -> Callable[[dict[str, Any]], float]:
        def change(facts: dict[str, Any]) -> float:
            if facts.get("written") and facts["fill"] is filled:
                facts["written"][layer]["empty"] = 15
            return 0.0

        return change

    assert emptied(measured()) == ""
    for layer in (0, 1):
        told = f"at 0.15: 15 of 20 tokens of separators are zeros in layer {layer}"
        assert emptied(measured(spoil(layer, False))) == told
    # What the smoke itself fills in says nothing of the tree.
    assert emptied(measured(spoil(0, True))) == ""


def test_bfloat16_is_given_its_rounding() -> None:
    def with_dtype(dtype: str) -> Any:
        engine = {"layers": 2, "dtype": dtype}
        answers = blended(_each(keys=LIMIT / 2))
        return measured(blend=start("blend", answers, result={"engine": engine}))

    assert moved(with_dtype("bfloat16"))[0] is True
    assert moved(with_dtype("float32"))[0] is False


CONNECTORS = "lmcache/v1/gpu_connector/gpu_connectors.py"
CLASS, NEXT = "class VLLMBufferLayerwiseGPUConnector", "\nclass "
TURN = """                        old_positions_full,
                        new_positions_full,
                        compute_gpu_buffer_obj.tensor[0],
"""
SHALLOW = TURN.replace(
    "                        new_positions_full,",
    "                        new_positions_full if layer_id < 3 else old_positions_full,",
)


# Just before a layer goes to vLLM's cache: what moved and is not computed anew is lost.
GONE = """            if layer_id > 1:
"""
LOST = (
    GONE
    + """                anew = self.lmc_model.blender.metadata.imp_indices
                if anew is not None and layer_id == self.num_layers + 1:
                    lost = old_positions_full != new_positions_full
                    lost[anew] = False
                    self.buffer_mapping[layer_id - 2].tensor[:, lost] = 0.0
"""
)


@pytest.mark.stack
def test_a_tree_that_moves_no_keys_in_deep_layers_and_loses_rows_fails_for_real(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "env"
    shutil.copytree(target().parents[1], broken, symlinks=True, copy_function=os.link)
    python = broken / "bin" / "python"
    assert kvpatch("apply", "--python", python).code == 0
    [site] = broken.glob("lib/python3*/site-packages")
    head, name, text = (site / CONNECTORS).read_text().partition(CLASS)
    before, after, rest = text.partition(NEXT)
    # Two breaks in one tree, each for a check of its own: an engine start takes long.
    for old, new in ((TURN, SHALLOW), (GONE, LOST)):
        assert before.count(old) == 1
        before = before.replace(old, new)
    # Never in place: what is not patched is a hard link.
    (site / CONNECTORS).unlink()
    (site / CONNECTORS).write_text("".join((head, name, before, after, rest)))
    ran = kvpatch("smoke", "--python", python, "--ratio", "0", "--json")
    checks = {one["name"]: one for one in ran.data["checks"]}
    assert ran.code == 1
    assert [name for name, one in checks.items() if one["ok"] is False] == ["written", "moved"]
    assert checks["oracle"]["ok"] is True
    assert "of tokens that are reused in layer 3, vLLM's cache" in checks["written"]["seen"]
    assert "in layers 2, 3 keep the positions" in checks["moved"]["seen"]
    # A tree that was edited by hand is nothing that apply cures.
    assert "`kvpatch apply" in ran.error["hint"]
    assert "refuses here: KV0" in ran.error["hint"]
