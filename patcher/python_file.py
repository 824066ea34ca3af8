"""The file of an interpreter: found in an environment, and told from what only looks like one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .outcome import ExitCode, KvpatchError


def given_python(python: Path, variables: Mapping[str, str]) -> Path:
    """The interpreter that ``--python`` names: itself, its environment, or a name on PATH.

    Args:
        python: what was given.
        variables: the environment variables.

    Raises:
        KvpatchError: ``bad-python``, exit 4.
    """
    if python.is_dir():
        inside = python_of(python)
        if inside is None:
            raise no_python(str(python), *why_none_in(python))
        return inside
    if not python.exists() and len(python.parts) == 1:
        import shutil

        found = shutil.which(str(python), path=variables.get("PATH"))
        if found is not None:
            return Path(found).absolute()
    if not python.exists():
        if python.is_symlink() and python.parent.name == "bin":
            raise no_python(str(python), *_gone(python))
        raise no_python(
            str(python), "leads nowhere" if python.is_symlink() else "is not there", NAME_IT
        )
    if not os.access(python, os.X_OK):
        raise no_python(str(python), "is not executable", NAME_IT)
    started = _started_by(python)
    if started is not None:
        hint = f"name the Python that it starts: --python {started}" if started else NAME_IT
        raise no_python(str(python), "is a script, and no Python", hint)
    return python.absolute()


_NAMES = ("python", "python3")


def python_of(folder: Path) -> Path | None:
    """The interpreter of an environment, or of its folder of commands; None where none is."""
    for place in (folder / "bin", *([folder] if folder.name == "bin" else [])):
        for name in _NAMES:
            if (place / name).exists():
                return (place / name).absolute()
    return None


def why_none_in(folder: Path) -> tuple[str, str]:
    """Why a folder has no Python, to follow its path, and what to do."""
    for name in _NAMES:
        if (folder / "bin" / name).is_symlink():
            what, hint = _gone(folder / "bin" / name)
            return f"has no Python: its bin/{name} {what}", hint
    if not folder.is_dir():
        return "is not there", NAME_IT
    return "is a folder without bin/python", NAME_IT


def _gone(link: Path) -> tuple[str, str]:
    """The same for a link to a Python that was taken away from below its environment."""
    sites = sorted(link.absolute().parent.parent.glob("lib*/python3*/*-packages"))
    site = f"--site {sites[0]}" if sites else "--site"
    return (
        f"leads to {link.readlink()}, which is gone",
        f"make that environment anew, or have it read without a Python: {site}",
    )


def _started_by(file: Path) -> str | None:
    """The Python that a script in Python names in its first line; None where it is no such script.

    One that is called python may be a shim, which stands for the Python that it starts.
    """
    if file.name.startswith(("python", "pypy")):
        return None
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            head = opened.read(1024)
    except OSError:
        return None
    lines = os.fsdecode(head).split("\n")
    words = lines[0].removeprefix("#!").split()
    if not head.startswith(b"#!") or not words:
        return None
    if len(lines) > 1 and lines[1].startswith("'''exec' "):
        # What pip and uv write where the path is too long for a first line, or has blanks.
        import shlex

        try:
            words = shlex.split(lines[1].removeprefix("'''exec' "))
        except ValueError:
            return ""
    by_env = words[0].rpartition("/")[2] == "env"
    if by_env:
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if not words or not words[0].rpartition("/")[2].startswith(("python", "pypy")):
        return None
    return "" if by_env else words[0]


NAME_IT = "name the Python of the environment that has vLLM with --python"


def no_python(python: str, what: str, hint: str) -> KvpatchError:
    """The error for what is no Python that can be asked."""
    return KvpatchError("bad-python", f"{python} {what}", hint, ExitCode.ENVIRONMENT)
