"""Rules about the names of keys and of variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from . import rules
from .coercion import PREFIX
from .key_history import nearest
from .lint_context import Context
from .rules import Finding, Fix, Level, one_line
from .schema import EXTRA, Key

# Read inside extra_config by code that is not read for the schema, and a top-level key as well.
_BOTH = frozenset({"audit_actual_remote_url"})
_TAKES_NOTHING = Version("0.3.4")
"""The first LMCache that takes a file in which nothing is."""
_LOGGING = frozenset({"LOG_LEVEL", "TRACK_USAGE", "USE_EXPERIMENTAL", "CONFIG_FILE"})


def keys(context: Context) -> Iterator[Finding]:
    """Keys that this release does not read, or not there."""
    file = context.file
    if file.empty and context.lmcache < _TAKES_NOTHING:
        told = f"LMCache {context.schema.version} stops at a file without a key: write one"
        yield Finding(rules.STOPS, told)
    elif file.empty or (file.text.strip() and not file.entries):
        yield Finding(rules.EMPTY_FILE, "the file has no key")
    for name in context.file.entries:
        if name.startswith(f"{EXTRA}."):
            yield from _inside(context, name)
        elif name in context.schema.aliases:
            new = context.schema.aliases[name]
            fix = None if new in context.file.entries else Fix("rename", name, new)
            told = f"{name} is an old name of {new}"
            yield _at(context, rules.DEPRECATED, told, name, fix)
        elif name not in context.schema.keys and not _for_encoder(context, name):
            yield _unknown(context, name)


def overrides(context: Context) -> Iterator[Finding]:
    """``lmcache.KEY`` in vLLM's extra config that LMCache does not take."""
    if context.launch is None:
        return
    for extra in context.launch.extras:
        inner = extra.get("lmcache")
        for name in inner if isinstance(inner, dict) else ():
            shown = f"lmcache.{one_line(str(name))}"
            told = f"LMCache does not find {shown} inside of an object lmcache, which its dotted "
            told += f'form makes: give kv_connector_extra_config as JSON, with "{shown}" in it'
            yield context.written(Finding(rules.OVERRIDE, told, shown, "launch"))
    for name in context.launch.overrides:
        shown = f"lmcache.{one_line(name)}"
        if not context.schema.reading.overrides:
            told = f"LMCache {context.schema.version} reads no {shown}"
            told += f"; write {one_line(name)} in the file"
        elif name not in context.schema.keys:
            right = _right_name(context, name)
            told = f"LMCache {context.schema.version} has no key {one_line(name)}"
            told += f"; it is lmcache.{right} here" if right else ""
        else:
            continue
        yield context.written(Finding(rules.OVERRIDE, told, shown, "launch"))


def variables(context: Context) -> Iterator[Finding]:
    """Variables that look like LMCache's and are not read."""
    known = {f"{PREFIX}{name.upper()}" for name in [*context.schema.keys, *context.schema.aliases]}
    known |= {f"{PREFIX}{name}" for name in _LOGGING}
    for name in sorted(context.environ or {}):
        if name in known or _for_encoder_variable(context, name):
            continue
        plain = name.upper().replace("-", "_").removeprefix("VLLM_")
        if not plain.startswith("LMCACHE"):
            continue
        key = plain.removeprefix("LMCACHE").lstrip("_").lower()
        if key.startswith("extra_config_") or f"{EXTRA}.{key}" in context.history.spans:
            inner = key.removeprefix("extra_config_")
            right = f"""{PREFIX}EXTRA_CONFIG='{{"{inner}": ...}}'"""
            told = f"LMCache reads no {name}: {inner} is a key inside of {right}"
        else:
            found = _renamed(context, key)
            close = f"{PREFIX}{found.upper()}" if found else nearest_upper(plain, known)
            if key.startswith("config"):
                close = f"{PREFIX}CONFIG_FILE"
            if close is None and key not in context.history.first_line:
                continue
            told = f"LMCache {context.schema.version} reads no variable {name}"
            told += f"; it is {close} here" if close else "; it is one of the old v0 line"
        yield Finding(rules.LOOK_ALIKE, told, name, "environment")


def nearest_upper(name: str, known: set[str]) -> str | None:
    """The known variable that is closest to a name, where any is close."""
    found = nearest(name.lower(), [one.lower() for one in known])
    return found.upper() if found else None


def stand_ins(context: Context) -> Mapping[str, bool]:
    """Keys that are not in the file while a value stands there under a name close to theirs.

    True for those that a certain rename brings.
    """
    found: dict[str, bool] = {}
    for name, entry in context.file.entries.items():
        if entry.value is None or name == EXTRA:
            continue
        if name.startswith(f"{EXTRA}."):
            told = [*_inside(context, name)]
        elif name in context.schema.keys or name in context.schema.aliases:
            continue
        else:
            told = [_unknown(context, name)]
        fixes = [one.fix for one in told if one.fix is not None]
        if fixes:
            found[fixes[0].name] = True
        elif "." not in name and (close := nearest(name, [*context.schema.keys])):
            found.setdefault(close, False)
    return {name: sure for name, sure in found.items() if name not in context.file.entries}


def _inside(context: Context, name: str) -> Iterator[Finding]:
    inner = name.partition(".")[2]
    if inner in context.schema.extra:
        return
    renaming = context.history.renaming(name, context.schema)
    if renaming is not None:
        told = f"LMCache {context.schema.version} does not read {inner} inside {EXTRA}"
        told += _since(renaming.name, renaming.since)
        fix = None if renaming.name in context.file.entries else Fix("rename", name, renaming.name)
        yield _at(context, rules.UNKNOWN_KEY, told, name, fix)
    elif inner in context.schema.keys and inner not in _BOTH:
        told = f"{inner} is a key of the top level; inside {EXTRA} it has no effect"
        fix = None if inner in context.file.entries else Fix("rename", name, inner)
        yield _at(context, rules.MISPLACED, told, name, fix)


def _unknown(context: Context, name: str) -> Finding:
    schema, history = context.schema, context.history
    told = f"LMCache {schema.version} has no key {name}"
    if f"{EXTRA}.{name}" in history.spans and schema.has(f"{EXTRA}.{name}"):
        inner = f"{EXTRA}.{name}"
        fix = None if inner in context.file.entries else Fix("rename", name, inner)
        told += f" at the top level; it is read inside {EXTRA}"
        return _at(context, rules.MISPLACED, told, name, fix)
    new = schema.dead_aliases.get(name)
    renaming = history.renaming(name, schema) or history.renaming(f"{EXTRA}.{name}", schema)
    if new is not None and new in schema.keys:
        told += f"; its source names {new} for it, and does not look there"
    elif renaming is not None:
        new = renaming.name
        old = name in history.first_line
        told += f"; it is {new} since lmcache.v1" if old else _since(new, renaming.since)
    elif (plain := _plain(name)) in schema.keys:
        new = plain
        told += f"; it is {plain} in a file"
    elif (plural := schema.keys.get(f"{name}s")) is not None and "list" in plural.type:
        new = plural.name
        told += f"; it is {new} here, a list"
    else:
        new = None
        spans = history.told(name)
        close = nearest(name, [*schema.keys])
        told += f" ({spans} had it)" if spans and name not in schema.keys else ""
        told += f"; the nearest is {close}" if close else ""
    fix = Fix("rename", name, new) if new and new not in context.file.entries else None
    if fix is not None:
        # What is inside extra_config has no type there.
        key = schema.keys.get(fix.name)
        fix = fix if key is None else _with_value(fix, key, context.file.values.get(name))
    return _at(context, rules.UNKNOWN_KEY, told, name, fix)


def _plain(name: str) -> str:
    """A key as a file has it, of the name of its variable, or of another spelling."""
    plain = name.lower().replace("-", "_")
    return plain.removeprefix(PREFIX.lower()).removeprefix("lmcache.")


def _with_value(fix: Fix, key: Key, value: Any) -> Fix | None:
    """The rename with the value in the form of the new key; None where that is not certain."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if "list" in key.type and number:
        return Fix("rename", fix.key, fix.name, [value], changes_value=True)
    if isinstance(value, list) and key.type in ("int", "float"):
        one = value[0] if len(value) == 1 else None
        if isinstance(one, list | None):
            return None
        return Fix("rename", fix.key, fix.name, one, changes_value=True)
    return fix


def _since(name: str, since: str) -> str:
    return f"; it is {name} here (LMCache {since} renamed it)"


def _right_name(context: Context, key: str) -> str | None:
    return _renamed(context, key) or nearest(key, [*context.schema.keys])


def _renamed(context: Context, key: str) -> str | None:
    renaming = context.history.renaming(key, context.schema)
    if renaming is not None and "." not in renaming.name:
        return renaming.name
    return context.schema.dead_aliases.get(key)


def _for_encoder(context: Context, name: str) -> bool:
    prefix = context.schema.encoder_prefix
    return bool(prefix) and (name == prefix.rstrip("_") or name.startswith(prefix))


def _for_encoder_variable(context: Context, name: str) -> bool:
    prefix = context.schema.encoder_prefix
    return bool(prefix) and name.startswith(f"{PREFIX}{prefix.upper()}")


def _at(
    context: Context,
    rule: rules.Rule,
    told: str,
    name: str,
    fix: Fix | None,
    lower: Level | None = None,
) -> Finding:
    entry = context.file.entries[name]
    return Finding(rule, told, name, "file", entry.line, entry.column, fix, lower)
