"""What is known at one place of a shell script."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from . import shell_syntax
from .script_path import UNKNOWN

_Item = TypeVar("_Item")
_NAME = re.compile(r"\$\{?(\w+|@)")


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


Value = tuple[Argument, ...]
"""Of a variable: one word, or the items of an array, of which not all may be known."""


@dataclass(frozen=True)
class Withheld:
    """A variable that is set in a script and does not reach vLLM.

    Attributes:
        value: what it is set to.
        by: the program in front that keeps it; empty where it is not exported.
    """

    value: str
    by: str = ""

    def told(self, name: str) -> str:
        """Why the variable of that name does not reach vLLM."""
        if self.by:
            return f"{name} does not reach vLLM: {self.by} does not hand it on"
        return f"{name} is set and not exported, so vLLM does not get it from there"


@dataclass(frozen=True)
class Call:
    """A command that starts vLLM, with all that is known when it runs.

    Attributes:
        arguments: from vLLM's program or module on.
        environ: variables that are given to it, set in the script or in front of it.
        folder: None where it is still the one in which the script was started.
        line: in the script, from 1.
        certain: whether it runs whenever the script does.
        elsewhere: the program that starts it in a container or on another machine.
        withheld: variables that are set, and not given to it.
    """

    arguments: tuple[Argument, ...]
    environ: Mapping[str, str]
    folder: str | None
    line: int
    certain: bool
    elsewhere: str = ""
    withheld: Mapping[str, Withheld] = field(default_factory=dict)


@dataclass(frozen=True)
class Defined:
    """A function, and the folder of the file that it stands in."""

    body: shell_syntax.Sequence
    here: str


@dataclass
class State:
    """Variables, the folder, and how certain it is that the place is reached.

    Attributes:
        variables: those of which something is known; ``@`` for the arguments.
        arrays: names of those that are arrays.
        exported: names that another program is given.
        exports: whether all that is set is exported.
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
    exports: bool = False
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
        self.exported, self.exports, self.stack = other.exported, other.exports, other.stack
        self.functions, self.ended = other.functions, other.ended

    def forget(self, name: str) -> None:
        """A variable may have any value."""
        self.variables.pop(name, None)

    def doubt(self, given: Sequence[Argument]) -> None:
        """What stands for a value in text that is run: it is not what the name is now."""
        for one in given:
            for name in _NAME.findall(one.text):
                self.forget(name)

    def lose(self) -> None:
        """Anything may have become of the variables and the folder."""
        self.variables.clear()
        self.folder = UNKNOWN

    @property
    def settings(self) -> dict[str, str]:
        """The variables that are no array, as far as they are known."""
        return {
            name: value[0].text
            for name, value in self.variables.items()
            if name not in self.arrays and name != "@" and not value[0].computed
        }

    @property
    def environ(self) -> dict[str, str]:
        """Those of them that another program is given."""
        return {name: text for name, text in self.settings.items() if name in self.exported}


def joined(states: Sequence[State]) -> State:
    """What is known whichever of these came about."""
    first, *others = states
    found = first.copy()
    found.variables = {}
    for name in first.variables:
        values = [one.variables.get(name) for one in states]
        arrays = {name in one.arrays for one in states}
        common = _common(name, values, listed=arrays == {True}) if len(arrays) == 1 else None
        if common is not None:
            found.variables[name] = common
    for one in others:
        found.arrays |= one.arrays
        found.exported &= one.exported
        found.exports = found.exports and one.exports
        found.functions = {**one.functions, **found.functions}
        if one.folder != found.folder:
            found.folder = UNKNOWN
        if one.stack != found.stack:
            found.stack = ()
    found.ended = False
    return found


def _common(name: str, values: Sequence[Value | None], *, listed: bool) -> Value | None:
    """What a variable is in any case; None where that is nothing."""
    first, *others = values
    if first is None or all(one == first for one in others):
        return first
    known = [one for one in values if one is not None]
    if len(known) < len(values):
        return None
    rest = Argument(f"${name}", computed=True, single=False, name=f"${name}")
    if listed:
        items = _prefix(known)
        return (*items, rest) if items else None
    texts = [one[0].text for one in known]
    words = _prefix([text.split() for text in texts])
    if not words or any(text != " ".join(text.split()) for text in texts):
        return None
    return (replace(rest, text=" ".join([*words, rest.text]), single=True),)


def _prefix(rows: Sequence[Sequence[_Item]]) -> list[_Item]:
    found = []
    for items in zip(*rows, strict=False):
        if any(one != items[0] for one in items):
            break
        found.append(items[0])
    return found


def below(folder: str | None, target: str | None) -> str | None:
    """The folder after a change from one; a target of None is no change."""
    if target is None:
        return folder
    if target == UNKNOWN or (folder == UNKNOWN and not os.path.isabs(target)):  # noqa: PTH117
        return UNKNOWN
    return os.path.join(folder or "", target)  # noqa: PTH118
