from __future__ import annotations

import enum
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import kvpatch
import pytest


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class Base:
    def __init__(self, vllm_config: Any, role: Role, kv_cache_config: Any) -> None:
        self.role = role


class LlamaForCausalLM:
    pass


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        whole = ".".join(parts[:count])
        if whole not in sys.modules:
            monkeypatch.setitem(sys.modules, whole, ModuleType(whole))
    for member, value in members.items():
        monkeypatch.setattr(sys.modules[name], member, value, raising=False)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as vLLM loads it: by path, over a stand-in of vLLM's connector base."""
    package = "vllm.distributed.kv_transfer"
    _module(monkeypatch, package, get_kv_transfer_group=lambda: None)
    _module(
        monkeypatch,
        f"{package}.kv_connector.v1.base",
        KVConnectorBase_V1=Base,
        KVConnectorMetadata=object,
        KVConnectorRole=Role,
    )
    path = Path(kvpatch.__file__).with_name("trial_connectors.py")
    spec = importlib.util.spec_from_file_location("trial_connectors", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _lmcache(monkeypatch: pytest.MonkeyPatch, models: dict[str, object]) -> None:
    class Tracker:
        _vllm_models = models

        @classmethod
        def get_model(cls, name: str) -> object:
            if name not in cls._vllm_models:
                raise ValueError(f"vllm model for {name} not found.")
            return cls._vllm_models[name]

    _module(monkeypatch, "lmcache.integration.vllm.utils", ENGINE_NAME="vllm-instance")
    _module(monkeypatch, "lmcache.v1.compute.models.utils", VLLMModelTracker=Tracker)


def _config(folder: Path) -> Any:
    extra = {"facts": str(folder)}
    return SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra))


def _facts(folder: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in folder.iterdir()]


def test_only_one_of_the_names_is_lmcaches(probes: Any) -> None:
    assert probes.LMCacheConnectorProbe.__name__.startswith("LMCacheConnector")
    assert not probes.OtherProbe.__name__.startswith("LMCacheConnector")


def test_an_unregistered_model_is_written_down_and_kills_the_start(
    probes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _lmcache(monkeypatch, {})
    with pytest.raises(ValueError, match="vllm model for vllm-instance not found"):
        probes.LMCacheConnectorProbe(_config(tmp_path), Role.WORKER, None)
    (fact,) = _facts(tmp_path)
    assert fact["model"] is None
    assert fact["error"] == "vllm model for vllm-instance not found."


def test_a_registered_model_is_written_down_and_kept(
    probes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = LlamaForCausalLM()
    _lmcache(monkeypatch, {"vllm-instance": model})
    probe = probes.LMCacheConnectorProbe(_config(tmp_path), Role.WORKER, None)
    assert probe.seen is model
    assert _facts(tmp_path)[0]["model"] == "LlamaForCausalLM"


@pytest.mark.parametrize("name", ["LMCacheConnectorProbe", "OtherProbe"])
def test_the_schedulers_side_looks_at_nothing(probes: Any, tmp_path: Path, name: str) -> None:
    getattr(probes, name)(_config(tmp_path), Role.SCHEDULER, None)
    assert _facts(tmp_path) == []
    assert "lmcache" not in sys.modules


def test_the_other_probe_sees_that_lmcache_was_not_imported(probes: Any, tmp_path: Path) -> None:
    probes.OtherProbe(_config(tmp_path), Role.WORKER, None)
    (fact,) = _facts(tmp_path)
    assert (fact["lmcache"], fact["registered"]) == (False, [])
    assert "lmcache" not in sys.modules


def test_the_other_probe_sees_what_should_not_be_there(
    probes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _lmcache(monkeypatch, {"vllm-instance": LlamaForCausalLM()})
    probes.OtherProbe(_config(tmp_path), Role.WORKER, None)
    (fact,) = _facts(tmp_path)
    assert (fact["lmcache"], fact["registered"]) == (True, ["LlamaForCausalLM"])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_the_witness_compares_the_objects_themselves(
    probes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nested: bool, same: bool
) -> None:
    model = LlamaForCausalLM()
    _lmcache(monkeypatch, {"vllm-instance": model})
    probe = probes.LMCacheConnectorProbe(_config(tmp_path), Role.WORKER, None)
    other = probes.OtherProbe(_config(tmp_path), Role.WORKER, None)
    group = SimpleNamespace(_connectors=[other, probe]) if nested else probe
    monkeypatch.setattr(probes, "get_kv_transfer_group", lambda: group)
    worker = probes.Witness()
    run = model if same else LlamaForCausalLM()
    worker.model_runner = SimpleNamespace(model="a wrapper", get_model=lambda: run)
    facts = worker.trial_facts()
    assert facts["registered_is_runners"] is same
    assert facts["probes_saw_runners"] == [same]
    assert facts["registered"] == ["LlamaForCausalLM"]
