"""Loading of extensions and libraries, with extensions made by the compiler where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from kvpatch import stack_probe

TORCH = """
__version__ = '2.13.0+cpu'
class cuda:
    is_available = staticmethod(lambda: False)
class version:
    cuda = {cuda!r}
"""
SOURCE = """
#include <Python.h>
{missing}
static struct PyModuleDef about = {{PyModuleDef_HEAD_INIT, "c_ops", 0, -1, 0}};
PyMODINIT_FUNC PyInit_c_ops(void) {{ {call} return PyModule_Create(&about); }}
"""


def _probe(folder: Path, what: str, torch: str = TORCH.format(cuda=None)) -> dict[str, Any]:
    """What the script says as it is run in a target: alone, with a stand-in for torch."""
    (folder / "torch.py").write_text(torch)
    done = subprocess.run(
        [sys.executable, "-B", stack_probe.__file__, what, str(folder)],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _extension(folder: Path, name: str = "c_ops") -> Path:
    """Where LMCache has its extension of that name."""
    path = folder / "lmcache" / f"{name}{EXTENSION_SUFFIXES[0]}"
    path.parent.mkdir(exist_ok=True)
    return path


def _build(path: Path, missing: str = "", call: str = "") -> None:
    compiler = shutil.which("cc")
    headers = Path(sysconfig.get_path("include"))
    if compiler is None or not (headers / "Python.h").exists():
        pytest.skip("there is no C compiler here, or no Python.h")
    source = path.with_suffix(".c")
    source.write_text(SOURCE.format(missing=missing, call=call))
    flags = [
        "-shared",
        "-fPIC",
        f"-I{headers}",
        "-Wl,-z,lazy",
        "-Wl,--unresolved-symbols=ignore-all",
    ]
    subprocess.run([compiler, *flags, "-o", path, source], check=True)


def test_a_pure_lmcache_has_no_extension(tmp_path: Path) -> None:
    (tmp_path / "lmcache").mkdir()
    (tmp_path / "lmcache" / "c_ops.py").write_text("")
    assert _probe(tmp_path, "extension") == {"there": False}


def test_an_extension_that_fits_is_loaded_after_torch(tmp_path: Path) -> None:
    path = _extension(tmp_path)
    # It looks for torch, as one that is linked to torch's libraries does.
    _build(path, call='if (!PyDict_GetItemString(PyImport_GetModuleDict(), "torch")) return 0;')
    found = _probe(tmp_path, "extension")
    # Whether this host has a GPU is no matter of the extension.
    assert isinstance(found.pop("gpu"), bool)
    assert found == {
        "there": True,
        "file": path.name,
        "torch": "2.13.0+cpu",
        "cuda": False,
        "built_for_gpu": False,
    }


@pytest.mark.parametrize(("cuda", "built"), [("12.8", True), (None, False)])
def test_what_torch_is_built_for_is_told_apart_from_what_it_finds(
    tmp_path: Path, cuda: str | None, built: bool
) -> None:
    _extension(tmp_path).write_bytes(b"")
    found = _probe(tmp_path, "extension", TORCH.format(cuda=cuda))
    assert (found["built_for_gpu"], found["cuda"]) == (built, False)


def test_an_extension_of_another_torch_does_not_load_and_says_why(tmp_path: Path) -> None:
    _build(_extension(tmp_path), "extern int of_another_torch;", "if (of_another_torch) return 0;")
    found = _probe(tmp_path, "extension")
    assert "undefined symbol: of_another_torch" in found["problem"]


@pytest.mark.parametrize("name", stack_probe.EXTENSIONS)
def test_a_file_that_is_no_library_is_a_problem_of_one_line(tmp_path: Path, name: str) -> None:
    _extension(tmp_path, name).write_bytes(b"not a library")
    found = _probe(tmp_path, "extension")
    assert found["there"] is True
    assert found["file"].startswith(f"{name}.")
    assert found["problem"]
    assert "\n" not in found["problem"]


def test_a_torch_that_does_not_load_is_told_apart_from_the_extension(tmp_path: Path) -> None:
    _extension(tmp_path).write_bytes(b"")
    torch = "raise OSError('libcudart.so.12: cannot open\\nmore')\n"
    found = _probe(tmp_path, "extension", torch)
    assert found["torch_problem"] == "libcudart.so.12: cannot open"
    assert not {"cuda", "problem"} & set(found)


def test_libcufile_of_a_wheel_is_found_and_what_the_loader_lacks_is_said(tmp_path: Path) -> None:
    wheel = tmp_path / "nvidia" / "cufile" / "lib"
    wheel.mkdir(parents=True)
    for name in ("libcufile.so.0", "libcufile_rdma.so.1"):
        (wheel / name).write_bytes(b"")
    found = _probe(tmp_path, "cufile")
    assert found["wheels"] == [str(wheel / "libcufile.so.0")]
    assert set(found["loads"]) == {"libcufile.so", "libcufile.so.0"}
    assert found["module"] is False


def test_the_module_cufile_is_seen_where_it_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "cufile.py").write_text("raise RuntimeError('looked for, and never imported')\n")
    assert _probe(tmp_path, "cufile")["module"] is True


def test_a_library_that_the_loader_has_is_ok_and_another_is_its_words() -> None:
    assert stack_probe.loaded("libc.so.6") == "ok"
    assert "libnone-of-kvpatch.so" in stack_probe.loaded("libnone-of-kvpatch.so")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\nsecond"), "first"),
        (KeyError(), "KeyError"),
        (OSError("x" * 400), "x" * 300),
    ],
)
def test_an_error_is_one_line_that_says_something(error: Exception, line: str) -> None:
    assert stack_probe.one_line(error) == line


def test_the_version_of_torch_is_told_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert stack_probe.installed()["torch"] is None
    info = tmp_path / "torch-2.13.0+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: torch\nVersion: 2.13.0+cpu\n")
    assert stack_probe.installed()["torch"] == "2.13.0+cpu"


def test_what_is_installed_is_told_by_its_names_and_modules_are_looked_for_alone() -> None:
    asked = ["installed", "json", "kvpatch_nowhere", "pytest", "kvpatch_nowhere.deep", "__main__"]
    done = subprocess.run(
        [sys.executable, "-I", stack_probe.__file__, *asked],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["missing"] == ["kvpatch_nowhere", "kvpatch_nowhere.deep", "__main__"]
    assert {"pytest", "kvpatch"} <= set(found["distributions"])
    assert found["environment"]["python_version"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
