"""What each engine of a smoke is ordered to do, and the files that it is given for that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from . import smoke_settings as wanted
from .smoke_bench import Engine


@dataclass(frozen=True)
class Orders:
    """What is the same for every engine of one smoke, and the folder for what they are given.

    ``spec`` is of the tiny model to make, None where ``model`` is the user's own; ``room`` is what
    it is given. ``graphs``: with a connector this release takes CUDA graphs. ``originals`` are the
    files that kvpatch changed, as they were.
    """

    folder: Path
    model: str
    spec: Mapping[str, Any] | None
    cpu: bool
    graphs: bool
    settings: wanted.Settings
    connector: Mapping[str, Any]
    room: wanted.Room = wanted.TINY
    fault: str = ""
    originals: Mapping[str, bytes] = field(default_factory=dict)

    def reference(self) -> Engine:
        """Without LMCache; it makes the model, and answers with the original files too."""
        order = self._order(None, wanted.reference_steps())
        if self.spec is not None:
            spec = {**self.spec, "dtype": order["engine"]["dtype"], "seed": wanted.SEED}
            order["make"] = {"folder": self.model, "spec": spec}
        if self.originals:
            order |= {"originals": self._put_aside(), "again": list(wanted.REORDERED)}
        return Engine("reference", order)

    def store(self) -> Engine:
        """Leaves chunks in GDS for another process."""
        return Engine("store", self._connected(wanted.store_steps()), self._blending())

    def blend(self, ratios: tuple[float, ...]) -> Engine:
        """Blends, with each of those recompute ratios in turn."""
        steps = wanted.blend_steps(self.settings.ratio, ratios or wanted.SWEEP)
        if not self.settings.gds:
            steps = wanted.store_steps() + steps
        elif self.cpu:
            # The layout of vLLM's cache is learnt from what vLLM writes, before any loading.
            steps = wanted.first_steps() + steps
        order = {**self._connected(steps), "together": wanted.together_steps(self.settings)}
        return Engine("blend", order, self._blending())

    def layerwise(self) -> Engine:
        """The control: the same configuration without blending and without GDS."""
        values = {**self.settings.values, "enable_blending": False}
        for name in ("gds_path", "retrieve_locations"):
            values.pop(name, None)
        order = {**self._connected(wanted.layerwise_steps()), "gds": False, "fault": ""}
        return Engine("layerwise", order, self._write("layerwise", {**values, "local_cpu": True}))

    def _connected(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        return self._order(self.connector, steps)

    def _order(
        self, connector: Mapping[str, Any] | None, steps: list[dict[str, Any]]
    ) -> dict[str, Any]:
        connected = connector is not None
        return {
            "engine": wanted.engine(
                self.model,
                room=self.room,
                dtype=wanted.TINY_DTYPE if self.cpu and self.spec else wanted.OWN_DTYPE,
                # Without cache, rounding is put in by hooks, which no graph runs.
                eager=self.cpu or not connected or not self.graphs,
                connector=connector,
            ),
            "cpu": self.cpu,
            "harness": self.cpu and connected,
            "separator": self.settings.separator,
            "least": self.settings.least,
            "seed": wanted.SEED,
            "gds": self.settings.gds and connected,
            "gds_path": self.settings.values.get("gds_path"),
            # What one process stored and another blends goes there too, to be compared.
            "stored": str(self.folder / "stored.pt") if self.settings.gds and connected else "",
            "fault": self.fault if connected else "",
            "steps": steps,
        }

    def _blending(self) -> Path:
        return self._write("blend", self.settings.values)

    def _write(self, name: str, values: Mapping[str, Any]) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(dict(values), sort_keys=False), encoding="utf-8")
        return path

    def _put_aside(self) -> dict[str, str]:
        """The originals as files, by the modules that they are."""
        sources = {}
        for path, content in self.originals.items():
            copy = self.folder / "originals" / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
            sources[path.removesuffix(".py").replace("/", ".")] = str(copy)
        return sources
