"""Findings that rest on variables of which a script does not tell for certain what they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from . import key_history, rules
from .coercion import CONFIG_VARIABLE, PREFIX
from .lint_context import Context
from .rules import Finding, Level

if TYPE_CHECKING:
    from .launch import Launch

_SEED = "PYTHONHASHSEED"
_WORD = re.compile(r"[a-z][a-z0-9_]+")
_APART = frozenset({rules.SYNTAX, rules.DUPLICATE, rules.UNKNOWN_KEY, rules.OTHER_FILE})
"""What no variable's value changes."""


def softened(found: Iterable[Finding], context: Context) -> Iterator[Finding]:
    """Findings of which none is an error that a variable's value may cure."""
    for one in found:
        rests = one.level is Level.ERROR and one.rule not in _APART and _rests(one, context)
        yield replace(one, lower=Level.WARNING, fix=None) if rests else one


def _rests(one: Finding, context: Context) -> bool:
    given, schema = context.launch, context.schema
    if given is None:
        return False
    # Of what stops LMCache the key is a variable that it reads beside a file, too.
    if one.rule is rules.STOPS and one.source == "environment" and given.unsure.has(one.key):
        return True
    if context.file.written and not schema.reading.env_beside_file:
        return False
    if one.rule is rules.SEED and given.unsure.has(_SEED):
        return True
    if one.rule is rules.STOPS and given.unsure.causes:
        return True
    named = {one.key.removeprefix(PREFIX).lower().partition(".")[0], *_WORD.findall(one.message)}
    return any(
        given.unsure.has(f"{PREFIX}{name.upper()}")
        for name in named & set(schema.keys)
        if context.effective.values[name].source != "launch"
    )


def note(given: Launch | None) -> list[str]:
    """What is said of such variables; nothing where there are none."""
    if given is None:
        return []
    told = list(given.unsure.causes)
    read = key_history.load().reads
    names = [name for name in sorted(given.unsure.names) if read(name)]
    # What stands above may change all that are told, too.
    names = [name for name in names if not told or name not in given.environ]
    if given.scripted and CONFIG_VARIABLE in names:
        # A finding tells of that one.
        names.remove(CONFIG_VARIABLE)
    if names:
        told.append(f"{', '.join(names)} may have another value than can be told here")
    if not told:
        return []
    why = "; ".join(told)
    rests = "what rests on them is no error; give them with --env-file FILE or --pid PID"
    return [f"note: what vLLM's variables are is not certain: {why}; {rests}"]
