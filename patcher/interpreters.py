"""Finds the Pythons of this host that can make virtual environments, and asks them things."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .bounded import run

PYTHONS = ("3.11", "3.12", "3.13", "3.10")
ASK_LIMIT_S = 60.0

_DESCRIBE = """
import importlib.util, json, platform, sys, sysconfig
able = all(importlib.util.find_spec(name) for name in ("ensurepip", "venv"))
plain = platform.python_implementation() == "CPython" and sys.maxsize > 2**32
threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps([sys.executable, list(sys.version_info[:2]), able and plain and not threaded]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can make virtual environments."""

    path: Path
    version: str


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would lead Python, pip or uv to another place."""
    dropped = ("PYTHON", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "UV_PYTHON")
    return {name: value for name, value in environ.items() if not name.startswith(dropped)}


def ask(python: Path, code: str) -> object:
    """What code prints as its last line of JSON in that interpreter; None if it fails."""
    try:
        ended = run(
            [python, "-I", "-c", code], limit=ASK_LIMIT_S, env=clean_environment(os.environ)
        )
        return json.loads(ended.output.strip().splitlines()[-1]) if ended.code == 0 else None
    except (OSError, ValueError, IndexError):
        return None


def interpreters(
    search: Sequence[Path], describe: Callable[[Path], object] | None = None
) -> list[Interpreter]:
    """The usable ones among these paths, one a version, in the order of ``PYTHONS``."""
    found: dict[str, Interpreter] = {}
    for path in search:
        said = describe(path) if describe else ask(path, _DESCRIBE)
        if not isinstance(said, list) or len(said) != 3 or not said[2]:
            continue
        version = ".".join(map(str, said[1]))
        if version in PYTHONS and version not in found:
            found[version] = Interpreter(Path(said[0]), version)
    return [found[version] for version in PYTHONS if version in found]


def search_paths(environ: Mapping[str, str]) -> list[Path]:
    """Where a Python may be: PATH, pyenv's versions, this process, uv's."""
    pyenv = Path(environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    folders = [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    paths: list[Path] = []
    for version in PYTHONS:
        paths += [folder / f"python{version}" for folder in folders]
        paths += sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    paths.append(Path(sys.executable))
    uv = shutil.which("uv", path=environ.get("PATH"))
    paths += _known_to_uv(uv) if uv else []
    return [path for path in paths if path.is_file()]


def _known_to_uv(uv: str) -> list[Path]:
    found = []
    for version in PYTHONS:
        query = [uv, "python", "find", "--no-project", "--system", "--offline", "-q", version]
        ended = run(query, limit=ASK_LIMIT_S, env=clean_environment(os.environ))
        if ended.code == 0:
            found += [Path(line) for line in ended.output.splitlines()[-1:]]
    return found
