"""Finds vLLM, LMCache and flashinfer in the environment of a Python, or in a site folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .links import FileFacts as FileFacts
from .links import LinkKind as LinkKind
from .links import file_facts as file_facts
from .links import symlinked_folder as symlinked_folder
from .outcome import ExitCode, KvpatchError
from .python_file import given_python, no_python, python_of, why_none_in
from .record import Record
from .target import Interpreter as Interpreter
from .target import compile_for_target as compile_for_target
from .target import compile_in_target as compile_in_target
from .target import survey_target
from .target_probe import survey_folder

PATCHED_PACKAGES = ("vllm", "lmcache")
_TITLES = {"vllm": "vLLM", "lmcache": "LMCache", "flashinfer": "flashinfer"}


@dataclass(frozen=True)
class Installed:
    """One package as the target would import it.

    ``site`` is the folder that holds the package, as it stands on the path. ``dist_info`` is None,
    and ``version`` taken from the sources, where no installed distribution carries the package.
    ``shadowed`` are the folders of further installs that are hidden by this one.
    """

    package: str
    distribution: str
    version: str
    site: Path
    dist_info: Path | None
    editable: bool
    editable_location: str | None
    shadowed: tuple[Path, ...]

    def record(self) -> Record:
        """The distribution's RECORD; without hashes where it does not speak of this package."""
        if self.dist_info is not None and self.dist_info.parent != self.site:
            return Record(problem=f"{self.distribution} is an editable install")
        return Record.load(self.dist_info)


@dataclass(frozen=True)
class Environment:
    """The packages of one target, by name of the package; one that is missing has no key."""

    interpreter: Interpreter | None
    packages: Mapping[str, Installed]


def locate(
    python: Path | None = None,
    site: Path | None = None,
    *,
    timeout: float = 20.0,
    environ: Mapping[str, str] | None = None,
    needs: str | None = "vllm",
) -> Environment:
    """Finds the packages in a target environment without importing them.

    Args:
        python: an interpreter, or the folder of a virtual environment.
        site: a site folder to read without any interpreter. Neither: this environment if vLLM is
            there, else ``$VIRTUAL_ENV``, else ``python3`` on PATH.
        timeout: seconds an interpreter may take to answer.
        environ: environment variables; those of this process where None.
        needs: the package that must be there; None takes what there is.

    Raises:
        KvpatchError: ``two-targets`` (exit 2); ``bad-python``, ``python-timeout``, ``bad-site``,
            ``no-vllm`` or ``no-lmcache`` (exit 4); ``two-distributions`` (exit 3).
    """
    variables = os.environ if environ is None else environ
    if python is not None and site is not None:
        raise KvpatchError(
            "two-targets",
            "--python and --site both name a target",
            "give one of the two",
            ExitCode.USAGE,
        )
    if site is not None:
        return _from_site(site, needs)
    if python is not None:
        return _from_python(given_python(python, variables), timeout, variables, needs)
    return _from_defaults(timeout, variables, needs)


def _from_site(site: Path, needs: str | None) -> Environment:
    folder = site.absolute()
    if not folder.is_dir():
        raise KvpatchError(
            "bad-site",
            f"{folder} is not a folder",
            "give the site-packages folder that holds vllm",
            ExitCode.ENVIRONMENT,
        )
    answer = survey_folder(str(folder))
    if needs and needs not in answer["packages"]:
        raise _not_there(needs, str(folder), answer, _better_site(folder, needs))
    return Environment(None, _packages(answer))


def _better_site(folder: Path, package: str) -> str:
    hint = "give the site-packages folder itself, the one that holds the package"
    inits = [folder / "__init__.py"] if folder.name == package else []
    inits += sorted(folder.glob(f"lib*/python3*/*-packages/{package}/__init__.py"))
    return f"{hint}: --site {inits[0].parents[1]}" if inits and inits[0].is_file() else hint


def _from_python(
    python: Path, timeout: float, variables: Mapping[str, str], needs: str | None
) -> Environment:
    interpreter, answer = survey_target(python, timeout=timeout, environ=variables)
    if needs and needs not in answer["packages"]:
        real = answer.get("executable") or str(python)
        where = str(python) if real == str(python) else f"{python} (that is {real})"
        raise _not_there(needs, where, answer, "name another one with --python or --site")
    return Environment(interpreter, _packages(answer))


def _from_defaults(timeout: float, variables: Mapping[str, str], needs: str | None) -> Environment:
    failures: list[KvpatchError] = []
    asked: set[Path] = set()
    for python in _candidates(variables, needs):
        if python in asked:
            continue
        asked.add(python)
        try:
            return _from_python(python, timeout, variables, needs)
        except KvpatchError as error:
            if error.exit_code is not ExitCode.ENVIRONMENT:
                raise
            failures.append(error)
    if failures:
        # The last one is where the search ends; the others are only worth naming.
        chosen = failures[-1]
        before = "".join(f"; {error.message}" for error in failures[:-1])
        raise KvpatchError(chosen.code, chosen.message + before, chosen.hint, chosen.exit_code)
    raise KvpatchError(
        f"no-{needs or 'python'}",
        f"no {_title(needs)} beside kvpatch, no $VIRTUAL_ENV, and no python3 on PATH",
        "name the environment with --python or --site",
        ExitCode.ENVIRONMENT,
    )


def _candidates(variables: Mapping[str, str], needs: str | None) -> Iterator[Path]:
    """The interpreters to ask, in order; this one only if a look without a child finds vLLM.

    Raises:
        KvpatchError: ``bad-python`` where ``$VIRTUAL_ENV`` names an environment without a Python.
    """
    if sys.executable and _importable_here(needs or "vllm"):
        yield Path(sys.executable)
    active = variables.get("VIRTUAL_ENV")
    if active:
        inside = python_of(Path(active))
        if inside is None:
            # Whoever activated it does not mean the next Python on PATH.
            what, hint = why_none_in(Path(active))
            hint = f"run `deactivate`, or {hint}"
            raise no_python(f"{active}, which is $VIRTUAL_ENV,", what, hint)
        yield inside
    import shutil

    found = shutil.which("python3", path=variables.get("PATH"))
    if found is not None:
        yield Path(found).absolute()


def _importable_here(package: str) -> bool:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(package, None)
        except Exception:  # noqa: S112 - someone else's import hook
            continue
        if spec is not None:
            return spec.origin is not None
    return False


def _not_there(package: str, where: str, answer: Mapping[str, Any], hint: str) -> KvpatchError:
    remains = answer["leftovers"].get(package, ())
    left = (
        f"; {remains[0]} is a folder without __init__.py, no {_title(package)}" if remains else ""
    )
    return KvpatchError(
        f"no-{package}", f"no {_title(package)} in {where}{left}", hint, ExitCode.ENVIRONMENT
    )


def _title(package: str | None) -> str:
    return _TITLES.get(package or "vllm", str(package))


def _packages(answer: Mapping[str, Any]) -> dict[str, Installed]:
    packages = {}
    for name, facts in answer["packages"].items():
        if facts["rivals"] and name in PATCHED_PACKAGES:
            raise KvpatchError(
                "two-distributions",
                f"{' and '.join(facts['rivals'])} both claim {facts['site']}/{name}, "
                "and its files don't tell which of them they are",
                "uninstall both, then install the one you want",
                ExitCode.REFUSED,
            )
        packages[name] = Installed(
            package=name,
            distribution=facts["distribution"],
            version=facts["version"],
            site=Path(facts["site"]),
            dist_info=Path(facts["dist_info"]) if facts["dist_info"] else None,
            editable=facts["editable"],
            editable_location=facts["editable_location"],
            shadowed=tuple(Path(entry) for entry in facts["shadowed"]),
        )
    return packages
