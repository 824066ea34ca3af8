from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvpatch import smoke_imports


def _run(folder: Path, code: str) -> str:
    path = Path(smoke_imports.__file__).parent
    head = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(path)!r}]\nimport smoke_imports\n"
    done = subprocess.run(
        [sys.executable, "-c", head + code], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_call_comes_once_the_module_is_whole(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("print('executed')\nvalue = 1\n")
    code = (
        "smoke_imports.after_import('late', lambda module: print('called', module.value))\n"
        "print('before')\nimport late\nimport late"
    )
    assert _run(tmp_path, code) == "before\nexecuted\ncalled 1\n"


def test_a_module_that_is_there_already_is_called_at_once(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("value = 1\n")
    code = "import early\nsmoke_imports.after_import('early', lambda m: print(m.value))"
    assert _run(tmp_path, code) == "1\n"


def test_two_may_wait_for_the_same_module(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("")
    code = (
        "for word in ('one', 'two'):\n"
        "    smoke_imports.after_import('late', lambda _, word=word: print(word))\n"
        "import late"
    )
    assert sorted(_run(tmp_path, code).split()) == ["one", "two"]


def test_a_module_that_is_nowhere_is_missing_as_ever(tmp_path: Path) -> None:
    code = (
        "smoke_imports.after_import('nowhere', print)\n"
        "try:\n    import nowhere\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    )
    assert _run(tmp_path, code) == "nowhere\n"
