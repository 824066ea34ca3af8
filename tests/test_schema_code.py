"""Schemas kept between runs: the same as read anew, and never trusted when they are not whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kvpatch.coercion import effective
from kvpatch.schema_code import bind, keep, kept
from kvpatch.schema_source import parse_schema
from lmcache_config import schema_of

OWN = b"""
def _to_bool(value):
    return str(value).lower() == "true"

_CONFIG_DEFINITIONS = {
    "a": {"type": bool, "default": False, "env_converter": _to_bool},
    "b": {"type": float, "default": compute(), "env_converter": float},
    "c": {"type": float, "default": float("inf"), "env_converter": lambda x: float(x)},
}
"""


@pytest.mark.releases
@pytest.mark.parametrize("release", ["0.3.3", "0.3.9", "0.4.2", "0.5.6"])
def test_a_kept_schema_is_the_schema(release: str, tmp_path: Path) -> None:
    schema, place = schema_of(release), tmp_path / "s" / "x.json"
    keep(schema, place)
    again = kept(place)
    assert again == schema
    values = {"chunk_size": "7", "local_cpu": "1", "gds_path": 5, "extra_config": {"x": 1}}
    environ = {"LMCACHE_BLEND_SPECIAL_STR": " # # ", "LMCACHE_LOCAL_CPU": "no"}
    assert again is not None
    assert effective(again, values, environ) == effective(schema, values, environ)


def test_converters_and_odd_defaults_come_back(tmp_path: Path) -> None:
    schema = parse_schema(OWN, "1")
    keep(schema, tmp_path / "x.json")
    again = kept(tmp_path / "x.json")
    assert again == schema
    assert again is not None
    convert = again.keys["a"].convert
    assert convert is not None
    assert convert("TRUE") is True


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(format=0),
        lambda data: data.update(kvpatch="0"),
        lambda data: data.pop("schema"),
        lambda data: data["schema"].update(keys=3),
        lambda data: data["schema"].update(other=1),
        lambda data: data["schema"].update(code="def broken(:"),
    ],
)
def test_what_is_not_whole_is_read_anew(change: object, tmp_path: Path) -> None:
    place = tmp_path / "x.json"
    keep(parse_schema(OWN, "1"), place)
    data = json.loads(place.read_text())
    change(data)  # type: ignore[operator]
    place.write_text(json.dumps(data))
    assert kept(place) is None


def test_a_pipe_in_its_place_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    assert kept(tmp_path / "x.json") is None
    keep(parse_schema(OWN, "1"), tmp_path / "x.json")
    assert kept(tmp_path / "x.json") is not None


def test_code_that_is_not_pure_is_not_run_from_there(tmp_path: Path) -> None:
    place = tmp_path / "x.json"
    keep(parse_schema(OWN, "1"), place)
    data = json.loads(place.read_text())
    data["schema"]["code"] = "def _to_bool(value):\n    return open(value)\n"
    place.write_text(json.dumps(data))
    again = kept(place)
    assert again is not None
    assert again.keys["a"].convert is None


def test_a_place_that_cannot_be_written_is_no_failure() -> None:
    keep(parse_schema(OWN, "1"), Path("/proc/none/x.json"))
    assert kept(Path("/proc/none/x.json")) is None


def test_binding_again_changes_nothing() -> None:
    schema = parse_schema(OWN, "1")
    assert bind(schema) == schema
