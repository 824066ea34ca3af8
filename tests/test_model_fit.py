"""Which models a profile refuses, and what vLLM would stop at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kvpatch import model_fit
from kvpatch.curing import curable
from kvpatch.diagnosis import State
from kvpatch.model_checks import fit_check, model_checks
from kvpatch.model_config import LeftOutError, Model, parse_model
from kvpatch.model_fit import LONGER, dtype_of, refuse, refuse_class, warnings
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.probe import Answer
from kvpatch.sizing import Wanted, numbers
from kvpatch.templates import load, names
from packaging.version import Version

TAKEN = ("LlamaForCausalLM", "Qwen3ForCausalLM")
PAIR = curable(Version("0.5.6"), Version("0.32.0"))
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "hidden_act": "silu",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
MLA = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "hidden_act": "silu",
}


def model(**more: Any) -> Model:
    return parse_model({**LLAMA, **more}, "m")


@pytest.mark.parametrize(
    "more",
    [
        {},
        MLA,
        {"architectures": ["MistralForCausalLM"]},
        {"sliding_window": 1024},
        {"layer_types": ["linear_attention", "full_attention"] * 16},
    ],
)
def test_a_blending_profile_refuses_what_the_doctor_fails_for_good(more: dict[str, Any]) -> None:
    failed = [
        row.reason
        for row in model_checks(model(**more), TAKEN, cured=True)
        if row.state is State.FAIL
    ]
    for name in names():
        if not failed or not load(name).blends:
            assert refuse(load(name), PAIR, model(**more), lambda: TAKEN) == ""
            continue
        with pytest.raises(KvpatchError) as caught:
            refuse(load(name), PAIR, model(**more), lambda: TAKEN)
        assert caught.value.exit_code is ExitCode.REFUSED
        assert all(reason in caught.value.message for reason in failed)
        assert "the profile " in caught.value.hint


def test_of_a_class_alone_no_profile_is_named_that_may_not_take_it_either() -> None:
    error = LeftOutError("model-left-out", "it leaves out head_dim", "write it in")
    error.architecture = "Gemma3ForConditionalGeneration"
    with pytest.raises(KvpatchError, match="does not blend Gemma3") as caught:
        refuse_class(load("blend"), error, "m", lambda: TAKEN)
    assert caught.value.hint == f"take one of: {', '.join(TAKEN)}"
    refuse_class(load("cpu-offload"), error, "m", lambda: TAKEN)


@pytest.mark.parametrize("name", [name for name in names() if not load(name).blends])
def test_a_profile_warns_of_layers_of_several_kinds_as_the_doctor_does(name: str) -> None:
    wanted = Wanted(model=model(sliding_window=1024, sliding_window_pattern=4))
    row = fit_check(model(sliding_window=1024, sliding_window_pattern=4), load(name))
    told = [*warnings(load(name), wanted, numbers(wanted, gds=False))]
    assert bool(told) is (row.state is State.WARN) is (load(name).kind == "lmcache")
    assert all(row.reason in one and row.todo in one for one in told)


def test_what_apply_or_a_flag_cures_is_not_refused() -> None:
    scaled = model(rope_scaling={"rope_type": "llama3"}, torch_dtype="float16")
    assert refuse(load("blend"), PAIR, scaled, lambda: TAKEN) == ""
    assert dtype_of(load("blend"), scaled) == "bfloat16"
    assert dtype_of(load("cpu-offload"), scaled) == dtype_of(load("blend"), model()) == ""


def test_a_table_of_models_that_can_not_be_read_is_told_with_the_reason() -> None:
    def unread() -> tuple[str, ...]:
        raise KvpatchError("no-network", "no index is there", "ask later")

    told = refuse(load("blend"), PAIR, model(), unread)
    assert "no index is there: ask later" in told
    assert "LlamaForCausalLM" in told
    with pytest.raises(KvpatchError, match="MLA"):
        refuse(load("blend"), PAIR, model(**MLA), unread)


@pytest.mark.parametrize(
    ("more", "longest", "warned"),
    [
        ({}, 131072, False),
        ({}, 131073, True),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131073, True),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 262144, False),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 262145, True),
        (
            {
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 8.0,
                    "original_max_position_embeddings": 32768,
                }
            },
            262144,
            False,
        ),
        ({"model_max_length": 200000}, 200000, False),
        ({"model_max_length": 200000}, 200001, True),
    ],
)
def test_a_prompt_that_vllm_does_not_take_is_warned_of(
    more: dict[str, Any], longest: int, warned: bool
) -> None:
    wanted = Wanted(model=model(**more), longest=longest)
    assert (
        any(LONGER in one for one in warnings(load("gds"), wanted, numbers(wanted, gds=False)))
        is warned
    )


@pytest.mark.parametrize(
    ("gib", "ranks", "longest", "more", "warned"),
    [
        (1.0, 1, 1024, {}, True),
        (16.0, 1, 1024, {}, False),
        # 14 GiB of weights and 16 GiB of KV cache.
        (32.0, 1, None, {}, True),
        (40.0, 1, None, {}, False),
        (24.0, 2, None, {}, False),
        (8.0, 1, 1024, {"quantization_config": {"bits": 4}}, False),
    ],
)
def test_a_gpu_that_can_not_hold_the_model_is_warned_of(
    gib: float, ranks: int, longest: int | None, more: dict[str, Any], warned: bool
) -> None:
    wanted = Wanted(model=model(**more), gpu_gib=gib, ranks=ranks, longest=longest)
    told = list(warnings(load("gds"), wanted, numbers(wanted, gds=False)))
    assert bool(told) is warned
    assert all("--gpu-memory" in one for one in told)


@pytest.mark.parametrize(("ranks", "warned"), [(1, False), (4, False), (6, True), (8, True)])
def test_ranks_that_vllm_stops_at_are_warned_of_with_those_it_takes(
    ranks: int, warned: bool
) -> None:
    wanted = Wanted(model=model(num_attention_heads=28, num_key_value_heads=4), ranks=ranks)
    told = [
        one for one in warnings(load("gds"), wanted, numbers(wanted, gds=True)) if "--tp" in one
    ]
    assert bool(told) is warned
    assert all("1, 2, 4, 28." in one for one in told)


@pytest.mark.parametrize(
    ("facts", "warned", "noted"),
    [
        ({}, "", ""),
        ({"found_in_text": 1}, "1 where the text is tokenized whole", ""),
        ({"loses_first": True}, "sets no BOS", ""),
        (None, "", "was not tried: no answer within"),
        ({"problem": "no files", "lacks": "files"}, "", "was not tried: the tokenizer can't be"),
    ],
)
@pytest.mark.parametrize("release", ["0.5.6", "0.5.7rc2"])
def test_the_separator_is_tried_as_the_doctor_does_with_what_can_be_applied(
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any] | None,
    warned: str,
    noted: str,
    release: str,
) -> None:
    fine = {"tokens": [1], "kept": [1], "loses_first": False, "wanted": 4, "found": 4}
    fine |= {"found_in_text": 4, "spurious": 0}
    asked: list[str] = []

    def probed(name: str, argv: list[str], **_: object) -> Answer:
        asked.extend((name, *argv))
        answer = None if facts is None else {**fine, **facts}
        return Answer(answer, "no answer within 60 s", hung=facts is None)

    monkeypatch.setattr(model_fit, "probe", probed)
    values = {"blend_special_str": "|"}
    pair = curable(Version(release), Version("0.32.0"))
    told = model_fit.separator_tried(pair, values, Path("/m"), Path("/p"))
    assert asked == ["tokenizer_probe", "/m", "|", "whole" if release == "0.5.6" else "cut"]
    for said, expected in zip(told, (warned, noted), strict=True):
        assert bool(said) is bool(expected)
        assert expected in said
        assert "kvpatch apply" not in said


def test_without_a_separator_nothing_is_tried() -> None:
    assert model_fit.separator_tried(PAIR, {}, Path("/m"), Path("/none")) == ("", "")
