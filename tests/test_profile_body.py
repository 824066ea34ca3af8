"""The keys of a profile's file: what stands above each is true of the value that stands there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from kvpatch.profile_body import body
from kvpatch.schema import Key, Schema
from kvpatch.templates import load, names

LMCACHE = [name for name in names() if load(name).kind == "lmcache"]
VALUES = {
    "gds_path": "/mnt/a",
    "buffer": 4096,
    "staging": 5.0,
    "cpu_memory": 16.0,
    "prompt": "One takes 4096 MiB.",
    "cpu_prompt": "Holds 4 of the longest prompts.",
}


def made(name: str, changes: Mapping[str, Any]) -> dict[str, str]:
    """The comment above each key of the top level, with the first line for every concept."""
    keys = {key for _, entry in load(name).concepts for key in entry["lines"][0]["keys"]}
    schema = Schema("9.9", {key: Key(key, "Any", None, None) for key in {*keys, *changes}})
    lines = list(body(load(name), schema, VALUES, changes))
    assert yaml.safe_load("\n".join(lines)).items() >= changes.items()
    found: dict[str, str] = {}
    told: list[str] = []
    for line in lines:
        if line.startswith("#"):
            told.append(line.removeprefix("#").strip())
        elif line:
            found[line.partition(":")[0]] = " ".join(told)
        else:
            told = []
    return found


@pytest.mark.parametrize("name", LMCACHE)
def test_what_is_said_of_the_templates_value_goes_where_another_is_set(name: str) -> None:
    for _, entry in load(name).concepts:
        line = entry["lines"][0]
        for key in line["keys"]:
            plain, changed = made(name, {})[key], made(name, {key: "other"})[key]
            assert changed.endswith("Set by --set.")
            assert "Set by --set." not in plain
            said = " ".join(line.get("here", "").split())
            assert not said or said not in changed
            kept = " ".join(line.get("why", "").split())
            assert "{" in kept or kept in changed


@pytest.mark.parametrize(
    ("name", "key", "value", "gone", "kept"),
    [
        ("blend", "max_local_cpu_size", 1, "Holds 4", "GiB of pinned CPU memory"),
        ("cpu-offload", "local_cpu", False, "kept in CPU memory", ""),
        ("gds", "gds_buffer_size", 100, "\0", "One takes 4096 MiB."),
    ],
)
def test_a_number_that_was_computed_is_not_given_as_the_reason_for_another(
    name: str, key: str, value: object, gone: str, kept: str
) -> None:
    told = made(name, {key: value})[key]
    assert gone not in told
    assert kept in told


def test_a_value_that_is_set_to_the_templates_own_keeps_its_reason() -> None:
    same = {"chunk_size": 256, "max_local_cpu_size": 16}
    assert made("blend", same) == made("blend", {})


def test_text_against_token_lists_is_told_above_the_separator() -> None:
    told = made("blend", {})["blend_special_str"]
    assert "sent as text" in told
    assert "token lists" in told
    assert r'`" # #\n"`' in told
