"""Assignments and changes of folder, one by one; whole scripts are in test_shell_run."""

from __future__ import annotations

import pytest
from kvpatch.script_path import UNKNOWN
from kvpatch.shell_builtins import assign, change, declare, positional, target_of
from kvpatch.shell_state import Argument, State
from kvpatch.shell_words import Word, cut


def words(text: str) -> list[Word]:
    return [one for one in cut(text) if isinstance(one, Word)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=x", ("x",)),
        ("A='x y'z", ("x yz",)),
        ("A+=x", ("oldx",)),
        ("A=(x 'y z')", ("x", "y z")),
        ("A=$B", None),
        ("A+=$B", None),
        ("A[1]=x", None),
        ("A=(x $B)", None),
        ("A+=(x)", None),
    ],
)
def test_a_value_is_taken_or_forgotten(text: str, value: tuple[str, ...] | None) -> None:
    state = State({"A": ("old",)})
    assign(words(text)[0], state)
    assert state.variables.get("A") == value


@pytest.mark.parametrize("text", ["'A=b'", "$A=b", "--a=b", "a-b=c", "1=2"])
def test_other_words_assign_nothing(text: str) -> None:
    assert target_of(words(text)[0]) is None


@pytest.mark.parametrize(
    ("text", "value", "exported"),
    [
        ("export A=x", ("x",), True),
        ("export A", ("old",), True),
        ("declare -x A=x", ("x",), True),
        ("declare -i A=1+1", None, False),
        ("local A", None, False),
        ("readonly A", ("old",), False),
    ],
)
def test_declarations(text: str, value: tuple[str, ...] | None, exported: bool) -> None:
    state = State({"A": ("old",)})
    head, *rest = words(text)
    declare(head.bare, rest, state)
    assert (state.variables.get("A"), "A" in state.exported) == (value, exported)


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        ("cd /srv", None, "/srv"),
        ("cd -- conf", "/srv", "/srv/conf"),
        ("cd conf", UNKNOWN, UNKNOWN),
        ("cd -", "/srv", UNKNOWN),
        ("pushd", "/srv", UNKNOWN),
        ("popd", "/srv", UNKNOWN),
        ("cd", "/srv", "/home/x"),
        ("cd ~/a", "/srv", "/home/x/a"),
    ],
)
def test_changes_of_folder(
    command: str, before: str | None, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    state = State(folder=before)
    head, *rest = command.split()
    change(head, [Argument(one) for one in rest], state)
    assert state.folder == after


def test_arguments_are_known_all_or_not_at_all() -> None:
    state = State()
    positional([Argument("a"), Argument("b c")], state)
    assert state.variables["@"] == ("a", "b c")
    positional([Argument("a"), Argument("$x", computed=True)], state)
    assert "@" not in state.variables


def test_a_value_that_doubles_itself_is_given_up() -> None:
    state = State({"A": ("x" * 1000,), "B": ("x",), "L": ("x",)}, frozenset({"L"}))
    for _ in range(60):
        for text in ("A=$A$A", "B+=x$B", 'L=("${L[@]}" "${L[@]}" x)'):
            assign(words(text)[0], state)
    assert not state.variables
