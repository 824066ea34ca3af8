"""What a function, a sourced file and eval leave behind; whole scripts are in test_shell_run."""

from __future__ import annotations

from kvpatch import shell_syntax
from kvpatch.script_file import ScriptFile
from kvpatch.shell_builtins import assign
from kvpatch.shell_inner import evaluate, function, source, variables
from kvpatch.shell_state import Defined, State
from kvpatch.shell_syntax import Command
from kvpatch.shell_variables import Argument
from kvpatch.shell_words import Word, cut
from shell_states import exported, settings, state_of


def words(text: str) -> list[Word]:
    return [one for one in cut(text) if isinstance(one, Word)]


def assigns(chains: shell_syntax.Sequence, state: State) -> None:
    """Runs assignments, and nothing else."""
    for chain in chains:
        for _, nodes in chain.steps:
            for node in nodes:
                for word in node.words if isinstance(node, Command) else ():
                    assign(word, state)


def known(**values: str) -> State:
    return state_of({name: (Argument(value),) for name, value in values.items()})


def test_variables_in_front_are_set_for_so_long() -> None:
    state = known(A="1", B="2")
    with variables(words("A=x C=y"), state):
        assert exported(state) == {"A": "x", "C": "y"}
        assign(words("B=z")[0], state)
    assert (exported(state), settings(state)) == ({}, {"A": "1", "B": "z"})


def test_a_function_keeps_its_arguments_and_its_own_names() -> None:
    state = known(A="1", B="2")
    seen: list[object] = []

    def run(_: shell_syntax.Sequence, within: State) -> None:
        seen.append((within.value("@"), within.here, within.functions_around))
        within.own.add("A")
        assigns(shell_syntax.parsed("A=x; B=y"), within)

    function(Defined((), "/f"), [Argument("a")], state, run)
    assert seen == [((Argument("a"),), "/f", 1)]
    assert (settings(state), state.functions_around) == ({"A": "1", "B": "y"}, 0)


def test_a_sourced_file_leaves_what_it_sets() -> None:
    state = known(A="1")
    state.here = "/here"
    state.set("@", (Argument("old"),))
    source(ScriptFile("A=2\nB=3\n", "/there"), [Argument("new")], 7, state, assigns)
    assert settings(state) == {"A": "2", "B": "3"}
    assert (state.value("@"), state.here, state.line) == ((Argument("old"),), "/here", 0)


def test_behind_what_is_not_known_nothing_is() -> None:
    state = known(A="1")
    evaluate([Argument("B=2")], 1, state, assigns)
    assert settings(state) == {"A": "1", "B": "2"}
    evaluate([Argument("A=$X", computed=True)], 1, state, assigns)
    assert settings(state) == {}
    assert state.variables.causes == ("line 1 gives eval a part, which can't be told",)
