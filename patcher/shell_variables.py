"""The variables of a shell, and how much of each is known at a place of its script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from .shell_map import SharedMap

_Item = TypeVar("_Item")
_NEVER = -1
_MOST_CAUSES = 10
"""So many are told of what may have changed any variable."""


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
class Variable:
    """What is known of one.

    Attributes:
        value: None where it is not known; empty where it is taken away.
        exported: whether another program is given it; None where that can't be told.
        listed: whether it is an array.
        touched: whether the script may set it, or take it away.
        refers: whether it stands for a variable of another name.
        since: how many times anything may have changed when this was told; less is no more sure.
    """

    value: Value | None = None
    exported: bool | None = False
    listed: bool = False
    touched: bool = False
    refers: bool = False
    since: int = 0

    @property
    def text(self) -> str | None:
        """What it is, where that is one word that is known."""
        one = self.value[0] if self.value and not self.listed else None
        return None if one is None or one.computed else one.text

    @property
    def gone(self) -> bool:
        """Whether it is taken away."""
        return self.value == () and not self.listed


UNTOUCHED = Variable()


@dataclass
class Variables:
    """All of them.

    Attributes:
        known: what the script says of each; ``@`` for the arguments.
        losses: how many times anything may have changed, in the order in which that came about.
        causes: what may have changed it.
    """

    known: SharedMap[Variable]
    losses: int = 0
    causes: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, str], *, exported: bool = False) -> Variables:
        """Variables with a word each."""
        return cls(
            SharedMap(
                {
                    name: Variable((Argument(text),), exported, touched=True)
                    for name, text in values.items()
                }
            )
        )

    def copy(self) -> Variables:
        """Another that may go on otherwise."""
        return Variables(self.known.copy(), self.losses, self.causes)

    def of_name(self, name: str) -> Variable:
        """What the script says of it, though that may be no more sure."""
        return self.known.get(name) or UNTOUCHED

    def sure(self, one: Variable) -> bool:
        """Whether nothing may have changed it."""
        return one.since >= self.losses

    def value(self, name: str) -> Value | None:
        """What it is for certain; None where that is not known."""
        one = self.of_name(name)
        return one.value if self.sure(one) else None

    def put(self, name: str, one: Variable, *, sure: bool = True) -> None:
        """Say all of one anew, from here on."""
        self.known[name] = replace(one, since=self.losses if sure else _NEVER)

    def lose(self, cause: str) -> None:
        """Anything may have become of any of them."""
        self.losses += 1
        if cause not in self.causes and len(self.causes) < _MOST_CAUSES:
            self.causes += (cause,)

    def same(self, other: Variables) -> bool:
        """Whether both say the same."""
        return self.losses == other.losses and self.known.same(other.known)

    def met(self, other: Variables) -> Variables:
        """What is known whichever of these two came about."""
        losses = max(self.losses, other.losses)

        def both(name: str, one: Variable | None, two: Variable | None) -> Variable:
            first, second = one or UNTOUCHED, two or UNTOUCHED
            if first is second:
                return first
            sure = self.sure(first) and other.sure(second)
            return replace(_met(name, first, second), since=losses if sure else _NEVER)

        causes = tuple(dict.fromkeys((*self.causes, *other.causes)))[:_MOST_CAUSES]
        return Variables(self.known.met(other.known, both), losses, causes)


def _met(name: str, one: Variable, two: Variable) -> Variable:
    exported = one.exported if one.exported is two.exported else None
    if one.touched is not two.touched and not exported:
        # Where it is not touched, who starts the script may export it.
        exported = None
    values = [one.value, two.value]
    listed = one.listed
    value = _common(name, values, listed=listed) if listed is two.listed else None
    return Variable(value, exported, listed, one.touched or two.touched, one.refers or two.refers)


def _common(name: str, values: Sequence[Value | None], *, listed: bool) -> Value | None:
    """What a variable is in any case; None where that is nothing."""
    first, *others = values
    if first is None or all(one == first for one in others):
        return first
    known = [one for one in values if one]
    if len(known) < len(values):
        return None
    rest = Argument(f"${name}", computed=True, single=False, name=f"${name}")
    if listed:
        items = _prefix(known, rest)
        return (*items, rest) if items else None
    texts = [one[0].text for one in known]
    words = _prefix([text.split() for text in texts], rest.text)
    if not words or any(text != " ".join(text.split()) for text in texts):
        return None
    return (replace(rest, text=" ".join([*words, rest.text]), single=True),)


def _prefix(rows: Sequence[Sequence[_Item]], rest: _Item) -> list[_Item]:
    """How rows begin in any case, up to what stands for a rest already."""
    found = []
    for items in zip(*rows, strict=False):
        if any(one != items[0] or one == rest for one in items):
            break
        found.append(items[0])
    return found


_NAMED = re.compile(r"\$\{?(\w+|@)")


def names_in(given: Sequence[Argument]) -> list[str]:
    """The variables that are put into words."""
    return [name for one in given for name in _NAMED.findall(one.text)]


def untold(head: str, given: Argument, line: int) -> str:
    """What may have changed any variable, in words that repeat none of the script's own."""
    return f"line {line} gives {head} {given.name or 'a part'}, which can't be told"
