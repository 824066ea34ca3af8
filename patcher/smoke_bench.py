"""Starts engines of the target in child processes, each under a limit, and reads what they left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from array import array
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .bounded import Command, Ended, run_together
from .interpreters import clean_environment
from .smoke_measure import Answer, Start
from .trial import scratch

CODE = (
    "smoke_child.py",
    "smoke_chunks.py",
    "smoke_cuda.py",
    "smoke_cufile.py",
    "smoke_filler.py",
    "smoke_harness.py",
    "smoke_imports.py",
    "smoke_layout.py",
    "smoke_model.py",
    "smoke_originals.py",
    "smoke_paged.py",
    "smoke_platform.py",
    "smoke_prompts.py",
    "smoke_sdpa.py",
    "smoke_witness.py",
)
_DROPPED = ("VLLM_", "LMCACHE_", "XDG_", "TMPDIR")
_OF_A_MODEL = ("HF_", "TRANSFORMERS_", "HOME")
# A child whose time is over is still given this long to begin.
LEAST_S = 1.0


@dataclass(frozen=True)
class Engine:
    """An engine to start: its role, what it is ordered, and LMCache's configuration if any."""

    role: str
    order: Mapping[str, Any]
    config: Path | None = None


@dataclass(frozen=True)
class Bench:
    """A folder for all that children write, the target's interpreter, and the time left for all."""

    folder: Path
    python: Path
    deadline: float
    harness: bool
    own_model: bool
    say: Callable[[str], None]
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def prepare(self) -> None:
        """Copies the children's code, so that nothing else of kvpatch is on their path."""
        code = self.folder / "code"
        code.mkdir()
        for name in CODE:
            shutil.copyfile(Path(__file__).with_name(name), code / name)

    def start(self, engine: Engine) -> Start:
        """Starts an engine, lets it do what is ordered, and ends it with all it started."""
        [start] = self.start_together([engine])
        return start

    def start_together(self, engines: Sequence[Engine]) -> list[Start]:
        """The same with engines that run at the same time, each in a process of its own."""
        roles = " and ".join(engine.role for engine in engines)
        self.say(f"starting {'an engine' if len(engines) == 1 else 'engines'}: {roles}")
        with contextlib.ExitStack() as sockets:
            commands = [self._command(one, sockets.enter_context(scratch())) for one in engines]
            limit = max(self.deadline - time.monotonic(), LEAST_S)
            ended = run_together(commands, limit=limit)
        return [self._read(*pair) for pair in zip(engines, ended, strict=True)]

    def _command(self, engine: Engine, sockets: Path) -> Command:
        path = self._out(engine).with_suffix(".order")
        order = {**engine.order, "role": engine.role, "out": str(self._out(engine))}
        path.write_text(json.dumps(order), encoding="utf-8")
        return Command(
            [self.python, self.folder / "code" / CODE[0], path],
            env={**self.variables(engine.config), "VLLM_RPC_BASE_PATH": str(sockets)},
            cwd=self.folder,
            tick=lambda seconds: self.say(f"  {engine.role}: {seconds:.0f} s"),
        )

    def _read(self, engine: Engine, ended: Ended) -> Start:
        out = self._out(engine)
        out.with_suffix(".log").write_text(ended.output, encoding="utf-8")
        said = ended.output[-20000:]
        return Start(engine.role, ended.code, ended.seconds, _result(out), _answers(out), said)

    def _out(self, engine: Engine) -> Path:
        return self.folder / f"{engine.role}.json"

    def variables(self, config: Path | None) -> dict[str, str]:
        """The children's environment: no caller's settings, every file in the bench's folder."""
        clean = clean_environment(self.environ)
        dropped = (*_DROPPED, *(() if self.own_model else _OF_A_MODEL))
        kept = {name: value for name, value in clean.items() if not name.startswith(dropped)}
        folder = str(self.folder)
        own = dict.fromkeys(("TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), folder)
        # A smoke downloads nothing, whatever the caller's shell lets others fetch.
        own |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if not self.own_model:
            own["HOME"] = folder
        if config is not None:
            own["LMCACHE_CONFIG_FILE"] = str(config)
        if self.harness:
            own["TORCHDYNAMO_DISABLE"] = "1"
        if self.harness and not self.own_model:
            # Threads that wait for each other cost more than so small a model is worth.
            own |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        return {
            **kept,
            **own,
            "PYTHONPATH": str(self.folder / "code"),
            "PYTHONHASHSEED": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "LMCACHE_TRACK_USAGE": "false",
        }


def _result(path: Path) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def _answers(path: Path) -> tuple[Answer, ...]:
    try:
        lines = path.with_suffix(".answers").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    answers = []
    for line in lines:
        # The last one may be half written.
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            numbers = array("f", b64decode(entry.pop("logprobs")))
            answers.append(Answer(entry["prompt"], numbers, entry))
    return tuple(answers)
