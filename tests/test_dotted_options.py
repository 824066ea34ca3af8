"""Dotted forms put together; what every release makes of them is in test_real_serve_config."""

from __future__ import annotations

import pytest
from kvpatch.dotted_options import NotReadError, json_of, merged

NAMES = frozenset({"compilation-config", "cc"})


def test_each_spelling_has_its_object_in_the_order_of_the_command() -> None:
    pairs = [("cc.a", "1"), ("port", "2"), ("compilation-config.b.c", "x"), ("cc.d", "true")]
    assert list(merged(pairs, NAMES).items()) == [
        ("cc", {"a": 1, "d": True}),
        ("compilation-config", {"b": {"c": "x"}}),
    ]


def test_objects_are_merged_lists_are_joined_and_the_last_value_counts() -> None:
    pairs = [("cc.a", '{"x": 1, "y": [1]}'), ("cc.a", '{"y": [2]}'), ("cc.a.x", "3"), ("cc.b", "4")]
    assert merged([*pairs, ("cc.b", '{"z": 5}'), ("cc.a.y+", "6,k")], NAMES) == {
        "cc": {"a": {"x": 3, "y": [1, 2, "6", "k"]}, "b": {"z": 5}}
    }


def test_other_options_and_switches_are_left_out() -> None:
    assert merged([("cc", "{}"), ("ccc.a", "1"), ("cc.a", True)], NAMES) == {}


@pytest.mark.parametrize(
    ("text", "why"), [("[" * 100_000, "nested too deep"), ("1" * 5000, "too many digits")]
)
def test_what_vllm_stops_at_is_told(text: str, why: str) -> None:
    with pytest.raises(NotReadError, match=why):
        merged([("cc.a", text)], NAMES)


@pytest.mark.parametrize(("text", "why"), [("[" * 100_000, "too deep"), ("{", "not JSON")])
def test_text_that_is_no_json_is_told(text: str, why: str) -> None:
    with pytest.raises(NotReadError, match=why):
        json_of(text)
    assert json_of('{"a": 1}') == {"a": 1}
