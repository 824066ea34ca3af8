"""The connector's configuration out of flags."""

from __future__ import annotations

from typing import Any

import pytest
from kvpatch.kv_connector import connectors, is_in_process, transfers_of

T = "kv-transfer-config"
TOO_DEEP = ("a value is nested too deep", "it is nested too deep")


@pytest.mark.parametrize(
    ("flags", "transfer"),
    [
        ({}, {}),
        ({T: '{"kv_connector": "A"}'}, {"kv_connector": "A"}),
        ({T: "None"}, {}),
        ({T: ""}, {}),
        ({f"{T}.kv_connector": "A", f"{T}.x.y": "true"}, {"kv_connector": "A", "x": {"y": True}}),
        # vLLM does not merge the two.
        ({T: '{"kv_connector": "A"}', f"{T}.kv_role": "kv_both"}, {"kv_role": "kv_both"}),
        ({f"{T}.x": "1", f"{T}.x.y": "2"}, {"x": {"y": 2}}),
        ({f"{T}.x.y": "2", f"{T}.x": '{"z": 1}'}, {"x": {"y": 2, "z": 1}}),
        ({f"{T}.x": '["a"]', f"{T}.x+": "b,1"}, {"x": ["a", "b", "1"]}),
        # Nor does it take dashes for underscores behind a dot.
        ({f"{T}.kv-connector": "A"}, {"kv-connector": "A"}),
    ],
)
def test_the_connector_is_what_vllm_has_of_the_flags(
    flags: dict[str, str | bool], transfer: dict[str, Any]
) -> None:
    found, why = transfers_of(flags)
    assert not why
    assert (found[-1] if found else {}) == transfer


@pytest.mark.parametrize("text", ["{", "[]", "1", "{'kv_connector': 'A'}", True])
def test_what_is_no_json_object_is_told(text: str | bool) -> None:
    found, why = transfers_of({T: text})
    assert found == ()
    assert "JSON" in why


def test_connectors_inside_of_others_are_found() -> None:
    inner = {"kv_connector": "LMCacheConnectorV1"}
    outer: dict[str, Any] = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [inner, 1]},
    }
    assert list(connectors(outer)) == [outer, inner]
    assert [is_in_process(one) for one in connectors(outer)] == [False, True]
    nixl = {**outer, "kv_connector": "NixlConnector"}
    assert list(connectors(nixl)) == [nixl]


@pytest.mark.parametrize("name", [T, f"{T}.kv_connector_extra_config"])
def test_what_is_nested_without_end_is_told(name: str) -> None:
    assert transfers_of({name: "[" * 100_000}) == ((), TOO_DEEP[name == T])


def test_the_same_dotted_form_twice_is_merged_too() -> None:
    pairs = [(f"{T}.x", '{"a": 1}'), (f"{T}.x", '{"b": 2}')]
    found, why = transfers_of(pairs)
    assert (found[-1], why) == ({"x": {"a": 1, "b": 2}}, "")
