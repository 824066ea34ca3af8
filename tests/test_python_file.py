from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import kvpatch
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.python_file import given_python, python_of, why_none_in


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


def refused(python: Path) -> KvpatchError:
    with pytest.raises(KvpatchError) as caught:
        given_python(python, os.environ)
    assert (caught.value.code, caught.value.exit_code) == ("bad-python", ExitCode.ENVIRONMENT)
    return caught.value


def script(folder: Path, text: str, name: str = "vllm") -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_an_environment_its_commands_and_its_python_are_one_and_the_same(venv: Path) -> None:
    expected = venv / "bin" / "python"
    for given in (venv, venv / "bin", expected):
        assert given_python(given, os.environ) == expected
    assert python_of(venv.parent) is None


def test_an_environment_whose_python_was_taken_away_can_be_read_without(venv: Path) -> None:
    for name in ("python", "python3"):
        (venv / "bin" / name).unlink()
        (venv / "bin" / name).symlink_to("/opt/gone/bin/python3")
    (site,) = venv.glob("lib/python3*/site-packages")
    for given in (venv, venv / "bin" / "python"):
        error = refused(given)
        assert error.message.startswith(str(given))
        assert "bin/python leads to /opt/gone/bin/python3, which is gone" in error.message
        assert error.hint.endswith(f"have it read without a Python: --site {site}")
    ran = kvpatch("revert", "--python", venv)
    assert ran.code == 4
    assert f"--site {site}" in ran.err


@pytest.mark.parametrize(
    ("text", "started"),
    [
        ("#!/opt/env/bin/python3.11\nimport vllm\n", "/opt/env/bin/python3.11"),
        ("#! /opt/env/bin/python -I\n", "/opt/env/bin/python"),
        ("#!/bin/sh\n'''exec' \"/o p/bin/python\" \"$0\" \"$@\"\n' '''\n", "/o p/bin/python"),
        ("#!/bin/sh\n'''exec' \"/o p\n", ""),
        ("#!/usr/bin/env -S PATH=/x python3\n", ""),
    ],
)
def test_a_script_in_python_is_none_and_names_the_one_it_starts(
    tmp_path: Path, text: str, started: str
) -> None:
    error = refused(script(tmp_path, text))
    assert error.message.endswith("is a script, and no Python")
    assert error.hint.endswith(f"--python {started}" if started else "with --python")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("python3", "#!/usr/bin/env python\n"),
        ("mine", '#!/usr/bin/env bash\nexec python "$@"\n'),
        ("mine", "#!/bin/sh\nexec python\n"),
        ("mine", "#!\n"),
        ("mine", "no script"),
    ],
)
def test_a_shim_may_stand_for_the_python_that_it_starts(
    tmp_path: Path, name: str, text: str
) -> None:
    path = script(tmp_path, text, name)
    assert given_python(path, os.environ) == path


def test_a_python_that_may_be_run_but_not_read_is_one(tmp_path: Path) -> None:
    path = script(tmp_path, "")
    path.chmod(0o111)
    assert given_python(path, os.environ) == path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be someone else")
def test_a_python_that_may_neither_be_read_nor_run_is_of_the_environment() -> None:
    # Below no folder that another user may not enter.
    told = (
        "import os, pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), 'python3');"
        "path.touch(); path.chmod(0); path.parent.chmod(0o755); os.setuid(65534);"
        "import kvpatch.cli; kvpatch.cli.main(['status', '--python', str(path)])"
    )
    source = "import kvpatch.cli, kvpatch.commands_host, kvpatch.verbs, kvpatch.catalogue;" + told
    ran = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (4, ""), ran.stderr
    assert "is not executable" in ran.stderr


def test_why_a_folder_has_none(tmp_path: Path) -> None:
    assert why_none_in(tmp_path)[0] == "is a folder without bin/python"
    assert why_none_in(tmp_path / "gone")[0] == "is not there"
