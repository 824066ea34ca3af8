from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvpatch import smoke_originals


def _run(folder: Path, code: str) -> str:
    path = Path(smoke_originals.__file__).parent
    head = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(path)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, check=True
    )
    return done.stdout


def _package(folder: Path) -> Path:
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text("")
    (folder / "vllm" / "worker.py").write_text("class Worker:\n    word = 'patched'\n")
    (folder / "vllm" / "cpu.py").write_text(
        "from vllm.worker import Worker\nclass Cpu(Worker):\n    pass\n"
    )
    (folder / "vllm" / "other.py").write_text("kept = object()\n")
    original = folder / "original.py"
    original.write_text("class Worker:\n    word = 'original'\n")
    return original


def test_a_module_and_what_holds_its_classes_come_from_the_original(tmp_path: Path) -> None:
    original = _package(tmp_path)
    code = (
        "import vllm.cpu, vllm.other, smoke_originals\n"
        "before, kept = vllm.cpu.Cpu.word, vllm.other.kept\n"
        f"gone = smoke_originals.put_back({{'vllm.worker': {str(original)!r}}})\n"
        "import vllm.cpu, vllm.other\n"
        "print(before, vllm.cpu.Cpu.word, gone, vllm.other.kept is kept)"
    )
    assert _run(tmp_path, code) == "patched original ['vllm.cpu', 'vllm.worker'] True\n"


def test_the_file_on_the_disk_stays_as_it_is(tmp_path: Path) -> None:
    original = _package(tmp_path)
    before = (tmp_path / "vllm" / "worker.py").read_bytes()
    code = (
        "import smoke_originals\n"
        f"smoke_originals.put_back({{'vllm.worker': {str(original)!r}}})\n"
        "import vllm.worker; print(vllm.worker.Worker.word)"
    )
    assert _run(tmp_path, code) == "original\n"
    assert (tmp_path / "vllm" / "worker.py").read_bytes() == before
