"""Assignments and changes of folder, one by one; whole scripts are in test_shell_run."""

from __future__ import annotations

import pytest
from kvpatch.script_path import UNKNOWN
from kvpatch.shell_builtins import (
    assign,
    change,
    declare,
    options,
    positional,
    target_of,
)
from kvpatch.shell_state import State
from kvpatch.shell_variables import Argument
from kvpatch.shell_words import Word, cut
from shell_states import state_of


def known(*texts: str) -> tuple[Argument, ...]:
    return tuple(Argument(text) for text in texts)


def told(state: State, name: str) -> tuple[str, ...] | None:
    found = state.value(name)
    return None if found is None else tuple(one.text + "?" * one.computed for one in found)


def words(text: str) -> list[Word]:
    return [one for one in cut(text) if isinstance(one, Word)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=x", ("x",)),
        ("A='x y'z", ("x yz",)),
        ("A+=x", ("oldx",)),
        ("A=(x 'y z')", ("x", "y z")),
        ("A=$B", ("$B?",)),
        ("A+=$B", ("old$B?",)),
        ('A="x $B"', ("x $B?",)),
        ("A=(x $B)", ("x", "$B?")),
        ("A=$(cat x)", None),
        ("A=${B:-x y}", None),
        ("A[1]=x", None),
        ("A+=(x)", None),
    ],
)
def test_a_value_is_taken_or_forgotten(text: str, value: tuple[str, ...] | None) -> None:
    state = state_of({"A": known("old")})
    assign(words(text)[0], state)
    assert told(state, "A") == value


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
        ("export -n A", ("old",), False),
        ("export -p A", ("old",), True),
        ("declare +x A", None, False),
    ],
)
def test_declarations(text: str, value: tuple[str, ...] | None, exported: bool) -> None:
    state = state_of({"A": known("old")})
    head, *rest = words(text)
    declare(head.bare, rest, state, 1)
    assert (told(state, "A"), bool(state.variables.of_name("A").exported)) == (value, exported)


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


def test_arguments_are_told_as_they_are_given() -> None:
    state = State()
    positional([Argument("a"), Argument("b c"), Argument("$x", computed=True)], state)
    assert told(state, "@") == ("a", "b c", "$x?")
    positional(None, state)
    assert state.value("@") is None


@pytest.mark.parametrize(
    ("given", "exports"),
    [("-a", True), ("-eau", True), ("+a", False), ("-o allexport", True), ("+o allexport", False)],
)
def test_all_that_is_set_may_be_exported(given: str, exports: bool) -> None:
    state = State(exports=not exports)
    options([Argument(one) for one in given.split()], state)
    options([Argument(one) for one in ("-e", "-o", "pipefail", "-x")], state)
    assert state.exports is exports
    assign(words("A=x")[0], state)
    assert (state.variables.of_name("A").exported, state.value("@") is not None) == (exports, False)
    options([Argument("--"), Argument("-a")], state)
    assert told(state, "@") == ("-a",)


def test_a_value_that_doubles_itself_is_given_up() -> None:
    state = state_of({"A": known("x" * 1000), "B": known("x"), "L": known("x")}, "L")
    for _ in range(60):
        for text in ("A=$A$A", "B+=x$B", 'L=("${L[@]}" "${L[@]}" x)'):
            assign(words(text)[0], state)
    values = [state.value(name) or () for name in "ABL"]
    lengths = [sum(len(one.text) for one in found) for found in values]
    assert max(lengths, default=0) <= 20_000
    assert not any(found[0].text.startswith("x" * 1001) for found in values if found)
