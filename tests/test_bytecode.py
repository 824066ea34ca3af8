from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest
from kvpatch.bytecode import drop, folders, is_unfit, unchecked
from kvpatch.fsops import Disk

PATH = "vllm/v1/worker.py"


@pytest.mark.parametrize("prefix", [None, "pyc"])
def test_the_folders_are_where_this_interpreter_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str | None
) -> None:
    absolute = str(tmp_path / prefix) if prefix else None
    monkeypatch.setattr(sys, "pycache_prefix", absolute)
    cached = Path(importlib.util.cache_from_source(str(tmp_path / "site" / PATH)))
    assert cached.parent in folders([tmp_path / "site"], PATH, [absolute] if absolute else [])


def test_every_tag_and_level_goes_and_nothing_else_does(tmp_path: Path) -> None:
    real, given, prefix = tmp_path / "real", tmp_path / "given", tmp_path / "pyc"
    real.mkdir()
    given.symlink_to("real")
    (real / "vllm/v1").mkdir(parents=True)
    gone = [
        f"worker.{tag}.{level}pyc".replace("..", ".")
        for tag in ("cpython-39", "cpython-311", "cpython-313t", "pypy311")
        for level in ("", "opt-1.", "opt-2.")
    ]
    kept = ["worker_base.cpython-311.pyc", "workers.cpython-311.pyc", "worker.txt"]
    places = [
        real / "vllm/v1/__pycache__",
        prefix / str(real).lstrip("/") / "vllm/v1",
        prefix / str(given).lstrip("/") / "vllm/v1",
    ]
    for place in places:
        place.mkdir(parents=True)
        for name in gone + kept:
            (place / name).write_bytes(b"")
    assert drop(Disk(), [real, given], PATH, [str(prefix)]) == 3 * len(gone)
    for place in places:
        assert sorted(path.name for path in place.iterdir()) == sorted(kept)


def test_no_cache_folder_is_nothing_to_do(tmp_path: Path) -> None:
    assert drop(Disk(), [tmp_path], PATH, [str(tmp_path / "pyc")]) == 0


@pytest.mark.parametrize(
    ("mode", "made_of", "unfit_there"),
    [
        (PycInvalidationMode.UNCHECKED_HASH, "A = 2\n", True),
        (PycInvalidationMode.UNCHECKED_HASH, "A = 1\n", False),
        (PycInvalidationMode.CHECKED_HASH, "A = 2\n", False),
        (PycInvalidationMode.TIMESTAMP, "A = 2\n", False),
    ],
)
def test_bytecode_is_unfit_where_python_runs_it_in_the_place_of_another_source(
    tmp_path: Path, mode: PycInvalidationMode, made_of: str, unfit_there: bool
) -> None:
    source = tmp_path / "module.py"
    source.write_text(made_of)
    compiled = Path(py_compile.compile(str(source), invalidation_mode=mode))
    source.write_text("A = 1\n")
    os.utime(source, (1, 1))
    found = tuple(
        file
        for file, header in unchecked([tmp_path], "module.py")
        if is_unfit(header, source.read_bytes())
    )
    assert found == ((compiled,) if unfit_there else ())
    ran = subprocess.run(
        [sys.executable, "-c", "import module; print(module.A)"],
        cwd=tmp_path,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == ("2\n" if unfit_there else "1\n")


def test_what_is_no_bytecode_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "__pycache__" / "module.folder.pyc").mkdir(parents=True)
    (tmp_path / "__pycache__" / "module.short.pyc").write_bytes(b"\x01")
    assert tuple(unchecked([tmp_path], "module.py")) == ()
