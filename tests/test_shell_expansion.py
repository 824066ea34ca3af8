"""What becomes of a word with variables that are known, and others."""

from __future__ import annotations

import pytest
from kvpatch.shell_expansion import expanded
from kvpatch.shell_state import Argument, State
from kvpatch.shell_words import Word, cut


def words(text: str, *, here: str = "", folder: str | None = None) -> list[Argument]:
    state = State(
        {"A": ("a b",), "E": ("",), "L": ("x", "y z"), "@": ("1 2", "3"), "S": (" s ",)},
        frozenset({"L"}),
        here=here,
        folder=folder,
    )
    (word,) = cut(text)
    assert isinstance(word, Word)
    return expanded(word, state)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$A", ["a", "b"]),
        ('"$A"', ["a b"]),
        ("x${A}y", ["xa", "by"]),
        ("x${S}y", ["x", "s", "y"]),
        ("$E", []),
        ('"$E"', [""]),
        ('"${L[@]}"', ["x", "y z"]),
        ("${L[@]}", ["x", "y", "z"]),
        ("$L", ["x"]),
        ('-"$@"-', ["-1 2", "3-"]),
        ('"$1$2"', ["1 23"]),
        ("${A:-d}", ["a", "b"]),
        ("${E:-d}", ["d"]),
        ("${E-d}", []),
        ("'$A'", ["$A"]),
        ('"$(which vllm)"', ["vllm"]),
    ],
)
def test_what_is_known_is_put_in(text: str, found: list[str]) -> None:
    assert [one.text for one in words(text)] == found
    assert not any(one.computed for one in words(text))


@pytest.mark.parametrize(
    ("text", "single", "name"),
    [
        ("$X", False, "$X"),
        ('"$X"', True, "$X"),
        ('"${X[@]}"', False, "$X"),
        ("a${X:-secret}", False, "$X"),
        ('"$(cat secret)"', True, "what a command prints"),
        ('"${A%%x}"', True, "$A"),
    ],
)
def test_what_is_not_known_is_told_by_its_name(text: str, single: bool, name: str) -> None:
    (found,) = words(text)
    assert (found.computed, found.single, found.name) == (True, single, name)


def test_the_scripts_folder_is_known_until_the_script_leaves_where_it_was_started() -> None:
    text = '"$(dirname "$0")/x"'
    assert words(text, here="/here") == [Argument("/here/x")]
    assert words(text, here="/here", folder="/srv")[0].computed
    assert words(text)[0].computed
