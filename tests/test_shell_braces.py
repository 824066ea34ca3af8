"""Braces against those of bash."""

from __future__ import annotations

import subprocess

import pytest
from kvpatch.shell_braces import braces
from kvpatch.shell_words import Word, cut

WORDS = [
    "a{b,c}d",
    "x{a,b{1,2},}y",
    "{a}",
    "{a,b",
    "{{a,b}",
    "{a,b}}",
    "{x{a,b}",
    "a{,}b",
    "{a,b}{c,d}",
    "{}{a,b}",
    "'{a,b}'",
    "{a','b}",
    '{"a":"b","c":"d"}',
    '{"a":{"b":1,"c":2},"d":3}',
    '{"k":"v","x":[1,2]}',
    "\\{a,b}",
]


@pytest.mark.parametrize("text", WORDS)
def test_bash_makes_the_same_words(text: str) -> None:
    (word,) = cut(text)
    assert isinstance(word, Word)
    made = ["".join(piece.text for piece in one.pieces) for one in braces(word)]
    ended = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, text=True)
    assert made == ended.stdout.split("\0")[:-1]


@pytest.mark.parametrize("text", ["{a,b}" * 200, "{a," * 2000 + "b" + "}" * 2000])
def test_too_many_words_are_left_as_they_are(text: str) -> None:
    (word,) = cut(text)
    assert isinstance(word, Word)
    assert braces(word) == [word]
