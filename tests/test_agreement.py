"""A run against the verdict: which letter it failed at, and whether that was to come first."""

from __future__ import annotations

import pytest
from kvpatch.agreement import MASKED, agreement, letter_at
from kvpatch.letters import Finding, Scope, When

ATTENTION = Finding("A", When.BLENDER, "lmcache/attention.py", 6, "no module vllm.attention")
ROPE = Finding("R", When.BLENDER, "lmcache/rope.py", 7, "get_rope gets 8 arguments")
CONTEXT = Finding("C", When.REQUEST, "lmcache/adapter.py", 9, "no virtual_engine")
GDS = Finding("S", When.SILENT, "lmcache/storage.py", 5, "wrong keys", Scope.GDS)
FOUND = (ATTENTION, ROPE, CONTEXT, GDS)


def failing(*places: list[object]) -> dict[str, object]:
    return {"failure": {"told": "TypeError in f", "places": list(places)}}


def test_a_run_agrees_where_it_fails_at_the_first_letter_that_is_not_masked() -> None:
    smoked = failing(["vllm/rope.py", 7, "get_rope"], ["lmcache/rope.py", 7, "get"])
    held = agreement(FOUND, MASKED["cpu"], smoked, "starts: TypeError")
    assert (held.expected, held.struck, held.failed) == ("R", "R", "TypeError in f")
    assert held.agrees


def test_on_a_gpu_the_masked_letter_comes_first() -> None:
    held = agreement(FOUND, MASKED["cuda"], failing(["lmcache/rope.py", 7, "get"]), "starts")
    assert (held.expected, held.struck, held.agrees) == ("A", "R", False)


@pytest.mark.parametrize(
    ("places", "struck"),
    [
        ([["lmcache/adapter.py", 9, "start"]], "C"),
        ([["lmcache/rope.py", 8, "get"]], ""),
        ([["lmcache/attention.py", 6, "<module>"]], ""),
        ([], ""),
    ],
)
def test_a_run_that_fails_elsewhere_does_not_agree(places: list[list[object]], struck: str) -> None:
    held = agreement(FOUND, MASKED["cpu"], failing(*places), "starts: TypeError")
    assert (held.expected, held.struck, held.agrees) == ("R", struck, False)


def test_the_innermost_place_decides() -> None:
    outer, inner = ["lmcache/adapter.py", 9, "start"], ["lmcache/rope.py", 7, "get"]
    assert letter_at(FOUND, [inner, outer]) == "R"
    assert letter_at(FOUND, [outer, inner]) == "C"


def test_a_run_that_blends_agrees_where_no_letter_is_left_that_it_can_tell_of() -> None:
    assert agreement((ATTENTION, GDS), MASKED["cpu"], {"failure": None}, "").agrees
    assert not agreement((ROPE,), MASKED["cpu"], {"failure": None}, "").agrees


def test_a_check_that_fails_without_an_error_agrees_with_no_letter() -> None:
    held = agreement((), MASKED["cpu"], {"failure": None}, "differs: 0.3 nats")
    assert (held.failed, held.struck, held.agrees) == ("differs: 0.3 nats", "", False)


def test_the_folder_of_the_environment_is_left_out_of_what_is_told() -> None:
    told = "ImportError: no 'cdiv' in 'vllm.utils' (/a/py3/site-packages/vllm/utils/__init__.py)"
    held = agreement((), (), {"failure": {"told": told, "places": []}}, "starts")
    assert held.failed == "ImportError: no 'cdiv' in 'vllm.utils' (vllm/utils/__init__.py)"


def test_attention_kv_shape_silence_and_graphs_are_masked_on_a_cpu() -> None:
    assert set(MASKED["cpu"]) == {"A", "K", "S", "V"}
