"""Runs a probe in a child with a time limit, and never waits for one that can't be ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .interpreters import clean_environment

_MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Answer:
    """What a probe told: its facts, or why there are none (``hung`` where it took too long)."""

    facts: Mapping[str, Any] | None
    problem: str = ""
    hung: bool = False


def probe(
    script: str,
    arguments: Sequence[str],
    *,
    limit: float,
    python: Path | None = None,
) -> Answer:
    """Run a script of this package and read the JSON of its last line.

    A process that waits for a dead mount can't be killed. It is left behind, and so is the thread
    that reads from it.

    Args:
        script: its name in this package, without the ending.
        arguments: given to it.
        limit: seconds it may take.
        python: the interpreter; that of this process where None.
    """
    path = Path(__file__).with_name(f"{script}.py")
    argv = [str(python or sys.executable), "-I", str(path), *arguments]
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=clean_environment(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        return Answer(None, f"{argv[0]} can't be started: {error.strerror}")
    output: list[bytes] = []
    stream = child.stdout

    def read() -> None:
        if stream is not None:
            output.append(stream.read(_MOST_BYTES))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(limit)
    if reader.is_alive():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        return Answer(None, f"no answer within {limit:g} s", hung=True)
    try:
        child.wait(limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    lines = b"".join(output).decode("utf-8", "replace").strip().splitlines() or [""]
    try:
        facts = json.loads(lines[-1])
    except ValueError:
        return Answer(None, lines[-1].strip()[:300] or f"it ended with {child.returncode}")
    if not isinstance(facts, dict):
        return Answer(None, "its answer is no object")
    return Answer(facts)
