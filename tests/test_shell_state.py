"""What is left of two places that lead to one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvpatch.script_path import UNKNOWN
from kvpatch.shell_state import Unsure, below, joined
from kvpatch.shell_variables import UNTOUCHED, Argument
from shell_states import exported, settings, state_of


def known(*texts: str) -> tuple[Argument, ...]:
    return tuple(Argument(text) for text in texts)


def test_only_what_is_the_same_stays_known() -> None:
    one = state_of({"A": known("1"), "B": known("1")}, exported="AB", folder="/a")
    two = state_of({"A": known("1"), "B": known("2"), "C": known("3")}, exported="A", folder="/b")
    found = joined([one, two])
    assert (settings(found), exported(found), found.folder) == ({"A": "1"}, {"A": "1"}, UNKNOWN)
    # One of which it is not certain is no more said to be none.
    assert found.variables.of_name("B").exported is None
    assert found.variables.of_name("C").touched
    assert joined([one, one.copy()]).folder == "/a"


def test_a_copy_goes_on_alone() -> None:
    one = state_of({"A": known("1")}, exported="A")
    two = one.copy()
    two.forget("A")
    one.set("B", known("2"))
    assert (settings(one), settings(two)) == ({"A": "1", "B": "2"}, {})
    assert not one.same(two)
    assert one.same(one.copy())


def test_behind_a_loss_only_what_is_set_anew_is_certain() -> None:
    state = state_of({"A": known("1"), "B": known("1")}, exported="A", folder="/a")
    state.lose("a file")
    state.set("B", known("2"))
    state.export("A")
    assert (settings(state), state.folder) == ({"B": "2"}, UNKNOWN)
    assert state.value("A") is None
    assert state.variables.of_name("A").value == known("1")
    assert state.variables.causes == ("a file",)


def test_what_stands_for_another_name_changes_that() -> None:
    state = state_of({"A": known("1")})
    state.variables.put("r", replace(UNTOUCHED, refers=True))
    state.set("r", known("2"))
    assert state.value("A") is None


def test_what_is_taken_away_is_known_to_be() -> None:
    state = state_of({"A": known("1")}, exported="A")
    state.unset("A")
    assert (state.value("A"), state.variables.of_name("A").gone) == ((), True)


@pytest.mark.parametrize(
    ("unsure", "found"),
    [
        (Unsure(), (False, False)),
        (Unsure(frozenset("A")), (True, False)),
        (Unsure(causes=("a file",), settled=frozenset("A")), (False, True)),
    ],
)
def test_which_variables_are_unsure(unsure: Unsure, found: tuple[bool, bool]) -> None:
    assert (unsure.has("A"), unsure.has("B")) == found
    assert unsure.any is any(found)


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
