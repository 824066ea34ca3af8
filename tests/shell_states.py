"""States of a shell, made of what is known there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvpatch.shell_map import SharedMap
from kvpatch.shell_state import State
from kvpatch.shell_variables import Value, Variable, Variables


def state_of(
    values: Mapping[str, Value],
    arrays: Iterable[str] = (),
    exported: Iterable[str] = (),
    **others: Any,
) -> State:
    """A state with those values, of which some are arrays, and some are exported."""
    known = SharedMap(
        {
            name: Variable(value, name in exported, name in arrays, touched=True)
            for name, value in values.items()
        }
    )
    return State(Variables(known), **others)


def settings(state: State) -> dict[str, str]:
    """The variables that are one word, as far as they are known for certain."""
    pairs = ((name, one) for name, one in state.variables.known.items() if name != "@")
    known = {name: one.text for name, one in pairs if state.variables.sure(one)}
    return {name: text for name, text in known.items() if text is not None}


def exported(state: State) -> dict[str, str]:
    """Those of them that another program is given."""
    return {
        name: text
        for name, text in settings(state).items()
        if state.variables.of_name(name).exported
    }
