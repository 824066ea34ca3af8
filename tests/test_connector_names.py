"""The connectors that vLLM knows by name, against the factory of every release."""

from __future__ import annotations

import ast

import pytest
from kvpatch.connector_names import KNOWN, is_judged, is_known
from packaging.version import Version
from releases import release_file, vllm_releases

FACTORY = "vllm/distributed/kv_transfer/kv_connector/factory.py"


def registered(release: str) -> set[str]:
    """The names that the release's own factory registers."""
    module = ast.parse(release_file("vllm", release, FACTORY))
    return {
        node.args[0].value
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "KVConnectorFactory.register_connector"
        and isinstance(node.args[0], ast.Constant)
    }


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_every_release_registers_what_is_known(release: str) -> None:
    there = registered(release)
    assert "LMCacheConnectorV1" in there
    ours = {name for name in there if "lmcache" in name.lower()}
    assert ours <= set(KNOWN)
    assert {name for name in KNOWN if is_known(name, Version(release))} == there & set(KNOWN)
    assert not [name for name in there - set(KNOWN) if is_judged(name)]


def test_without_a_release_a_name_of_some_is_not_judged() -> None:
    found = {name: is_known(name, None) for name in KNOWN}
    assert {name for name, known in found.items() if known} == {
        "LMCacheConnectorV1",
        "MultiConnector",
    }
    assert False not in found.values()
    assert is_known("LMCacheConnectorV1Dynamic", None) is False


@pytest.mark.parametrize("name", ["NixlConnector", "OffloadingConnector", "MyConnector"])
def test_names_of_others_are_left_alone(name: str) -> None:
    assert not is_judged(name)
