"""Values from file, environment and command together, on a schema made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kvpatch.coercion import Effective, effective
from kvpatch.schema import Reading, Schema, Unknown
from kvpatch.schema_source import parse_schema

SOURCE = b"""
def _parse_quoted_string(value):
    return value.strip()

def _apply_env_converter_safely(a, b, c):
    return c

def _validate_config(self):
    if self.flag:
        logger.warning("changing name")
        self.name = "changed"
    assert self.number >= 0

def _update_config_from_env(self):
    self.validate()

_CONFIG_ALIASES = {"old_number": "number", "dead": "number", "gone": "nowhere"}
_DEPRECATED_CONFIGS = {"old_number": "use number", "gone": "use nothing", "bare": "is gone"}
_CONFIG_DEFINITIONS = {
    "number": {"type": int, "default": 1, "env_converter": int},
    "name": {"type": str, "default": "n", "env_converter": str},
    "flag": {"type": bool, "default": False, "env_converter": bool},
    "odd": {"type": int, "default": 3, "env_converter": make_one()},
    "raw": {"type": list, "default": None},
    "extra_config": {"type": dict, "default": None, "env_converter": lambda x: x},
}
"""
SCHEMA = parse_schema(SOURCE, "1")


def see(values: dict[Any, Any], **more: Any) -> Effective:
    return effective(SCHEMA, values, **more)


def test_aliases_work_only_where_they_are_listed_as_deprecated_too() -> None:
    assert SCHEMA.aliases == {"old_number": "number"}
    assert SCHEMA.dead_aliases == {"dead": "number", "gone": "nowhere"}
    assert see({"old_number": 7}).get("number") == 7
    assert see({"dead": 7}).get("number") == 1
    assert see({"number": 2, "old_number": 7}).get("number") == 7
    assert see({"old_number": 7, "number": 2}).get("number") == 2


def test_what_cannot_be_converted_fails_as_the_release_has_it() -> None:
    assert see({"number": "x"}).values["number"].failure == "none"
    assert see({"number": [1]}).values["number"].failure == "stop"
    strict = replace(SCHEMA, reading=replace(SCHEMA.reading, none_on_failure=False))
    assert effective(strict, {"number": "x"}).values["number"].failure == "stop"


def test_a_converter_that_cannot_be_read_gives_no_value_and_no_claim() -> None:
    assert isinstance(see({"odd": 3}).values["odd"].value, Unknown)
    assert see({"odd": 3}).get("odd") is None


def test_the_environment_is_unquoted_and_a_bad_value_is_dropped() -> None:
    seen = see({"number": 2}, environ={"LMCACHE_NUMBER": "x", "LMCACHE_NAME": " a "})
    assert seen.get("number") == 2
    assert [one.given_as for one in seen.lost] == ["LMCACHE_NUMBER"]
    assert seen.get("name") == "a"
    assert see({}, environ={"LMCACHE_RAW": "a"}).values["raw"].failure == "stop"


def test_the_check_changes_values_warns_and_stops() -> None:
    plain = replace(SCHEMA, keys={name: key for name, key in SCHEMA.keys.items() if name != "odd"})
    seen = effective(plain, {"flag": True})
    assert seen.changed == {"name": "changed"}
    assert seen.said == ("changing name",)
    assert seen.stop == ""
    assert effective(plain, {"number": -1}).stop == "not self.number >= 0"


def test_the_command_beats_everything_where_it_counts() -> None:
    environ, overrides = {"LMCACHE_NUMBER": "2"}, {"number": "3", "no": 1}
    for converts, value in ((True, 3), (False, "3")):
        reading = Reading(overrides=True, converts_overrides=converts)
        schema = replace(SCHEMA, reading=reading)
        seen = effective(schema, {"number": 1}, environ, overrides)
        assert seen.get("number") == value
    assert effective(SCHEMA, {"number": 1}, environ, overrides).get("number") == 2


@pytest.mark.parametrize("name", ["nothing", "extra_config.x", "number.x"])
def test_what_is_not_there_is_none(name: str) -> None:
    assert see({}).get(name) is None
    assert see({"extra_config": {"x": 5}}).get("extra_config.x") == 5


def test_written_values_are_never_changed() -> None:
    values = {"extra_config": {"x": [1]}, "number": "3"}
    see(values)
    assert values == {"extra_config": {"x": [1]}, "number": "3"}
    assert isinstance(SCHEMA, Schema)
