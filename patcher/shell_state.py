"""What is known at one place of a shell script."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import shell_syntax
from .script_path import UNKNOWN

Value = tuple[str, ...]


@dataclass(frozen=True)
class Argument:
    """A word of a command as it is given.

    Attributes:
        text: with what is known put in.
        computed: whether the shell still puts something in.
        single: whether it is one word for certain.
        name: of the variable that is put in, as in ``$NAME``; empty where it is no plain one.
    """

    text: str
    computed: bool = False
    single: bool = True
    name: str = ""


@dataclass(frozen=True)
class Call:
    """A command that starts vLLM, with all that is known when it runs.

    Attributes:
        arguments: from vLLM's program or module on.
        environ: variables that are set, in the script or in front of it.
        folder: None where it is still the one in which the script was started.
        line: in the script, from 1.
        certain: whether it runs whenever the script does.
        elsewhere: the program that starts it in a container or on another machine.
    """

    arguments: tuple[Argument, ...]
    environ: Mapping[str, str]
    folder: str | None
    line: int
    certain: bool
    elsewhere: str = ""


@dataclass(frozen=True)
class Defined:
    """A function, and the folder of the file that it stands in."""

    body: shell_syntax.Sequence
    here: str


@dataclass
class State:
    """Variables, the folder, and how certain it is that the place is reached.

    Attributes:
        variables: those that are known; ``@`` for the arguments.
        arrays: names of those that are arrays.
        exported: names that another program is given.
        outer: what is set around the script, where that is known.
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
    """

    variables: dict[str, Value] = field(default_factory=dict)
    arrays: frozenset[str] = frozenset()
    exported: frozenset[str] = frozenset()
    outer: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    began: str | None = None
    rooted: bool = False
    stack: tuple[str | None, ...] = ()
    functions: dict[str, Defined] = field(default_factory=dict)
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

    def copy(self) -> State:
        """Another that may go on otherwise; where a loop or a function ends is one for both."""
        return replace(self, variables=dict(self.variables), functions=dict(self.functions))

    def take(self, other: State) -> None:
        """What is known there."""
        self.variables, self.arrays, self.folder = other.variables, other.arrays, other.folder
        self.exported, self.stack = other.exported, other.stack
        self.functions, self.ended = other.functions, other.ended

    def forget(self, name: str) -> None:
        """A variable may have any value."""
        self.variables.pop(name, None)

    def lose(self) -> None:
        """Anything may have become of the variables and the folder."""
        self.variables.clear()
        self.folder = UNKNOWN

    @property
    def environ(self) -> dict[str, str]:
        """The variables that are no array."""
        own = {
            name: value[0]
            for name, value in self.variables.items()
            if name not in self.arrays and name != "@"
        }
        return {**self.outer, **own}


def joined(states: Sequence[State]) -> State:
    """What is known whichever of these came about."""
    first, *others = states
    found = first.copy()
    found.variables = {
        name: value
        for name, value in first.variables.items()
        if all(one.variables.get(name) == value for one in others)
    }
    for one in others:
        found.arrays |= one.arrays
        found.exported &= one.exported
        found.functions = {**one.functions, **found.functions}
        if one.folder != found.folder:
            found.folder = UNKNOWN
        if one.stack != found.stack:
            found.stack = ()
    found.ended = False
    return found


def below(folder: str | None, target: str | None) -> str | None:
    """The folder after a change from one; a target of None is no change."""
    if target is None:
        return folder
    if target == UNKNOWN or (folder == UNKNOWN and not os.path.isabs(target)):  # noqa: PTH117
        return UNKNOWN
    return os.path.join(folder or "", target)  # noqa: PTH118
