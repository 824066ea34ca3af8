"""Where another shell begins, and which files are scripts."""

from __future__ import annotations

import shlex

import pytest
from kvpatch.script_file import ScriptFile
from kvpatch.script_path import UNKNOWN
from kvpatch.shell_start import (
    environ,
    given,
    inner,
    is_program,
    is_shell_script,
    named,
    stands_for_vllm,
    unpacked,
    unsure,
    withheld,
)
from kvpatch.shell_state import State, Withheld
from kvpatch.shell_variables import Argument, Variables
from kvpatch.wrapper import Start
from shell_states import exported, settings, state_of


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("#!/bin/sh\n", True),
        ("#! /usr/bin/env bash\n", True),
        ("#!/usr/bin/env -S bash -e\n", True),
        ("#!/opt/tools/bash -e\n", True),
        ("#!/usr/bin/python3\nvllm serve\n", False),
        ("#!/usr/bin/env python3\n", False),
        ("vllm serve m\n", False),
        ("", False),
    ],
)
def test_a_shell_script_says_so_itself(text: str, is_one: bool) -> None:
    assert is_shell_script(text) is is_one


def test_another_shell_knows_what_it_is_given() -> None:
    state = state_of({"A": (Argument("1"),)}, exported="A", folder="/srv", depth=3)
    state.functions_around = state.files_around = state.loops = 1
    found = inner(
        state, Start(None, "x", folder="sub"), Variables.of({"C": "3"}, exported=True), ""
    )
    assert (exported(found), settings(found)) == ({"C": "3"}, {"C": "3"})
    assert (found.folder, found.depth) == ("/srv/sub", 4)
    assert (found.functions_around, found.files_around, found.loops) == (0, 0, 0)
    # What did not reach it is told of what it starts.
    assert found.kept == {"A": Withheld("1", "env")}
    far = inner(state, Start(None, "x", elsewhere="ssh"), Variables.of({}), "ssh")
    assert (settings(far), far.folder, far.kept) == ({}, UNKNOWN, {})


def test_what_is_not_given_to_a_program_is_told_with_the_reason() -> None:
    state = state_of({name: (Argument(name.lower()),) for name in "AB"}, exported="A")
    for start, environment, kept in (
        (Start(0), {"A": "a"}, {"B": Withheld("b")}),
        (Start(0, assigned={"B": "x"}), {"A": "a", "B": "x"}, {}),
        (Start(0, unset=frozenset({"A"})), {}, {"A": Withheld("a", "env"), "B": Withheld("b")}),
        (Start(0, keeper="sudo"), {}, {"A": Withheld("a", "sudo"), "B": Withheld("b")}),
        (Start(0, keeper="sudo", handed=frozenset("A")), {"A": "a"}, {"B": Withheld("b")}),
    ):
        variables = given(state, start)
        assert environ(variables) == environment
        assert withheld(state, start, variables) == kept
        assert not unsure(variables, start).any
    assert withheld(state, Start(0, elsewhere="docker"), Variables.of({})) == {}


def test_what_is_not_certain_of_variables_is_told() -> None:
    state = state_of({"A": (Argument("a"),), "B": (Argument("b"),)}, exported="AB")
    assert unsure(given(state, Start(0, assigned={"A": None})), Start(0)).names == {"A"}
    assert unsure(given(state, Start(0)), Start(0, doubted=True)).names == {"A", "B"}
    state.lose("a file")
    state.set("B", (Argument("c"),))
    found = unsure(given(state, Start(0)), Start(0))
    assert (found.has("A"), found.has("B"), found.has("C")) == (True, False, True)
    assert found.causes == ("a file",)
    assert withheld(state, Start(0), given(state, Start(0))) == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("env -S 'A=1 vllm serve m'", "env A=1 vllm serve m"),
        ("env -S'A=1 vllm' serve m", "env A=1 vllm serve m"),
        ("env '--split-string=vllm serve' m", "env vllm serve m"),
        ("sort -S 1 x", "sort -S 1 x"),
    ],
)
def test_words_that_env_has_in_one_are_taken_apart(text: str, found: str) -> None:
    words = [Argument(one) for one in shlex.split(text)]
    assert " ".join(one.text for one in unpacked(words)) == found


def test_a_file_is_named_from_the_folder_that_is_known() -> None:
    def reads(name: str) -> ScriptFile:
        return ScriptFile(name, "")

    def text(word: Argument, state: State) -> str | None:
        found = named(word, state, reads)
        return None if found is None else found.text

    assert text(Argument("a.sh"), State()) == "a.sh"
    assert text(Argument("a.sh"), State(folder="/srv")) == "/srv/a.sh"
    assert text(Argument("/a.sh"), State(folder=UNKNOWN)) == "/a.sh"
    assert text(Argument("a.sh"), State(folder=UNKNOWN)) is None
    assert text(Argument("$A", computed=True), State()) is None
    assert text(Argument("/a.sh"), State(elsewhere="docker")) is None


def test_a_word_that_stands_for_a_program() -> None:
    vllm, serve = Argument("$VLLM", computed=True), Argument("serve")
    assert stands_for_vllm(vllm, [serve])
    assert not stands_for_vllm(vllm, [])
    assert not stands_for_vllm(Argument("VLLM"), [serve])
    assert is_program(Argument("$VENV/bin/vllm", computed=True))
    assert not is_program(Argument("$RUN", computed=True))
