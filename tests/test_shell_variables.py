"""What is left of the variables of two places that lead to one."""

from __future__ import annotations

import pytest
from kvpatch.shell_variables import Argument, Variables, names_in, untold
from shell_states import state_of


def known(*texts: str) -> tuple[Argument, ...]:
    return tuple(Argument(text) for text in texts)


def met(*values: tuple[str, ...], listed: bool = False) -> Variables:
    arrays = "A" if listed else ""
    (found, *others) = (state_of({"A": known(*one)}, arrays).variables for one in values)
    for one in others:
        found = found.met(one)
    return found


@pytest.mark.parametrize(
    ("values", "listed", "found"),
    [
        ([("v", "s"), ("v", "s", "x")], True, ("v", "s", "$A?")),
        ([("v", "s"), ("w", "s")], True, None),
        ([("v s",), ("v s -x",)], False, ("v s $A?",)),
        ([("v s",), ("v t",), ("v",)], False, ("v $A?",)),
        ([("ab",), ("ac",)], False, None),
        ([("v  s",), ("v  s x",)], False, None),
    ],
)
def test_the_beginning_that_is_the_same_stays_known(
    values: list[tuple[str, ...]], listed: bool, found: tuple[str, ...] | None
) -> None:
    left = met(*values, listed=listed).value("A")
    assert (left and tuple(one.text + "?" * one.computed for one in left)) == found


def test_a_beginning_grows_no_more_where_a_loop_adds_to_it() -> None:
    once = met(("v",), ("v x",))
    again = state_of({"A": (Argument("v $A x", computed=True, name="$A"),)}).variables
    assert once.met(again).value("A") == once.value("A")


def test_an_array_and_a_word_have_nothing_in_common() -> None:
    one, two = (state_of({"A": known("v")}, arrays).variables for arrays in ("A", ""))
    assert one.met(two).value("A") is None


def test_what_one_place_lost_is_lost_behind_both() -> None:
    one = state_of({"A": known("1"), "B": known("1")}).variables
    two = one.copy()
    two.lose("a file")
    two.put("B", one.of_name("B"))
    found = one.met(two)
    assert (found.value("A"), found.value("B")) == (None, known("1"))
    assert found.causes == ("a file",)


def test_who_starts_the_script_may_export_what_one_place_leaves_alone() -> None:
    one, two = Variables.of({}), Variables.of({"A": "1"})
    assert one.met(two).of_name("A").exported is None
    assert two.met(two.copy()).of_name("A").exported is False


def test_names_are_found_in_words_and_told_without_their_text() -> None:
    given = Argument("a$B${C}secret", computed=True, name="$B")
    assert names_in([given]) == ["B", "C"]
    assert untold("export", given, 3) == "line 3 gives export $B, which can't be told"
