"""What runs inside of a shell script, in the same shell: functions, sourced files, eval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from . import shell_syntax
from .script_file import ScriptFile
from .shell_builtins import assign, positional, target_of
from .shell_state import Defined, State, joined
from .shell_syntax import parsed
from .shell_variables import Argument, Variables, untold
from .shell_words import Word

Run = Callable[[shell_syntax.Sequence, State], None]
"""Runs commands, and leaves what is known behind them in the state."""


@contextmanager
def variables(assigned: Sequence[Word], state: State) -> Iterator[None]:
    """Variables in front of a command, which are set for so long."""
    before = state.variables.copy() if assigned else state.variables
    names = [target[1] for word in assigned if (target := target_of(word))]
    for word in assigned:
        assign(word, state)
    for name in names:
        state.export(name)
    yield
    _restore(names, before, state)


def source(found: ScriptFile, given: Sequence[Argument], line: int, state: State, run: Run) -> None:
    """A file of commands, with arguments where some are given."""
    here, around, returns = state.here, state.line, state.returns
    arguments = state.value("@")
    if found.folder != here:
        # There $0 and BASH_SOURCE say two folders.
        state.here = ""
    state.line, state.returns = around or line, []
    state.files_around += 1
    state.depth += 1
    if given:
        positional(given, state)
    run(parsed(found.text), state)
    _return(state)
    if given and state.value("@") == tuple(given):
        # What the file itself sets stays.
        state.set("@", arguments)
    state.depth -= 1
    state.files_around -= 1
    state.here, state.line, state.returns = here, around, returns


def function(defined: Defined, given: Sequence[Argument], state: State, run: Run) -> None:
    """A function that is called."""
    here, state.here = state.here, defined.here
    before, returns, own = state.variables.copy(), state.returns, state.own
    state.returns, state.own = [], set()
    state.depth += 1
    state.functions_around += 1
    loops, state.loops = state.loops, 0
    positional(given, state)
    run(defined.body, state)
    _return(state)
    _restore(["@", *state.own], before, state)
    state.returns, state.own, state.loops = returns, own, loops
    state.functions_around -= 1
    state.depth -= 1
    state.here = here


def evaluate(given: Sequence[Argument], line: int, state: State, run: Run) -> None:
    """Text that eval runs; where not all of it is known, nothing is certain behind it."""
    text = " ".join(one.text for one in given)
    unknown = [one for one in given if one.computed]
    inner = state.copy() if unknown else state
    if unknown and text[:1] in ("$", "`"):
        # Which command it is can't be told.
        text = ""
    inner.doubt(unknown)
    depth, around = inner.depth, inner.line
    inner.depth, inner.line = depth + 1, around or line
    run(parsed(text), inner)
    inner.depth, inner.line = depth, around
    if unknown:
        state.ended = inner.ended
        (first, *_) = unknown
        state.lose(untold("eval", first, around or line))


def _return(state: State) -> None:
    """Come back from commands that ended or returned; where all end, so does the script."""
    ends = [*([] if state.ended else [state]), *state.returns]
    if ends:
        state.take(joined(ends))


def _restore(names: Sequence[str], before: Variables, state: State) -> None:
    """Give names back what they were, and whether they were exported."""
    for name in names:
        one = before.of_name(name)
        state.variables.put(name, one, sure=before.sure(one))
