"""The command by which pip installs into an environment, for a hint to name."""

from __future__ import annotations

import shlex
from pathlib import Path


def pip_install(python: Path | str | None, *words: str) -> str:
    """``pip install`` by the interpreter that is meant; by whichever is on PATH where it is None.

    A bare ``pip`` is often another environment's.
    """
    by = ["pip"] if python is None else [str(python), "-m", "pip"]
    return shlex.join([*by, "install", *words])
