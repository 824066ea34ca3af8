"""Smokes the oldest pair that blends on a CPU: as released, and patched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvpatch.outcome import KvpatchError
from kvpatch.stack import default_cache, ensure

PAIR = ("0.11.0", "0.3.9.post2")


def main() -> int:
    """Make or find the environment, then smoke it; 0 where each step ends as it should."""
    try:
        python = str(ensure(*PAIR, cache=default_cache(), say=_say).python)
    except KvpatchError as error:
        print(f"{error.message}\n{error.hint}", flush=True)
        return int(error.exit_code)
    kvpatch = str(Path(sys.executable).parent / "kvpatch")
    steps = (
        (1, "as released, it can't blend", ["smoke", "--device", "cpu"]),
        (0, "patched, it blends", ["apply", "--smoke"]),
    )
    wrong = 0
    try:
        for expected, what, verb in steps:
            _say(f"== {what}: kvpatch {' '.join(verb)}")
            code = subprocess.run([kvpatch, *verb, "--python", python], check=False).returncode
            _say(f"== exit {code}, {expected} is right")
            wrong += code != expected
    finally:
        subprocess.run([kvpatch, "revert", "--python", python], check=False)
    return 1 if wrong else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
