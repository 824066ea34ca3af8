"""How LMCache finds a separator, with tokenizers made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from kvpatch import tokenizer_probe
from kvpatch.tokenizer_probe import look, places


def with_bos(text: str, special: bool) -> list[int]:
    return [*([1] if special else []), *text.encode()]


def without_bos(text: str, _: bool) -> list[int]:
    return list(text.encode())


def test_a_tokenizer_with_bos_loses_nothing() -> None:
    found = look(with_bos, " ## ")
    assert not found["loses_first"]
    assert (found["wanted"], found["found"], found["spurious"]) == (4, 4, 0)


def test_a_tokenizer_without_bos_loses_the_first_token() -> None:
    found = look(without_bos, " # ")
    assert found["loses_first"]
    assert bytes(found["kept"]) == b"# "
    assert found["spurious"] == 2


def test_a_separator_of_one_token_is_lost_whole() -> None:
    found = look(without_bos, "|")
    assert found["kept"] == []
    assert found["found"] == 0


def test_places_are_counted_with_overlaps_and_none_for_nothing() -> None:
    assert places([1, 1, 1], [1, 1]) == [0, 1]
    assert places([1], []) == []
    assert places([], [1]) == []


def test_a_folder_without_a_tokenizer_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", tokenizer_probe.__file__, str(tmp_path), " # # "]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout.splitlines()[-1])["problem"]
