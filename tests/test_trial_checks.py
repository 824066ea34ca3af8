from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kvpatch import trial_checks as checks
from kvpatch.bounded import Ended
from kvpatch.trial_engine import EngineRun

WORKER = {
    "pid": 2,
    "connector": "LMCacheConnectorProbe",
    "registered": ["LlamaForCausalLM"],
    "registered_is_runners": True,
    "probes_saw_runners": [True],
    "lmcache_imported": True,
}
RESULT = {"pid": 1, "tokens": [8, 8], "workers": [WORKER]}
FOUND = {"LMCacheConnectorProbe": {"model": "LlamaForCausalLM", "error": None}}
TOLD = {"LMCacheConnectorProbe": {"model": None, "error": f"{checks.NOT_FOUND}."}}
ALONE = {"OtherProbe": {"lmcache": False, "registered": []}}
IDLE = {**WORKER, "registered": [], "lmcache_imported": False, "connector": "OtherProbe"}


def _run(
    connector: str = "LMCacheConnectorProbe",
    result: Mapping[str, Any] | None = None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    code: int | None = 0,
    output: str = "",
) -> EngineRun:
    return EngineRun(connector, Ended(code, output, 1.0, 0), result, facts or {})


def _held(found: list[checks.Check]) -> list[bool]:
    return [check.held for check in found]


def test_a_start_that_died_of_the_missing_model_is_the_released_failure() -> None:
    run = _run(facts=TOLD, code=1, output=f"ValueError: {checks.NOT_FOUND}.")
    assert _held(checks.dies_unregistered(run)) == [True, True]


@pytest.mark.parametrize("code", [0, None])
def test_a_start_that_succeeds_or_hangs_is_not_the_released_failure(code: int | None) -> None:
    run = _run(facts=TOLD, code=code, output=f"ValueError: {checks.NOT_FOUND}.")
    assert _held(checks.dies_unregistered(run)) == [False, True]


def test_a_start_that_died_of_something_else_is_not_the_released_failure() -> None:
    run = _run(code=1, output="ImportError: no torch")
    assert _held(checks.dies_unregistered(run)) == [True, False]


def test_tokens_from_another_process_are_generating() -> None:
    assert _held(checks.generates(_run(result=RESULT))) == [True, True]


@pytest.mark.parametrize("result", [None, {}, {**RESULT, "tokens": [8, 0]}])
def test_no_result_or_no_tokens_is_not_generating(result: dict[str, Any] | None) -> None:
    assert not checks.generates(_run(result=result))[0].held


def test_a_worker_in_the_callers_process_is_not_multiprocess_mode() -> None:
    result = {**RESULT, "pid": 2}
    assert _held(checks.generates(_run(result=result))) == [True, False]


def test_the_models_own_object_is_found() -> None:
    assert _held(checks.finds_model(_run(result=RESULT, facts=FOUND))) == [True, True]


def test_a_wrapped_model_is_not_the_bare_one() -> None:
    wrapped = {"LMCacheConnectorProbe": {"model": "CUDAGraphWrapper"}}
    assert not checks.finds_model(_run(result=RESULT, facts=wrapped))[0].held


@pytest.mark.parametrize(
    "change",
    [
        {"registered_is_runners": False},
        {"probes_saw_runners": [False]},
        {"probes_saw_runners": []},
        {"connector": "Another"},
    ],
)
def test_another_object_than_the_runners_is_not_found(change: dict[str, Any]) -> None:
    result = {**RESULT, "workers": [WORKER, {**WORKER, **change}]}
    assert not checks.finds_model(_run(result=result, facts=FOUND))[1].held


def test_an_engine_that_never_ran_found_nothing() -> None:
    assert _held(checks.finds_model(_run(facts=FOUND))) == [False, False]
    assert _held(checks.finds_nothing(_run("OtherProbe"))) == [False]


def test_an_untouched_connector_is_untouched() -> None:
    run = _run("OtherProbe", {**RESULT, "workers": [IDLE]}, ALONE)
    assert _held(checks.finds_nothing(run)) == [True]


@pytest.mark.parametrize(
    ("fact", "worker"),
    [
        ({"lmcache": True}, {}),
        ({"registered": ["LlamaForCausalLM"]}, {}),
        ({}, {"registered": ["LlamaForCausalLM"]}),
        ({}, {"lmcache_imported": True}),
    ],
)
def test_any_trace_of_lmcache_at_another_connector_is_seen(
    fact: dict[str, Any], worker: dict[str, Any]
) -> None:
    facts = {"OtherProbe": {**ALONE["OtherProbe"], **fact}}
    run = _run("OtherProbe", {**RESULT, "workers": [{**IDLE, **worker}]}, facts)
    assert _held(checks.finds_nothing(run)) == [False]


def test_a_verb_answers_well_when_status_and_envelope_agree() -> None:
    good = {"exit_code": 0, "status": "ok", "errors": []}
    assert _held(checks.answered("apply", good, 0)) == [True]
    assert _held(checks.answered("apply", good, 3)) == [False]
    assert _held(checks.answered("apply", {}, 0)) == [False]


def test_a_verb_that_refuses_is_quoted() -> None:
    refused = {"exit_code": 3, "status": "refused", "errors": [{"message": "vLLM is running"}]}
    assert "vLLM is running" in checks.answered("apply", refused, 3)[0].seen


def test_what_kvpatch_located_must_be_the_environments_pair() -> None:
    packages = {"vllm": {"version": "1.0"}, "lmcache": {"version": "3.0"}}
    status = {"data": {"environment": {"packages": packages}}}
    assert _held(checks.located(status, "1.0", "3.0")) == [True]
    assert _held(checks.located(status, "1.1", "3.0")) == [False]
    assert _held(checks.located({}, "1.0", "3.0")) == [False]


@pytest.mark.parametrize(
    ("outcome", "revertible", "held"),
    [
        ("applied", True, True),
        ("already", True, True),
        ("pending", True, False),
        ("already", False, False),
    ],
)
def test_patched_means_in_place_and_revertible(outcome: str, revertible: bool, held: bool) -> None:
    patches = [{"id": "KV001", "outcome": outcome}]
    status = {"data": {"patches": patches, "revertible": revertible}}
    assert _held(checks.patched(status)) == [held]


def test_only_the_files_that_apply_names_may_differ() -> None:
    applied = {"data": {"files": [{"path": "vllm/worker.py"}]}}
    assert _held(checks.only_planned(["vllm/worker.py"], applied)) == [True]
    assert _held(checks.only_planned(["vllm/worker.py", "vllm/x.py"], applied)) == [False]
    assert _held(checks.only_planned([], {"data": {"files": []}})) == [False]


def test_no_files_at_all_prove_nothing_about_record() -> None:
    assert _held(checks.like_record([], 0)) == [False]
    assert _held(checks.like_record(["vllm/a.py"], 5)) == [False]
    assert _held(checks.like_record([], 5)) == [True]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    package = tmp_path / "vllm"
    (package / "__pycache__").mkdir(parents=True)
    (package / "a, b.py").write_text("a = 1\n")
    (package / "__pycache__" / "a.cpython-311.pyc").write_text("bytecode")
    info = tmp_path / "vllm-1.0.dist-info"
    info.mkdir()
    digest = hashlib.sha256(b"a = 1\n").digest()
    stated = "sha256=" + urlsafe_b64encode(digest).decode().rstrip("=")
    (info / "RECORD").write_text(f'"vllm/a, b.py",{stated},6\nvllm-1.0.dist-info/RECORD,,\n')
    return tmp_path


def _compare(site: Path) -> tuple[list[str], int]:
    return checks.compare_with_record(site, [site / "vllm-1.0.dist-info"])


def test_an_untouched_package_is_like_its_record_bytecode_apart(site: Path) -> None:
    assert _compare(site) == ([], 1)


def test_a_changed_a_missing_and_an_added_file_differ(site: Path) -> None:
    changed = site / "vllm" / "a, b.py"
    changed.write_text("a = 2\n")
    assert _compare(site) == (["vllm/a, b.py"], 1)
    changed.unlink()
    assert _compare(site) == (["vllm/a, b.py"], 1)
    (site / "vllm" / "left.tmp").touch()
    assert _compare(site) == (["vllm/a, b.py", "vllm/left.tmp"], 1)
