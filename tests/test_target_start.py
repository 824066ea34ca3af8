from __future__ import annotations

import ast
import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvpatch import target_probe


def _pythons() -> dict[str, str]:
    found = {"own": sys.executable}
    for minor in range(9, 15):
        managed = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python"))
        path = str(managed[-1]) if managed else shutil.which(f"python3.{minor}")
        if path is not None:
            found[f"3.{minor}"] = path
    return found


PYTHONS = _pythons()


def _run(python: str, mode: str, data: bytes = b"", script: Path | None = None) -> Any:
    script = script or Path(target_probe.__file__).resolve().with_name("target_start.py")
    command = [python, "-B", str(script), mode, "@@mark "]
    done = subprocess.run(command, input=data, capture_output=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr.decode()
    return ast.literal_eval(done.stdout.partition(b"@@mark ")[2].decode())


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
def test_the_script_answers_on_every_python_at_hand(python: str) -> None:
    answer = _run(python, "locate")
    asked = "import sys; print(sys.version_info[:3], sys.implementation.cache_tag, sys.prefix)"
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    expected = f"{tuple(answer['version'])} {answer['cache_tag']} {answer['prefix']}\n"
    assert told.stdout == expected


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
def test_every_python_at_hand_compiles_without_executing(python: str, tmp_path: Path) -> None:
    sources = {
        "runs.py": f"open({str(tmp_path / 'made')!r}, 'w')\n".encode(),
        "bad.py": b"x = 1\ndef f(:\n    pass\n",
        "null.py": b"x = 1\0\n",
        "latin.py": b"# -*- coding: latin-1 -*-\nx = '\xe4'\n",
        "wrong.py": b"x = '\xe4'\n",
        "warns.py": b"x = '\\d'\nassert (1, 2)\n",
    }
    request = [
        {"path": path, "source_base64": base64.b64encode(source).decode()}
        for path, source in sources.items()
    ]
    errors = _run(python, "compile", json.dumps(request).encode())["errors"]
    assert set(errors) == {"bad.py", "null.py", "wrong.py"}
    assert errors["bad.py"].startswith("line 2: ")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS.keys())
def test_files_beside_the_script_hide_no_library_module(python: str, tmp_path: Path) -> None:
    beside = Path(target_probe.__file__).parent
    script = tmp_path / "target_start.py"
    for name in (script.name, "target_probe.py"):
        (tmp_path / name).write_text((beside / name).read_text())
    for name in ("json", "re", "os", "vllm", "typing", "__future__", "ast", "base64"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    assert _run(python, "locate", script=script)["packages"] == {}


@pytest.mark.parametrize("name", ["target_probe.py", "target_start.py"])
def test_the_script_keeps_to_the_syntax_of_python_3_9(name: str) -> None:
    script = Path(target_probe.__file__).with_name(name)
    ast.parse(script.read_text(), feature_version=(3, 9))


def test_the_script_imports_the_standard_library_alone() -> None:
    tree = ast.parse(Path(target_probe.__file__).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(str(node.module).split(".")[0])
    assert names <= {*sys.stdlib_module_names, "__future__"}
