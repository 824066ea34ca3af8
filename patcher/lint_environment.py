"""Rules about variables: against the file, and those that do not reach vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from . import rules
from .coercion import CONFIG_VARIABLE
from .lint_context import Context
from .lint_names import known_variables
from .rules import Finding, Level
from .secrecy import shown

_SEED = "PYTHONHASHSEED"


def handed_on(context: Context) -> Iterator[Finding]:
    """What a script sets and keeps to itself, and what it leaves to who starts it."""
    given = context.launch
    if given is None:
        return
    read = known_variables(context)
    for name, kept in given.withheld.items():
        if name not in read and name != _SEED:
            continue
        yield Finding(rules.WITHHELD, kept.told(name), name, "launch")
    told_elsewhere = context.whole_environ or CONFIG_VARIABLE in (context.environ or {})
    if given.scripted and not told_elsewhere and CONFIG_VARIABLE not in given.withheld:
        who = "whoever starts it has to export that"
        if not context.file.written:
            who = "LMCache reads a file only where whoever starts it exports that"
        told = f"{CONFIG_VARIABLE} is not set in it, so {who}"
        if CONFIG_VARIABLE in given.unsure.names:
            told = (
                f"{CONFIG_VARIABLE} is set to what can't be told here, so it may name another file"
            )
        elif given.unsure.has(CONFIG_VARIABLE):
            told = f"whether {CONFIG_VARIABLE} is set for it can't be told here"
        yield Finding(rules.OTHER_FILE, told, CONFIG_VARIABLE, "launch", lower=Level.NOTE)


def environment(context: Context) -> Iterator[Finding]:
    """Variables against the file."""
    environ = context.environ
    if environ is None or not context.file.written:
        yield from _unconfigured(context)
        yield from _overruled(context)
        return
    named = environ.get(CONFIG_VARIABLE)
    if named is None and context.whole_environ:
        yield Finding(
            rules.OTHER_FILE,
            f"{CONFIG_VARIABLE} is not set there, so the file is never read (a variable that is "
            "not exported does not reach vLLM)",
            CONFIG_VARIABLE,
            "environment",
        )
    elif named is not None and not _same(context.config_at or named, context.file.path):
        told = f"{CONFIG_VARIABLE} names {shown('', named)}, and not "
        told += shown("", context.file.path)
        lower = None if context.running else Level.WARNING
        yield Finding(rules.OTHER_FILE, told, CONFIG_VARIABLE, "environment", lower=lower)
    elif context.config_changed:
        told = f"{shown('', context.file.path)} was changed after the process was started, which "
        told += "runs with what was there before"
        yield _warned(told, "restart vLLM to have it read", Level.WARNING)
    for name in context.schema.keys:
        variable = f"LMCACHE_{name.upper()}"
        if variable in environ and not context.schema.reading.env_beside_file:
            told = (
                f"LMCache {context.schema.version} does not read {variable} where there is a file"
            )
            yield Finding(rules.IGNORED, told, variable, "environment")
    yield from _overruled(context)


def _unconfigured(context: Context) -> Iterator[Finding]:
    """What of LMCache's is not there in a whole environment."""
    set_there = any(seen.source != "default" for seen in context.effective.values.values())
    if not context.whole_environ or set_there or context.effective.lost:
        return
    told = f"there is no {CONFIG_VARIABLE} and no variable that sets a key, so LMCache takes its "
    told += "defaults (a variable that is not exported does not reach vLLM)"
    todo = f"export {CONFIG_VARIABLE} to vLLM, if it was to have a configuration"
    sure = context.launch is not None and context.launch.in_process
    yield _warned(told, todo, Level.WARNING if sure else Level.NOTE)


def _warned(told: str, todo: str, level: Level) -> Finding:
    told = f"{told}: {todo}"
    where = (CONFIG_VARIABLE, "environment")
    return Finding(rules.OTHER_FILE, told, *where, lower=level, todo=todo)


def _overruled(context: Context) -> Iterator[Finding]:
    for seen in context.effective.values.values():
        entry = context.file.entries.get(seen.name)
        if seen.source in ("environment", "launch") and entry and entry.value != seen.value:
            over, under = (context.shown(seen.name, one) for one in (seen.value, entry.value))
            told = f"{seen.given_as} ({over}) beats the file ({under})"
            yield Finding(rules.OVERRULED, told, seen.name, "file", entry.line, entry.column)


def _same(named: str, path: str) -> bool:
    try:
        return Path(named).samefile(path)
    except OSError:
        return os.path.abspath(named) == os.path.abspath(path)  # noqa: PTH100
