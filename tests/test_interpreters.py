from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kvpatch.interpreters import Interpreter, ask, clean_environment, interpreters, search_paths


def _describe(table: dict[str, object]):
    return lambda path: table.get(str(path))


def test_the_preferred_version_comes_first_whatever_the_order_found() -> None:
    table = {"/a": ["/a", [3, 13], True], "/b": ["/b", [3, 11], True], "/c": ["/c", [3, 10], True]}
    found = interpreters([Path(name) for name in table], _describe(table))
    assert [one.version for one in found] == ["3.11", "3.13", "3.10"]


def test_the_first_of_two_with_one_version_is_taken() -> None:
    table = {"/first": ["/real", [3, 12], True], "/second": ["/second", [3, 12], True]}
    found = interpreters([Path(name) for name in table], _describe(table))
    assert found == [Interpreter(Path("/real"), "3.12")]


@pytest.mark.parametrize(
    "said", [None, "text", ["/a", [3, 11]], ["/a", [3, 11], False], ["/a", [3, 9], True]]
)
def test_a_python_that_is_broken_bare_or_of_another_version_is_passed_over(said: object) -> None:
    assert interpreters([Path("/a")], _describe({"/a": said})) == []


def test_this_interpreter_describes_itself() -> None:
    found = interpreters([Path(sys.executable)])
    assert [one.version for one in found] == [f"{sys.version_info[0]}.{sys.version_info[1]}"]
    assert found[0].path.is_file()


def test_path_pyenv_and_this_process_are_searched(tmp_path: Path) -> None:
    on_path, pyenv = tmp_path / "bin", tmp_path / "pyenv"
    for python in (on_path / "python3.12", pyenv / "versions" / "3.10.2" / "bin" / "python"):
        python.parent.mkdir(parents=True)
        python.touch()
    found = search_paths({"PATH": str(on_path), "PYENV_ROOT": str(pyenv)})
    assert found == [
        on_path / "python3.12",
        pyenv / "versions" / "3.10.2" / "bin" / "python",
        Path(sys.executable),
    ]


def test_what_would_lead_python_elsewhere_is_dropped_and_the_index_kept() -> None:
    given = {"PYTHONPATH": "/x", "VIRTUAL_ENV": "/v", "PIP_TARGET": "/t", "PIP_INDEX_URL": "u"}
    assert clean_environment({**given, "PATH": "/bin"}) == {"PIP_INDEX_URL": "u", "PATH": "/bin"}


def test_asking_takes_the_last_line_and_not_the_noise_before_it() -> None:
    assert ask(Path(sys.executable), "print('noise'); print('[1, 2]')") == [1, 2]


@pytest.mark.parametrize("code", ["1/0", "print('no json')", "pass"])
def test_asking_in_vain_is_none(code: str) -> None:
    assert ask(Path(sys.executable), code) is None


def test_asking_what_is_no_interpreter_is_none(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("no program")
    assert ask(tmp_path / "python", "print(1)") is None
    assert ask(tmp_path / "absent", "print(1)") is None
