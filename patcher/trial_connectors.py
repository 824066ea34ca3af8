"""Probe connectors for the trial: they write down what LMCache's tracker holds when they are built.

Loaded by vLLM in the target environment (``kv_connector_module_path``); needs nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

TRACKER = "lmcache.v1.compute.models.utils"


def write(folder: str, name: str, fact: dict[str, Any]) -> None:
    """Add one fact to the trial's folder, whole or not at all."""
    fact = {"name": name, "pid": os.getpid(), **fact}
    path = Path(folder) / f"{name}-{os.getpid()}.json"
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(fact), encoding="utf-8")
    scratch.replace(path)


def registered() -> list[str]:
    """Class names of the registered models, without importing LMCache if nobody did."""
    module = sys.modules.get(TRACKER)
    if module is None:
        return []
    return [type(model).__name__ for model in module.VLLMModelTracker._vllm_models.values()]


class Idle(KVConnectorBase_V1):  # type: ignore[misc,unused-ignore]
    """A connector that moves nothing; its worker side calls :meth:`look` when it is built."""

    seen: object = None

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role == KVConnectorRole.WORKER:
            self.look(vllm_config.kv_transfer_config.kv_connector_extra_config["facts"])

    def look(self, folder: str) -> None:
        """Write down what is there at this moment."""
        raise NotImplementedError

    def start_load_kv(self, *_args: Any, **_kwargs: Any) -> None:
        """Load nothing."""

    def wait_for_layer_load(self, *_args: Any) -> None:
        """Wait for nothing."""

    def save_kv_layer(self, *_args: Any, **_kwargs: Any) -> None:
        """Save nothing."""

    def wait_for_save(self) -> None:
        """Wait for nothing."""

    def get_num_new_matched_tokens(self, *_args: Any) -> tuple[int, bool]:
        """No request has cached tokens."""
        return 0, False

    def update_state_after_alloc(self, *_args: Any) -> None:
        """Keep no state."""

    def build_connector_meta(self, *_args: Any) -> Any:
        """Nothing to tell the worker."""
        return KVConnectorMetadata()


class LMCacheConnectorProbe(Idle):
    """Asks LMCache's tracker for the model as LMCache's own connector does."""

    def look(self, folder: str) -> None:
        """Write down the model's class, or raise what LMCache raises."""
        from lmcache.integration.vllm.utils import ENGINE_NAME
        from lmcache.v1.compute.models.utils import VLLMModelTracker

        try:
            self.seen = VLLMModelTracker.get_model(ENGINE_NAME)
        except ValueError as error:
            write(folder, "LMCacheConnectorProbe", {"model": None, "error": str(error)})
            raise
        write(folder, "LMCacheConnectorProbe", {"model": type(self.seen).__name__, "error": None})


class OtherProbe(Idle):
    """A connector that has nothing to do with LMCache, so nothing may have been done for it."""

    def look(self, folder: str) -> None:
        """Write down whether LMCache was imported and what was registered."""
        fact = {"lmcache": "lmcache" in sys.modules, "registered": registered()}
        write(folder, "OtherProbe", fact)


class Witness:
    """Added to vLLM's worker for the trial, to compare objects where they live."""

    model_runner: Any

    def trial_facts(self) -> dict[str, Any]:
        """What worker, tracker and connector hold once the engine runs."""
        connector = get_kv_transfer_group()
        members = getattr(connector, "_connectors", [connector])
        probes = [member for member in members if isinstance(member, LMCacheConnectorProbe)]
        runner = self.model_runner
        model = runner.get_model() if hasattr(runner, "get_model") else runner.model
        tracker = sys.modules.get(TRACKER)
        held = list(tracker.VLLMModelTracker._vllm_models.values()) if tracker else []
        return {
            "pid": os.getpid(),
            "worker": type(self).__mro__[0].__name__,
            "runner": f"{type(runner).__module__}.{type(runner).__name__}",
            "connector": type(connector).__name__,
            "model": type(model).__name__,
            "registered": [type(one).__name__ for one in held],
            "registered_is_runners": len(held) == 1 and held[0] is model,
            "probes_saw_runners": [probe.seen is model for probe in probes],
            "lmcache_imported": "lmcache" in sys.modules,
        }
