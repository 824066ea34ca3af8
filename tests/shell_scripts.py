"""Scripts run by bash itself, with a program named vllm that says what it was given."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SAYS = """#!/bin/bash
printf "%s\\0" "$PWD" "${LMCACHE_CONFIG_FILE-unset}" "$@" >> "$SAID"
printf "\\n\\0" >> "$SAID"
"""


@dataclass(frozen=True)
class Started:
    """One start of the program: its folder, a variable, its arguments."""

    folder: str
    config_file: str
    args: tuple[str, ...]


def run_by_bash(text: str, folder: Path, *args: str) -> list[Started]:
    """What a script starts, in its order; it stands in ``folder`` and is started there."""
    programs, said = folder / "programs", folder / "said"
    programs.mkdir(exist_ok=True)
    (programs / "vllm").write_text(_SAYS)
    (programs / "vllm").chmod(0o755)
    said.write_text("")
    script = folder / "start.sh"
    script.write_text(text)
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "SAID": str(said), "HOME": str(folder)}
    subprocess.run(
        ["bash", script, *args],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
    )
    starts = [one.split("\0") for one in said.read_text().split("\n\0") if one]
    return [Started(one[0], one[1], tuple(one[2:-1])) for one in starts]
