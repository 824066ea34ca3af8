"""What an environment's Python would import, where that is certain without starting it.

A child costs as much as all of ``kvpatch lint``. This process knows its own path; a virtual
environment without system packages has one site folder, which its files name. Anything out of the
ordinary is no answer, and the interpreter is asked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from .target_probe import path_lines, survey, survey_folder

# Of the variables that Python reads, those that change nothing about what is imported.
_HARMLESS = frozenset(
    {
        *("PYTHONHASHSEED", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING"),
        *("PYTHONUTF8", "PYTHONFAULTHANDLER", "PYTHONWARNINGS", "PYTHONOPTIMIZE"),
        *("PYTHONSAFEPATH", "PYTHONNOUSERSITE", "PYTHONPYCACHEPREFIX", "PYTHONMALLOC"),
    }
)
# Lines of code in .pth files that hook the import of distutils and of nothing else.
_SETUPTOOLS = re.compile(
    r"import os; var = 'SETUPTOOLS_USE_DISTUTILS'; "
    r"enabled = os\.environ\.get\(var, '(local|stdlib)'\) == 'local'; "
    r"enabled and __import__\('_distutils_hack'\)\.add_shim\(\);\s*"
)
_VIRTUALENV = re.compile(r"import _virtualenv\s*")
_CUSTOMIZE = ("sitecustomize", "usercustomize")
_BINARY = re.compile(r"python(3)\.(\d+)")


@dataclass(frozen=True, eq=False, repr=False)
class Deduced:
    """The packages by name, as :func:`kvpatch.target_probe.survey` describes them.

    ``python`` is the version of the Python, such as ``(3, 11)``; None for a site folder.
    """

    packages: Mapping[str, Any]
    python: tuple[int, int] | None


def deduced(
    python: Path | None, site: Path | None, environ: Mapping[str, str], needs: str
) -> Deduced | None:
    """What is in an environment that has the package ``needs``; None where it must be asked.

    Args:
        python: as for :func:`kvpatch.locate.locate`.
        site: the same.
        environ: environment variables of this process.
        needs: the package that must be there.
    """
    found = None
    if python is not None:
        found = None if site is not None else _of_environment(python, environ)
    elif site is not None:
        found = _of_folder(site)
    elif _is_plain(environ):
        found = Deduced(survey(sys.meta_path, _own_path())["packages"], sys.version_info[:2])
        active = environ.get("VIRTUAL_ENV")
        if needs not in found.packages and active:
            found = _of_environment(Path(active), environ)
    if found is None or needs not in found.packages:
        return None
    # Two distributions that claim one package are an error, which is told elsewhere.
    return None if any(one["rivals"] for one in found.packages.values()) else found


def _is_plain(environ: Mapping[str, str]) -> bool:
    """Whether this interpreter was started with nothing that another start would not have."""
    flags = sys.flags
    user_site = bool(flags.no_user_site) and "PYTHONNOUSERSITE" not in environ
    return not (
        not sys.executable or flags.isolated or flags.ignore_environment or flags.no_site
    ) and (not user_site)


def _own_path() -> list[str]:
    """This process's path without the folder of the script, or the working one, at its head."""
    first = 0 if getattr(sys.flags, "safe_path", False) else 1
    return [entry for entry in sys.path[first:] if entry]


def _of_folder(site: Path) -> Deduced | None:
    folder = site.absolute()
    return Deduced(survey_folder(str(folder))["packages"], None) if folder.is_dir() else None


def _of_environment(python: Path, environ: Mapping[str, str]) -> Deduced | None:
    if any(name.startswith("PYTHON") and name not in _HARMLESS for name in environ):
        return None
    if ".." in python.parts:
        return None
    binary = (python / "bin" / "python" if python.is_dir() else python).absolute()
    prefix = binary.parent.parent
    version = _version(binary, prefix)
    if version is None or binary.parent.name != "bin" or not os.access(binary, os.X_OK):
        return None
    site = prefix / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"
    if not site.is_dir() or _runs_code(site):
        return None
    return Deduced(survey([PathFinder], [str(site), *path_lines(str(site))])["packages"], version)


def _version(binary: Path, prefix: Path) -> tuple[int, int] | None:
    """The version of an ordinary virtual environment's Python; None for any other."""
    told = _settings(prefix / "pyvenv.cfg")
    if told.get("include-system-site-packages", "true").lower() != "false":
        return None
    real = Path(os.path.realpath(binary))
    name = _BINARY.fullmatch(real.name)
    if name is None or os.path.realpath(told.get("home", "")) != str(real.parent):
        return None
    version = (int(name[1]), int(name[2]))
    known = told.get("version") or told.get("version_info") or ""
    library = real.parent.parent / "lib" / real.name
    other = prefix / "lib64"
    ordinary = (
        known.split(".")[:2] == [name[1], name[2]]
        and (library / "os.py").is_file()
        and _is_program(real)
        and not any(library.glob("sitecustomize*"))
        and not (binary.parent / "pyvenv.cfg").exists()
        and (not other.exists() or other.samefile(prefix / "lib"))
    )
    return version if ordinary else None


def _is_program(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(4) == b"\x7fELF"
    except OSError:
        return False


def _settings(file: Path) -> Mapping[str, str]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = [line.partition("=") for line in lines if "=" in line]
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _runs_code(site: Path) -> bool:
    """Whether something in a site folder may change at start what is imported.

    A line that releases of Python read in different ways counts as such.
    """
    try:
        names = os.listdir(site)  # noqa: PTH208 - names alone, of which there are hundreds
        texts = [(site / name).read_bytes().decode() for name in names if name.endswith(".pth")]
    except (OSError, UnicodeDecodeError):
        return True
    hidden = any(name.startswith(".") and name.endswith(".pth") for name in names)
    if hidden or any(name.startswith(_CUSTOMIZE) for name in names):
        return True
    lines = [line for text in texts for line in text.replace("\r\n", "\n").split("\n")]
    return not all(_changes_nothing(site, line) for line in lines)


def _changes_nothing(site: Path, line: str) -> bool:
    """Whether a line of a ``.pth`` file names a plain folder, or nothing, or is a known hook."""
    if line.startswith(("import ", "import\t")):
        known = _VIRTUALENV.fullmatch(line) and (site / "_virtualenv.py").is_file()
        return bool(known or _SETUPTOOLS.fullmatch(line))
    if line != line.lstrip() or not line.replace("\t", " ").isprintable():
        return not line.strip(" \t")
    if not line or line.startswith("#"):
        return True
    folder = os.path.join(site, line.rstrip())  # noqa: PTH118 - as Python does it
    try:
        return not any(name.startswith(_CUSTOMIZE) for name in os.listdir(folder))  # noqa: PTH208
    except FileNotFoundError:
        return True
    except OSError:
        return False
