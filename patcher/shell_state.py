"""What is known at one place of a shell script."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import shell_syntax
from .script_path import UNKNOWN
from .shell_map import SharedMap
from .shell_variables import Argument, Value, Variable, Variables, names_in


@dataclass(frozen=True)
class Withheld:
    """A variable that is set in a script and does not reach vLLM.

    Attributes:
        value: what it is set to; None where that can't be told.
        by: the program in front that keeps it; empty where it is not exported.
    """

    value: str | None
    by: str = ""

    def told(self, name: str) -> str:
        """Why the variable of that name does not reach vLLM."""
        if self.by:
            return f"{name} does not reach vLLM: {self.by} does not hand it on"
        return f"{name} is set and not exported, so vLLM does not get it from there"


@dataclass(frozen=True)
class Unsure:
    """Which variables a program may have otherwise than it is told.

    Attributes:
        names: those that are set to what can't be told, or may not be handed on.
        causes: what may set any other one; empty for nothing.
        settled: of which all is told all the same.
    """

    names: frozenset[str] = frozenset()
    causes: tuple[str, ...] = ()
    settled: frozenset[str] = frozenset()

    @property
    def any(self) -> bool:
        """Whether there are some."""
        return bool(self.names or self.causes)

    def has(self, name: str) -> bool:
        """Whether that variable is one of them."""
        return name in self.names or (bool(self.causes) and name not in self.settled)


@dataclass(frozen=True)
class Call:
    """A command that starts vLLM, with all that is known when it runs.

    Attributes:
        arguments: from vLLM's program or module on.
        environ: variables that are given to it, set in the script or in front of it; some of them
            may be ``unsure``.
        folder: None where it is still the one in which the script was started.
        line: in the script, from 1.
        certain: whether it runs whenever the script does.
        elsewhere: the program that starts it in a container or on another machine.
        withheld: variables that are set, and not given to it.
        unsure: variables that it may have otherwise.
        apart: whether files have other names for certain where it starts.
    """

    arguments: tuple[Argument, ...]
    environ: Mapping[str, str]
    folder: str | None
    line: int
    certain: bool
    elsewhere: str = ""
    withheld: Mapping[str, Withheld] = field(default_factory=dict)
    unsure: Unsure = field(default_factory=Unsure)
    apart: bool = False


@dataclass(frozen=True)
class Defined:
    """A function, and the folder of the file that it stands in."""

    body: shell_syntax.Sequence
    here: str


@dataclass
class State:
    """Variables, the folder, and how certain it is that the place is reached.

    Attributes:
        variables: what is known of them.
        exports: whether all that is set is exported; None where that can't be told.
        folder: None where it is still the one in which the first script was started.
        began: the folder in which the script was started.
        rooted: whether it was started by its whole path.
        stack: folders that popd goes back to.
        functions: by name.
        certain: whether the place is reached whenever the script runs.
        ended: whether what follows does not run.
        elsewhere: the program that runs this in a container or on another machine.
        here: the script's folder; empty where it is not known.
        line: of the command around the script; 0 where there is none.
        depth: how many functions and shells are around.
        loops: how many loops are around.
        functions_around: how many functions are.
        files_around: how many files are that are sourced.
        leaves: what is known where a loop is left.
        returns: what is known where a function returns.
        own: names that are the function's alone.
        kept: variables that were not handed on to this shell.
    """

    variables: Variables = field(default_factory=lambda: Variables.of({}))
    exports: bool | None = False
    folder: str | None = None
    began: str | None = None
    rooted: bool = False
    stack: tuple[str | None, ...] = ()
    functions: SharedMap[Defined] = field(default_factory=SharedMap)
    certain: bool = True
    ended: bool = False
    elsewhere: str = ""
    here: str = ""
    line: int = 0
    depth: int = 0
    loops: int = 0
    functions_around: int = 0
    files_around: int = 0
    leaves: list[State] = field(default_factory=list)
    returns: list[State] = field(default_factory=list)
    own: set[str] = field(default_factory=set)
    kept: Mapping[str, Withheld] = field(default_factory=dict)

    def copy(self) -> State:
        """Another that may go on otherwise; where a loop or a function ends is one for both."""
        found = State.__new__(State)
        found.__dict__.update(self.__dict__)
        found.variables, found.functions = self.variables.copy(), self.functions.copy()
        return found

    def take(self, other: State) -> None:
        """What is known there."""
        self.variables, self.folder, self.stack = other.variables, other.folder, other.stack
        self.functions, self.exports, self.ended = other.functions, other.exports, other.ended

    def same(self, other: State) -> bool:
        """Whether as much is known there, and the same."""
        return (
            (self.folder, self.stack, self.exports) == (other.folder, other.stack, other.exports)
            and self.variables.same(other.variables)
            and self.functions.same(other.functions)
        )

    def value(self, name: str) -> Value | None:
        """A variable's value; None where it is not known."""
        return self.variables.value(name)

    def set(self, name: str, value: Value | None, *, listed: bool = False) -> None:
        """A variable has another value, or, for None, may have any."""
        old = self.variables.of_name(name)
        if old.refers:
            self.variables.lose(f"${name} stands for another variable, which is set by it")
            return
        exported = self.exports if not old.exported and self.exports is not False else old.exported
        exported = exported and name != "@"
        self.variables.put(name, Variable(value, exported, listed, touched=True))

    def forget(self, name: str) -> None:
        """A variable may have any value."""
        self.set(name, None)

    def unset(self, name: str) -> None:
        """A variable is taken away."""
        self.variables.put(name, Variable((), touched=True))

    def export(self, name: str, *, given: bool = True) -> None:
        """A variable is given to other programs from here on, or no more."""
        old = self.variables.of_name(name)
        # Its value is no more certain than it was.
        sure = self.variables.sure(old)
        self.variables.put(name, replace(old, exported=given), sure=sure)

    def doubt(self, given: Sequence[Argument]) -> None:
        """What stands for a value in text that is run: it is not what the name is now."""
        for name in names_in(given):
            self.forget(name)

    def lose(self, cause: str) -> None:
        """Anything may have become of the variables and the folder."""
        self.variables.lose(cause)
        self.folder = UNKNOWN


def joined(states: Sequence[State]) -> State:
    """What is known whichever of these came about."""
    first, *others = states
    found = first.copy()
    for one in others:
        found.variables = found.variables.met(one.variables)
        found.functions = found.functions.met(one.functions, _either)
        found.exports = found.exports if found.exports is one.exports else None
        if one.folder != found.folder:
            found.folder = UNKNOWN
        if one.stack != found.stack:
            found.stack = ()
    found.ended = False
    return found


def _either(name: str, one: Defined | None, two: Defined | None) -> Defined:  # noqa: ARG001
    found = one or two
    assert found is not None
    return found


def below(folder: str | None, target: str | None) -> str | None:
    """The folder after a change from one; a target of None is no change."""
    if target is None:
        return folder
    if target == UNKNOWN or (folder == UNKNOWN and not os.path.isabs(target)):  # noqa: PTH117
        return UNKNOWN
    return os.path.join(folder or "", target)  # noqa: PTH118
