"""What holds where on a path through a module, and what a module's names and calls stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

Value = str | None
"""What is known of a value, in the words of a meaning; None where nothing is."""


@dataclass(frozen=True)
class State:
    """What holds at one point of one path."""

    facts: frozenset[str] = frozenset()
    names: tuple[tuple[str, str], ...] = ()

    def value(self, name: str) -> Value:
        """What is known of a local name."""
        return dict(self.names).get(name)

    def bind(self, name: str, value: Value) -> State:
        """The state after an assignment to a local name."""
        names = dict(self.names)
        if names.pop(name, None) == value:
            return self
        if value is not None:
            names[name] = value
        return replace(self, names=tuple(sorted(names.items())))

    def add(self, fact: str) -> State:
        """The state in which one more thing has happened."""
        return self if fact in self.facts else replace(self, facts=self.facts | {fact})


class Meaning(Protocol):
    """What the names, values, calls and tests of a module stand for."""

    def value(self, node: ast.expr, state: State) -> Value:
        """What is known of an expression's value."""

    def call(self, node: ast.Call, state: State) -> State:
        """The state after a call of something that is not followed."""

    def test(self, node: ast.expr, state: State) -> Iterable[tuple[bool, State]]:
        """The branches that a test can take, each with what is then known."""

    def imported(self, module: str, name: str) -> Value:
        """What is known of an imported name; of the module where the name is empty."""

    def import_fails(self, state: State, modules: Sequence[str]) -> State:
        """The state in a handler for a try block that imports those modules."""

    def relevant(self, name: str) -> bool:
        """Whether a call of that name can matter."""


@dataclass
class Flow:
    """The states in which a block can end, by the way it ends."""

    falls: set[State] = field(default_factory=set)
    returns: set[State] = field(default_factory=set)
    breaks: set[State] = field(default_factory=set)
    continues: set[State] = field(default_factory=set)

    def leave(self, other: Flow) -> None:
        """Add the ways in which another block leaves early."""
        self.returns |= other.returns
        self.breaks |= other.breaks
        self.continues |= other.continues

    def merge(self, other: Flow) -> None:
        """Add all the ways in which another block ends."""
        self.falls |= other.falls
        self.leave(other)
