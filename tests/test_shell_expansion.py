"""What becomes of a word with variables that are known, and others."""

from __future__ import annotations

import pytest
from kvpatch.shell_expansion import expanded
from kvpatch.shell_variables import Argument
from kvpatch.shell_words import Word, cut
from shell_states import state_of


def words(text: str, *, here: str = "", folder: str | None = None) -> list[Argument]:
    values = {"A": ["a b"], "E": [""], "L": ["x", "y z"], "@": ["1 2", "3"], "S": [" s "], "N": []}
    known = {name: tuple(Argument(one) for one in found) for name, found in values.items()}
    partly = (Argument("x $M y", computed=True, name="$M"),)
    state = state_of(
        {**known, "P": partly, "Q": (Argument("v"), *partly)},
        {"L", "Q", "N"},
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
        ('"$*"', ["1 2 3"]),
        ("$*", ["1", "2", "3"]),
        ('"${L[*]}"', ["x y z"]),
        ('"${N[@]}"', []),
        ('"${N[*]}"', [""]),
        ("${N[@]}", []),
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$P", ["x", "$M?", "y"]),
        ('"$P"', ["x $M y?"]),
        ('"${Q[@]}"', ["v", "x $M y?"]),
        ("${Q[@]}", ["v", "x", "$M?", "y"]),
        ('"${Q[*]}"', ["v x $M y?"]),
        ("-$P-", ["-x", "$M?", "y-"]),
        ("${P:-d}", ["${P:-d}?"]),
    ],
)
def test_what_is_known_in_part_is_put_in_as_far(text: str, found: list[str]) -> None:
    assert [one.text + "?" * one.computed for one in words(text)] == found


def test_the_scripts_folder_is_known_until_the_script_leaves_where_it_was_started() -> None:
    text = '"$(dirname "$0")/x"'
    assert words(text, here="/here") == [Argument("/here/x")]
    assert words(text, here="/here", folder="/srv")[0].computed
    assert words(text)[0].computed
