"""Runs the unit tests on Python 3.10 to 3.13, found on PATH, in pyenv, or fetched by uv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
CHECKOUT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Run them all; a Python that can't be had is a failure."""
    failed = []
    for version in VERSIONS:
        python = find(version)
        if python is None:
            print(f"== Python {version}: nowhere here, and uv can't fetch it", flush=True)
            failed.append(version)
            continue
        print(f"== Python {version}: {python}", flush=True)
        if not run(version, python):
            failed.append(version)
    if failed:
        print(f"failed on Python {', '.join(failed)}", flush=True)
        return 1
    print(f"the unit tests pass on Python {', '.join(VERSIONS)}", flush=True)
    return 0


def find(version: str) -> Path | None:
    """The interpreter of that version, fetched by uv where the host has none."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [found] if (found := shutil.which(f"python{version}")) else []
    candidates += [str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"))]
    candidates += [f"/usr/bin/python{version}"]
    for candidate in candidates:
        if _is(candidate, version):
            return Path(candidate)
    uv = str(Path(sys.executable).parent / "uv")
    subprocess.run([uv, "python", "install", "--quiet", version], check=False)
    answer = subprocess.run(
        [uv, "python", "find", "--managed-python", version],
        check=False,
        capture_output=True,
        text=True,
    )
    found = answer.stdout.strip()
    return Path(found) if found and _is(found, version) else None


def run(version: str, python: Path) -> bool:
    """Install kvpatch with that interpreter and run the unit tests."""
    venv = CHECKOUT / f".venv-{version}"
    uv = str(Path(sys.executable).parent / "uv")
    inside = str(venv / "bin" / "python")
    fresh = ["--reinstall-package", "kvpatch"]
    commands = [
        [uv, "venv", "--quiet", "--allow-existing", "--python", str(python), str(venv)],
        [uv, "pip", "install", "--quiet", "--python", inside, *fresh, f"{CHECKOUT}[test]"],
        [
            inside,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            "-m",
            "not releases and not installers and not tensors and not stack",
        ],
    ]
    environ = {**os.environ, "KVPATCH_TESTS_WITHOUT_TORCH": "1"}
    return all(
        subprocess.run(command, cwd=CHECKOUT, check=False, env=environ).returncode == 0
        for command in commands
    )


def _is(candidate: str, version: str) -> bool:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [candidate, "-c", code], check=False, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


if __name__ == "__main__":
    sys.exit(main())
