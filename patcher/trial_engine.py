"""Starts the real engine of a target environment with a probe connector, and brings back facts."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bounded import Ended, run
from .installer import Say
from .interpreters import clean_environment
from .outcome import ExitCode, KvpatchError

MODEL_LIMIT_S = 300.0
ENGINE_LIMIT_S = 600.0
CODE = ("trial_child.py", "trial_connectors.py")
_DROPPED = ("VLLM_", "LMCACHE_", "HF_", "TORCH", "HOME", "XDG_", "TMPDIR", "CUDA_")


@dataclass(frozen=True)
class EngineRun:
    """What one start of the engine left.

    ``result`` is what the engine's process wrote after generating (None: it never came so far),
    ``facts`` what the probe connectors wrote when they were built, by their names.
    """

    connector: str
    ended: Ended
    result: Mapping[str, Any] | None
    facts: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Bench:
    """A folder for the tiny model, the probes and all that an engine writes beside its work."""

    folder: Path
    python: Path

    def build_model(self, say: Say) -> None:
        """Builds the tiny model with the target's transformers.

        Raises:
            KvpatchError: ``no-model``; exit 4.
        """
        code = self.folder / "code"
        code.mkdir()
        for name in CODE:
            shutil.copyfile(Path(__file__).with_name(name), code / name)
        ended = self._child("model", MODEL_LIMIT_S, say)
        if ended.code != 0:
            raise KvpatchError(
                "no-model",
                f"The tiny model can't be built in the target: {_last_line(ended.output)}",
                f"See whether {self.python} can import torch, transformers and tokenizers.",
                ExitCode.ENVIRONMENT,
            )

    def start(self, connector: str, say: Say) -> EngineRun:
        """Starts the engine with that connector, lets it generate, and ends it."""
        say(f"starting the engine with {connector}")
        facts, result = self.folder / "facts", self.folder / "engine.json"
        shutil.rmtree(facts, ignore_errors=True)
        facts.mkdir()
        result.unlink(missing_ok=True)
        ended = self._child("engine", ENGINE_LIMIT_S, say, connector)
        found = [json.loads(path.read_text(encoding="utf-8")) for path in facts.glob("*.json")]
        said = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
        return EngineRun(connector, ended, said, {fact["name"]: fact for fact in found})

    def _child(self, task: str, limit: float, say: Say, *arguments: str) -> Ended:
        return run(
            [self.python, self.folder / "code" / CODE[0], task, self.folder, *arguments],
            limit=limit,
            env=engine_environment(os.environ, self.folder),
            cwd=self.folder,
            tick=lambda seconds: say(f"  {seconds:.0f} s"),
        )


def engine_environment(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The engine's environment: vLLM's defaults, no network, every file it writes in ``folder``."""
    clean = clean_environment(environ)
    kept = {name: value for name, value in clean.items() if not name.startswith(_DROPPED)}
    own = {name: str(folder) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    return {
        **kept,
        **own,
        "PYTHONPATH": str(folder / "code"),
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "LMCACHE_TRACK_USAGE": "false",
    }


def reasons(output: str, most: int = 12) -> list[str]:
    """The last lines of an engine's output that name an error, without vLLM's prefixes."""
    shown: list[str] = []
    for line in re.findall(r"^.*\b[A-Z]\w*(?:Error|Exception)\b: .*$", output, re.MULTILINE):
        text = re.sub(r"^.*?\b(?=[A-Z]\w*(?:Error|Exception)\b: )", "", line)
        if text not in shown:
            shown.append(text)
    return shown[-most:]


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (reasons(output) or lines or ["it said nothing"])[-1]
