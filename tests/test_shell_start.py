"""Where another shell begins, and which files are scripts."""

from __future__ import annotations

import pytest
from kvpatch.script_file import ScriptFile
from kvpatch.script_path import UNKNOWN
from kvpatch.shell_start import (
    environ,
    inner,
    is_program,
    is_shell_script,
    named,
    stands_for_vllm,
    withheld,
)
from kvpatch.shell_state import Argument, State, Withheld
from kvpatch.wrapper import Start


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
    state = State({"A": (Argument("1"),)}, exported=frozenset({"A"}), folder="/srv", depth=3)
    state.functions_around = state.files_around = state.loops = 1
    found = inner(state, Start(None, "x", folder="sub"), {"C": "3"}, "")
    assert (found.environ, found.settings) == ({"C": "3"}, {"C": "3"})
    assert (found.folder, found.depth) == ("/srv/sub", 4)
    assert (found.functions_around, found.files_around, found.loops) == (0, 0, 0)
    far = inner(state, Start(None, "x", elsewhere="ssh"), {}, "ssh")
    assert (far.variables, far.folder) == ({}, UNKNOWN)


def test_what_is_not_given_to_a_program_is_told_with_the_reason() -> None:
    values = {name: (Argument(name.lower()),) for name in "AB"}
    state = State(values, exported=frozenset({"A"}))
    for start, given, kept in (
        (Start(0), {"A": "a"}, {"B": Withheld("b")}),
        (Start(0, assigned={"B": "x"}), {"A": "a", "B": "x"}, {}),
        (Start(0, unset=frozenset({"A"})), {}, {"A": Withheld("a", "env")}),
        (Start(0, keeper="sudo"), {}, {"A": Withheld("a", "sudo")}),
    ):
        assert environ(state, start) == given
        assert withheld(state, start, given) == {"B": Withheld("b"), **kept} if kept else True
    assert withheld(state, Start(0, elsewhere="docker"), {}) == {}


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
