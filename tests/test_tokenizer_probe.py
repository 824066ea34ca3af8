"""How LMCache finds a separator, with tokenizers made by hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvpatch import tokenizer_probe
from kvpatch.tokenizer_probe import Encode, NoFilesError, apart, encoder, look, places, problem


def with_bos(text: str, special: bool) -> list[int]:
    return [*([1] if special else []), *text.encode()]


def without_bos(text: str, _: bool) -> list[int]:
    return list(text.encode())


def test_a_tokenizer_with_bos_loses_nothing() -> None:
    found = look(with_bos, " ## ", whole=False)
    assert not found["loses_first"]
    assert (found["wanted"], found["found"], found["spurious"]) == (4, 4, 0)


def test_a_tokenizer_without_bos_loses_the_first_token() -> None:
    found = look(without_bos, " # ", whole=False)
    assert found["loses_first"]
    assert bytes(found["kept"]) == b"# "
    assert found["spurious"] == 2


def test_a_separator_of_one_token_is_lost_whole() -> None:
    found = look(without_bos, "|", whole=False)
    assert found["kept"] == []
    assert found["found"] == 0


@pytest.mark.parametrize("encode", [with_bos, without_bos])
@pytest.mark.parametrize("separator", ["|", "||", " ## "])
def test_a_patched_lmcache_finds_every_separator_whole(encode: Encode, separator: str) -> None:
    found = look(encode, separator, whole=True)
    assert not found["loses_first"]
    assert bytes(found["kept"]) == separator.encode()
    assert (found["wanted"], found["found"], found["spurious"]) == (4, 4, 0)
    assert found["found_in_text"] == 4


def test_a_patched_lmcache_passes_over_a_match_that_overlaps_the_last() -> None:
    assert apart(places([1, 1, 1, 1, 1], [1, 1]), 2) == [0, 2]
    assert apart([], 1) == []


def test_places_are_counted_with_overlaps_and_none_for_nothing() -> None:
    assert places([1, 1, 1], [1, 1]) == [0, 1]
    assert places([1], []) == []
    assert places([], [1]) == []


def test_a_folder_without_a_tokenizer_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", tokenizer_probe.__file__, str(tmp_path), " # # ", "cut"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout.splitlines()[-1])["problem"]


def loading(text: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers load a tokenizer that encodes so, whatever the folder has."""
    made = SimpleNamespace(encode=lambda told, add_special_tokens: text(told, add_special_tokens))
    auto = SimpleNamespace(from_pretrained=lambda *_args, **_: made)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=auto))


def test_a_folder_without_tokenizer_files_is_told_and_a_module_that_lacks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As transformers 5 does, which makes an empty tokenizer of a Qwen model's config.json alone.
    loading(lambda *_: [], monkeypatch)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NoFilesError) as missing:
        encoder(str(tmp_path))
    told = problem(missing.value)
    assert told == {"problem": f"there are no tokenizer files in {tmp_path}", "lacks": "files"}
    assert problem(ImportError("No module named 'x'"))["lacks"] == "module"


def test_a_tokenizer_without_its_vocabulary_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    loading(lambda *_: [], monkeypatch)
    with pytest.raises(NoFilesError, match="has no words"):
        encoder(str(tmp_path))
    loading(with_bos, monkeypatch)
    assert encoder(str(tmp_path))("a", True) == [1, 97]


def test_a_message_of_several_lines_is_told_whole_and_a_long_one_is_cut_between_words() -> None:
    told = problem(ValueError("none from one of: \n(1) a file\n(2) another"))
    assert told == {"problem": "none from one of: (1) a file (2) another", "lacks": ""}
    assert problem(ValueError(""))["problem"] == "ValueError"
    cut = problem(ValueError("word " * 100))["problem"]
    assert len(cut) <= 304
    assert cut.endswith("word ...")


def merging(text: str, _: bool) -> list[int]:
    """A space becomes one token with the word behind it, as byte-level BPE has it."""
    words = re.findall(r" ?\w+| ?[^\s\w]+\n*|\s", text)
    return [zlib.crc32(word.encode()) for word in words]


def test_a_separator_that_text_loses_is_told_with_one_that_it_keeps() -> None:
    found = look(merging, " # # ", whole=True)
    assert (found["wanted"], found["found"], found["found_in_text"]) == (4, 4, 1)
    assert found["better"] == " # #\n"
    assert look(merging, found["better"], whole=True)["found_in_text"] == 4


def test_one_that_text_loses_before_a_heading_is_not_told_as_better() -> None:
    def joins(text: str, _: bool) -> list[int]:
        # Line ends go to what is behind them.
        return [zlib.crc32(word.encode()) for word in re.findall(r"\s?[^\s\w]+|\s?\w+|\s", text)]

    found = look(joins, " # # ", whole=True)
    assert found["found_in_text"] == 1
    assert "better" not in found


def test_one_that_text_keeps_is_left_as_it_is() -> None:
    assert "better" not in look(with_bos, " # # ", whole=True)
