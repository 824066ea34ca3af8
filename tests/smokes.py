"""Measurements as the children of a smoke write them, made up, with one thing wrong at a time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from kvpatch.smoke_measure import Answer, Measured, Start
from kvpatch.smoke_settings import (
    REORDERED,
    basic,
    blend_steps,
    layerwise_steps,
    reference_steps,
    settings,
    together_steps,
)

COLD = tuple(math.log(share) for share in (0.5, 0.25, 0.125, 0.125))
ROUNDING = 1e-5
PROMPTS: dict[str, dict[str, int]] = {
    "store": {"length": 130, "cached": 0},
    "twice": {"length": 130, "cached": 120},
    "permutation": {"length": 120, "cached": 100},
    "new-chunk": {"length": 120, "cached": 50},
    "one-token": {"length": 1, "cached": 0},
    **{name: {"length": 130, "cached": 100} for name in REORDERED},
    "together-store": {"length": 130, "cached": 0},
    "together-reordered": {"length": 130, "cached": 100},
    "together-after": {"length": 120, "cached": 50},
    "together-inside": {"length": 130, "cached": 100},
}
EVENTS = ["registered", "connector:worker", "blender", "connector:scheduler"]


def moved(by: float) -> tuple[float, ...]:
    """A distribution whose first log-prob is off by that much."""
    return (COLD[0] + by, *COLD[1:])


def start(role: str, answers: list[Answer] | None = None, **change: Any) -> Start:
    """A start that did all that was ordered, but for the change."""
    result = {
        "stage": "done",
        "stages": {"import": 4.0, "start": 8.0, "requests": 10.0, "done": 12.0},
        "events": EVENTS if role == "blend" else [],
        "prompts": PROMPTS,
        "engine": {"layers": 2, "runner": "Runner", "kv_shape": [1, 2], "dtype": "float32"},
        **change.pop("result", {}),
    }
    return Start(role, change.pop("code", 0), 12.0, result, tuple(answers or ()), **change)


def reference(originals: float | None = 0.0) -> Start:
    """Cold runs; the shaken ones are off by :data:`ROUNDING`."""
    found = [
        Answer(one["prompt"], moved(ROUNDING if one.get("jitter") else 0.0), {**one, "seconds": 2})
        for one in reference_steps()
    ]
    if originals is not None:
        found += [Answer(name, moved(originals), {"originals": True}) for name in REORDERED]
    return start("reference", found)


def reuse_of(step: dict[str, Any], length: int) -> dict[str, Any]:
    """What the witness sees of a prompt where the check layer is layer 1."""
    picked = max(int(step["ratio"] * length), 1)
    facts: dict[str, Any] = {"asked": length, "check": 1, "rows": [length, picked]}
    if step.get("compare"):
        facts["written"] = [
            {"layer": layer, "reused": 0.0, "anew": 0.0, "separators": 0.0, "empty": 0, "marks": 20}
            for layer in (0, 1)
        ]
        facts["reused"] = [
            {"layer": 0, "rows": 100, "moved": 90, "keys": 1e-7, "still": 1.4, "values": 0.0},
            {"layer": 1, "rows": 90, "moved": 80, "keys": 2e-7, "still": 1.4, "values": 0.0},
        ]
        for entry in facts["reused"]:
            entry |= {"anew": entry["layer"] * 10, "off": entry["layer"] * 3e-7}
        if step["ratio"] == 1.0:
            facts["reused"][1] |= {"rows": 0, "moved": 0, "keys": 0.0, "still": 0.0}
    return facts


def blended(change: Any = None) -> list[Answer]:
    """What a blending engine that is right answers; ``change(step, facts)`` spoils some."""
    found = []
    last = together_steps(settings(basic(lambda _: True, gds_path=None)))
    for step in [{"prompt": "store", "store": True}, *blend_steps(0.15, (0.0, 1.0)), *last]:
        cached = PROMPTS[step["prompt"]]["cached"]
        facts = {**step, "retrieved": cached, "layers": [0, 1] if cached else [], "seconds": 1}
        facts["key_error"] = 1e-7
        if cached:
            facts.update(reuse_of(step, PROMPTS[step["prompt"]]["length"]))
        if step.get("spare"):
            facts["parts"] = [[2048 - step["spare"], step["spare"]], [15]]
        if step["prompt"] == "store":
            facts["known"] = 130
        priced = step.get("sweep") and not step.get("fill") and step["ratio"] < 1.0
        off = 0.3 if priced else 0.0
        if change is not None:
            off = change(facts) or off
        found.append(Answer(step["prompt"], moved(off), facts))
    return found


def measured(change: Any = None, **parts: Any) -> Measured:
    """Everything right, but for what ``change`` spoils and the parts given."""
    again = [
        Answer(one["prompt"], COLD, {**one, "retrieved": 128 if one["prompt"] == "twice" else 0})
        for one in layerwise_steps()
    ]
    given = {
        "reference": reference(),
        "blend": start("blend", blended(change)),
        "layerwise": start("layerwise", again),
        "ratio": 0.15,
        "chunk_size": 64,
        "journal": True,
        **parts,
    }
    return Measured(**given)


def make_model(folder: Path, **change: Any) -> Path:
    """The folder of a model with the files that one has, of which only ``config.json`` is real."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "max_position_embeddings": 2048,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        **change,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_text("")
    return folder
