"""Requirements that are not met at all, and those that LMCache can't be imported without."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kvpatch.contract import ADAPTER
from kvpatch.dependencies import dependencies_check, look
from kvpatch.diagnosis import Check, State
from kvpatch.needs import Failure
from kvpatch.pair_checks import distributions
from kvpatch.probe import Answer
from kvpatch.tree import FolderTree, Package
from packaging.version import Version

ENVIRONMENT = {"python_version": "3.11", "python_full_version": "3.11.7"}
ASKED = {
    "lmcache": ("0.5.6", ("There.One>=1", "gone<2,>=1", "fast; extra == 'speed'")),
    "vllm": ("0.32.0", ("old; python_version < '3.11'", "torchvision", "not a name!")),
}


PYTHON = Path("/srv/v llm/bin/python")
INSTALL = "'/srv/v llm/bin/python' -m pip install"


def answer(*there: str, missing: tuple[str, ...] = (), torch: str | None = "2.13.0") -> Answer:
    facts = {"distributions": there, "missing": list(missing), "environment": ENVIRONMENT}
    return Answer({**facts, "torch": torch})


def stops(module: str) -> Failure | None:
    return Failure("lmcache/a.py", 7, module, "", "") if module == "gone" else None


def test_what_is_asked_for_and_not_there_is_a_warning_while_lmcache_is_imported_without() -> None:
    row = dependencies_check(answer("there-one", missing=("optional",)), ASKED, stops, PYTHON)
    assert row.state is State.WARN
    assert "lmcache asks for what is not installed: gone; vllm asks for" in row.reason
    # Without the pin pip takes the torch that the newest torchvision was built for.
    assert row.todo.endswith(f": {INSTALL} 'gone<2,>=1' torchvision torch==2.13.0")
    whole = dependencies_check(answer("there_one", "Gone", "torchvision"), ASKED, stops, PYTHON)
    assert (whole.state, whole.todo) == (State.OK, "")


def test_what_lmcache_cant_be_imported_without_is_a_failure_with_the_line_that_mends_it() -> None:
    row = dependencies_check(answer("there-one", missing=("odd", "gone")), ASKED, stops, PYTHON)
    assert row.state is State.FAIL
    assert "lmcache/a.py:7 imports gone, which is not there; lmcache asks for" in row.reason
    assert row.todo == f"{INSTALL} 'gone<2,>=1' torch==2.13.0"
    alone = dependencies_check(answer(missing=("gone",), torch=None), {}, stops, PYTHON)
    assert (alone.state, alone.todo) == (State.FAIL, f"{INSTALL} gone")


def test_the_cpus_torch_is_kept_and_what_does_not_load_beside_it_is_not_to_be_installed() -> None:
    def row(*there: str) -> Check:
        return dependencies_check(answer(*there, torch="2.13.0+cpu"), ASKED, stops, PYTHON)

    assert row("there-one").todo.endswith(f"{INSTALL} 'gone<2,>=1' torch==2.13.0+cpu")
    assert "torchvision" not in row("there-one").reason
    whole = row("there-one", "gone")
    assert (whole.state, whole.todo) == (State.OK, "")
    assert "does without: torchvision" in whole.reason


def test_a_target_that_does_not_answer_is_not_checked() -> None:
    row = dependencies_check(Answer(None, "no"), ASKED, stops, PYTHON)
    assert row.state is State.NOT_CHECKED


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment of its own, so that what is missing there is known."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    return tmp_path / "env" / "bin" / "python"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("from kvpatch_nowhere.x import y\n", State.FAIL),
        ("try:\n    import kvpatch_nowhere\nexcept ImportError:\n    pass\n", State.WARN),
        ("import json\n", State.WARN),
    ],
)
def test_the_target_itself_says_what_is_there_and_the_text_what_it_is_for(
    python: Path, text: str, state: State
) -> None:
    site = next((python.parent.parent / "lib").glob("python*/site-packages"))
    adapter = site / f"{ADAPTER.replace('.', '/')}.py"
    adapter.parent.mkdir(parents=True)
    for folder in (adapter.parent, adapter.parent.parent, site / "lmcache"):
        (folder / "__init__.py").write_text("")
    (site / "lmcache" / "used.py").write_text(text)
    adapter.write_text("import lmcache.used\n")
    for name, line in (("lmcache", "Requires-Dist: kvpatch-nowhere>=2\n"), ("there", "")):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n{line}")
    files = {str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*.py")}
    tree = FolderTree({"lmcache": Package("lmcache", Version("1.0"))}, files)
    row = look(tree, python, distributions(site))
    assert row.state is state
    assert "kvpatch-nowhere" in row.reason
    assert f"{python} -m pip install 'kvpatch-nowhere>=2'" in row.todo
    loads = subprocess.run([python, "-c", f"import {ADAPTER}"], capture_output=True, check=False)
    assert (loads.returncode == 0) is (state is State.WARN)
    shutil.rmtree(site / "lmcache-1.0.dist-info")
    found = look(tree, python, distributions(site))
    assert found.state is (State.FAIL if state is State.FAIL else State.OK)
