"""Probes in a child: an answer, no answer, or one that never comes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kvpatch import probe as module
from kvpatch.probe import probe


def script(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own.py").write_text(text)
    monkeypatch.setattr(module, "__file__", str(folder / "probe.py"))


def test_the_last_line_is_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(
        tmp_path, "import sys\nprint('noise')\nprint('{\"a\": \"%s\"}' % sys.argv[1])", monkeypatch
    )
    assert probe("own", ["x"], limit=20).facts == {"a": "x"}


@pytest.mark.parametrize(
    "text", ["", "print('words')", "print('[1]')", "raise SystemExit('gone')", "import nowhere"]
)
def test_what_is_no_answer_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    script(tmp_path, text, monkeypatch)
    found = probe("own", [], limit=20)
    assert found.facts is None
    assert found.problem
    assert not found.hung


def test_one_that_hangs_is_left_after_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path, "import time\ntime.sleep(600)", monkeypatch)
    start = time.monotonic()
    found = probe("own", [], limit=1)
    assert time.monotonic() - start < 10
    assert found.hung
    assert "within 1 s" in found.problem


def test_an_interpreter_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    found = probe("host_probe", ["/"], limit=5, python=tmp_path / "python")
    assert "can't be started" in found.problem
