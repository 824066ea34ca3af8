"""What KVTransferConfig takes, against the sources of every release."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from kvpatch.rules import Level
from kvpatch.transfer_fields import FIELDS, FORBIDS, ROLES, faults
from packaging.version import Version
from releases import vllm_releases
from test_vllm_options import first_of

RIGHT = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
NEWEST = Version("0.33.0")


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_the_fields_and_roles_are_the_releases_own(release: str) -> None:
    text = first_of(
        release, "vllm/config/kv_transfer.py", "vllm/config/__init__.py", "vllm/config.py"
    )
    (body,) = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and node.name == "KVTransferConfig"
    ]
    there = {
        node.target.id
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for name in {*FIELDS, *there}:
        found = list(faults({**RIGHT, name: RIGHT.get(name, {})}, Version(release)))
        told = [one for one in found if "no such field" in one.message or "no field" in one.message]
        assert bool(told) is (name not in there), name
    assert set(ROLES) == set(re.findall(r'"(kv_(?:producer|consumer|both))"', text))


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_unknown_fields_stop_where_the_release_forbids_them(release: str) -> None:
    text = first_of(release, "vllm/config/utils.py", "vllm/config/__init__.py", "vllm/config.py")
    assert ('extra="forbid"' in text) is (Version(release) >= FORBIDS)


@pytest.mark.parametrize("vllm", [None, Version("0.8.5"), NEWEST])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kv_role": None}, "kv_role is missing"),
        ({"kv_role": "both"}, "stops at kv_role both"),
        ({"kv_role": ["kv_both"]}, "stops at kv_role"),
        ({"kv_connector": 3}, "it is a name"),
        ({"kv_connector_extra_config": "x"}, "it is an object"),
    ],
)
def test_what_every_release_stops_at(
    change: dict[str, Any], told: str, vllm: Version | None
) -> None:
    (fault,) = faults({**RIGHT, **change}, vllm)
    assert told in fault.message
    assert fault.level is Level.ERROR


def test_without_a_release_a_field_is_no_error() -> None:
    assert list(faults(RIGHT, None)) == []
    assert {fault.level for fault in faults({**RIGHT, "kv_ip": "h"}, None)} == {Level.NOTE}
    assert {fault.level for fault in faults({**RIGHT, "kv-role": "x"}, None)} == {Level.WARNING}
    (fault,) = faults({**RIGHT, "kv-role": "x\n"}, NEWEST)
    assert "\n" not in fault.message


def test_connectors_inside_of_multiconnector_are_looked_at() -> None:
    inner = {"kv_connector": "LMCacheConnectorV1"}
    outer = {"kv_connector": "MultiConnector", "kv_role": "kv_both",
             "kv_connector_extra_config": {"connectors": [RIGHT, inner]}}  # fmt: skip
    (fault,) = faults(outer, NEWEST)
    assert "kv_role is missing of the connector 2 inside MultiConnector" in fault.message


def test_nothing_is_said_of_no_connector() -> None:
    assert list(faults({"kv-connector": "x"}, NEWEST)) == []


@pytest.mark.parametrize(
    ("name", "vllm", "levels"),
    [
        ("LMCacheConnectorV1Dynamic", None, [Level.ERROR]),
        ("LMCacheConnectorV1Dynamic", NEWEST, [Level.ERROR]),
        ("LMCacheConnector", NEWEST, [Level.ERROR]),
        ("LMCacheConnector", Version("0.10.0"), [Level.WARNING]),
        ("LMCacheConnector", None, [Level.WARNING]),
        ("LMCacheMPConnector", Version("0.11.0"), [Level.ERROR]),
        ("LMCacheMPConnector", NEWEST, []),
        ("LMCacheMPConnector", None, [Level.NOTE]),
        ("LMCacheConnectorV1", Version("0.8.5"), []),
        ("NixlConnector", NEWEST, []),
        ("MyConnector", NEWEST, []),
    ],
)
def test_a_name_is_one_that_the_release_knows(
    name: str, vllm: Version | None, levels: list[Level]
) -> None:
    given = {**RIGHT, "kv_connector": name}
    assert [one.level for one in faults(given, vllm)] == levels
    inside = {**RIGHT, "kv_connector": "MultiConnector"}
    inside["kv_connector_extra_config"] = {"connectors": [RIGHT, given]}  # type: ignore[assignment]
    if vllm is None or vllm >= Version("0.9.0"):
        found = [one for one in faults(inside, vllm) if "connector 2 inside" in one.message]
        assert [one.level for one in found] == levels


def test_with_its_module_any_name_goes() -> None:
    given = {**RIGHT, "kv_connector": "LMCacheConnectorV1Dynamic"}
    path = "lmcache.integration.vllm.lmcache_connector_v1"
    assert not list(faults({**given, "kv_connector_module_path": path}, NEWEST))
    # vLLM before 0.20 takes an empty one for none, and later ones stop at it too.
    assert list(faults({**given, "kv_connector_module_path": ""}, NEWEST))
