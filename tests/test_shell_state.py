"""What is left of two places that lead to one."""

from __future__ import annotations

import pytest
from kvpatch.script_path import UNKNOWN
from kvpatch.shell_state import Argument, State, below, joined


def known(*texts: str) -> tuple[Argument, ...]:
    return tuple(Argument(text) for text in texts)


def test_only_what_is_the_same_stays_known() -> None:
    one = State({"A": known("1"), "B": known("1")}, folder="/a", exported=frozenset({"A", "B"}))
    two = State(
        {"A": known("1"), "B": known("2"), "C": known("3")}, folder="/b", exported=frozenset({"A"})
    )
    found = joined([one, two])
    assert (found.variables, found.folder, found.exported) == (
        {"A": known("1")},
        UNKNOWN,
        frozenset({"A"}),
    )
    assert joined([one, one.copy()]).folder == "/a"


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
    arrays = frozenset({"A"} if listed else ())
    left = joined([State({"A": known(*one)}, arrays) for one in values]).variables.get("A")
    assert (left and tuple(one.text + "?" * one.computed for one in left)) == found


def test_an_array_and_a_word_have_nothing_in_common() -> None:
    one, two = State({"A": known("v")}, frozenset({"A"})), State({"A": known("v")})
    assert joined([one, two]).variables == {}


def test_only_what_is_exported_is_given_to_programs() -> None:
    partly = (Argument("$X", computed=True),)
    names = frozenset({"A", "L", "P"})
    state = State(
        {"A": known("1"), "B": known("2"), "L": known("3"), "P": partly, "@": known("4")},
        frozenset({"L"}),
        names,
    )
    assert (state.environ, state.settings) == ({"A": "1"}, {"A": "1", "B": "2"})


def test_a_copy_goes_on_alone() -> None:
    one = State({"A": known("1")}, exported=frozenset({"A"}))
    one.copy().forget("A")
    assert one.environ == {"A": "1"}


@pytest.mark.parametrize(
    ("folder", "target", "found"),
    [
        (None, None, None),
        (None, "a", "a"),
        ("/s", "a", "/s/a"),
        (UNKNOWN, "a", UNKNOWN),
        (UNKNOWN, "/a", "/a"),
        ("/s", UNKNOWN, UNKNOWN),
    ],
)
def test_folders_are_joined_where_both_are_known(
    folder: str | None, target: str | None, found: str | None
) -> None:
    assert below(folder, target) == found
