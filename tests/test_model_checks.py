"""Models and separators, as blending takes them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from kvpatch.diagnosis import State
from kvpatch.model_checks import (
    check_layers_check,
    fit_check,
    left_out_checks,
    model_checks,
    separator_check,
)
from kvpatch.model_config import LeftOutError, parse_model
from kvpatch.probe import Answer
from kvpatch.templates import load

TAKEN = ("LlamaForCausalLM", "Qwen3ForCausalLM")
PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def states(*, cured: bool = False, **more: Any) -> dict[str, tuple[State, str, str]]:
    found = model_checks(parse_model({**PLAIN, **more}, "m"), TAKEN, cured=cured)
    return {one.name: (one.state, one.reason, one.todo) for one in found}


def test_a_model_with_nothing_special_is_ok() -> None:
    assert {state for state, _, _ in states().values()} == {State.OK}


def test_a_model_that_is_not_taken_names_those_that_are() -> None:
    state, reason, todo = states(architectures=["MistralForCausalLM"])["model"]
    assert state is State.FAIL
    assert "MistralForCausalLM" in reason
    assert todo == "take one of: LlamaForCausalLM, Qwen3ForCausalLM"


def test_a_model_is_not_held_against_blending_where_nothing_blends() -> None:
    moe = parse_model({**PLAIN, "architectures": ["Qwen3MoeForCausalLM"]}, "m")
    assert fit_check(moe, load("cpu-offload")).state is State.OK
    mixed = parse_model({**PLAIN, "layer_types": ["mamba", "attention"]}, "m")
    assert fit_check(mixed, load("cpu-offload")).state is State.WARN
    assert fit_check(mixed, load("mp-cache")).state is State.OK


def test_of_a_model_that_leaves_values_out_the_class_is_judged_and_the_rest_not_checked() -> None:
    error = LeftOutError("model-left-out", "it leaves out head_dim", "write it in")
    error.architecture = "Gemma3ForConditionalGeneration"
    fails, rest = left_out_checks(error, TAKEN)
    assert (fails.name, fails.state) == ("model", State.FAIL)
    assert (rest.state, rest.reason, rest.todo) == (State.NOT_CHECKED, error.message, error.hint)
    # A profile that does not blend takes any class.
    assert [*left_out_checks(error, ())] == [rest]


def test_a_model_that_a_newer_lmcache_blends_names_that_release() -> None:
    _, reason, todo = states(architectures=["Qwen2ForCausalLM"])["model"]
    assert "Qwen2ForCausalLM" in reason
    assert todo.startswith("take LMCache 0.3.10 or newer, or a model of: Llama")


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope"),
        ({"sliding_window": 1024}, "layers"),
        ({"layer_types": ["linear_attention", "full_attention"] * 2}, "layers"),
        ({"kv_lora_rank": 8, "qk_rope_head_dim": 8}, "layers"),
    ],
)
def test_what_blending_gets_wrong_is_a_failure(more: dict[str, Any], name: str) -> None:
    assert states(**more)[name][0] is State.FAIL


@pytest.mark.parametrize(
    ("own", "served", "state"),
    [
        ("float16", None, State.WARN),
        ("float32", None, State.WARN),
        ("float16", "", State.FAIL),
        ("float16", "auto", State.FAIL),
        ("float16", "bfloat16", State.OK),
        ("bfloat16", "half", State.FAIL),
        ("bfloat16", None, State.OK),
    ],
)
def test_another_dtype_is_a_failure_where_the_command_is_known(
    own: str, served: str | None, state: State
) -> None:
    found = model_checks(
        parse_model({**PLAIN, "torch_dtype": own}, "m"), TAKEN, cured=False, served=served
    )
    (row,) = [one for one in found if one.name == "dtype"]
    assert row.state is state
    assert ("--dtype bfloat16" in row.todo) is (state is not State.OK)


def test_scaled_rope_is_ok_where_its_patch_is_in_place() -> None:
    assert states(cured=True, rope_scaling={"rope_type": "yarn"})["rope"][0] is State.OK


FINE = {
    "tokens": [1, 2],
    "kept": [1, 2],
    "loses_first": False,
    "wanted": 4,
    "found": 4,
    "found_in_text": 4,
    "spurious": 0,
}


@pytest.mark.parametrize(
    ("more", "cured", "state", "told"),
    [
        ({}, False, State.OK, "4 segments wanted, 4 found, 0 spurious"),
        ({"loses_first": True, "spurious": 2}, False, State.FAIL, "first token"),
        ({"kept": [], "loses_first": True, "found": 0}, False, State.FAIL, "only token"),
        ({}, True, State.OK, "4 found"),
        ({"tokens": [], "kept": []}, True, State.FAIL, "is no token"),
        ({"spurious": 1}, False, State.FAIL, "1 spurious"),
        ({"found": 2}, False, State.FAIL, "2 found"),
        ({"found_in_text": 1}, False, State.WARN, "1 where the text"),
        ({"problem": "no file"}, False, State.NOT_CHECKED, "no file"),
        ({"problem": "no x", "lacks": "files"}, False, State.NOT_CHECKED, "loaded: no x"),
        ({"problem": "no y", "lacks": "module"}, False, State.NOT_CHECKED, "loaded: no y"),
    ],
)
def test_a_separator_is_counted(more: dict[str, Any], cured: bool, state: State, told: str) -> None:
    found = separator_check(Answer({**FINE, **more}), " # # ", cured=cured)
    assert found.state is state
    assert told in found.reason
    assert state is State.OK or found.todo


def test_where_text_loses_a_separator_token_lists_are_told_and_one_that_it_keeps() -> None:
    lost = {**FINE, "found_in_text": 1}
    plain = separator_check(Answer(lost), " # # ", cured=True).todo
    better = separator_check(Answer({**lost, "better": " # #\n"}), " # # ", cured=True).todo
    assert "token lists" in plain
    assert "token lists" in better
    assert "blend_special_str" not in plain
    # As YAML reads it.
    (written,) = re.findall(r'blend_special_str: ".*?"', better)
    assert yaml.safe_load(written) == {"blend_special_str": " # #\n"}


@pytest.mark.parametrize(
    ("layers", "state", "told"),
    [
        ([1], State.OK, "1, of the layers 0 to 3"),
        ([99], State.FAIL, "no token is computed anew"),
        ([-1], State.FAIL, "no token is computed anew"),
        ([], State.FAIL, "no token is computed anew"),
        ([3, 1], State.FAIL, "which is 3 here"),
        ([1, 4], State.WARN, "4 has no effect"),
        ([1, 1], State.OK, "1, of the layers"),
    ],
)
def test_the_check_layer_is_one_that_the_model_has(
    layers: list[int], state: State, told: str
) -> None:
    row = check_layers_check(parse_model(PLAIN, "m"), layers, [0.15])
    assert row is not None
    assert row.state is state
    assert told in row.reason
    assert bool(row.todo) is (state is not State.OK)


def test_a_release_without_check_layers_has_no_row() -> None:
    for value in (None, "1", [True], ["1"]):
        assert check_layers_check(parse_model(PLAIN, "m"), value, [0.15]) is None
