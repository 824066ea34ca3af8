"""Rules about variables that are set and do not reach vLLM."""

from __future__ import annotations

from collections.abc import Iterator

from . import rules
from .coercion import CONFIG_VARIABLE, PREFIX
from .lint_context import Context
from .rules import Finding, Level

_SEED = "PYTHONHASHSEED"


def handed_on(context: Context) -> Iterator[Finding]:
    """What a script sets and keeps to itself, and what it leaves to who starts it."""
    given = context.launch
    if given is None:
        return
    for name, kept in given.withheld.items():
        if not name.startswith(PREFIX) and name != _SEED:
            continue
        told = f"{name} is set and not exported, so vLLM does not get it from there"
        if kept.by:
            told = f"{name} does not reach vLLM: {kept.by} does not hand it on"
        yield Finding(rules.WITHHELD, told, name, "launch")
    told_elsewhere = context.whole_environ or CONFIG_VARIABLE in (context.environ or {})
    if given.scripted and not told_elsewhere and CONFIG_VARIABLE not in given.withheld:
        told = f"{CONFIG_VARIABLE} is not set in it, so whoever starts it has to export that"
        yield Finding(rules.OTHER_FILE, told, CONFIG_VARIABLE, "launch", lower=Level.NOTE)
