"""Rules about the names of keys and of variables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from packaging.version import Version

from . import rules
from .coercion import CONFIG_VARIABLE, PREFIX
from .key_history import SUCCESSORS, nearest
from .lint_connector import reads_itself
from .lint_context import Context
from .rules import Finding, Fix, Level, one_line
from .schema import EXTRA, Key

# Read inside extra_config by code that is not read for the schema, and a top-level key as well.
_BOTH = frozenset({"audit_actual_remote_url"})
_TAKES_NOTHING = Version("0.3.4")
"""The first LMCache that takes a file in which nothing is."""
_FIRST_LINE = "LMCACHE_USE_EXPERIMENTAL"
"""Scripts set it to this day. Up to LMCache 0.3.11 a false one asks for the configuration before
lmcache.v1, with which vLLM's connector fails."""
_FALSE = frozenset({"false", "0", "no", "n", "off"})
"""What ``is_false`` of those releases takes for it."""
_CONFIG_FILE = frozenset({"config", "config_path", "config_yaml", "config_file_path"})
"""What people write for the name of the variable that names the file."""
_KUBERNETES = re.compile(r"_SERVICE_(?:HOST|PORT(?:_\w+)?)$|_PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?$")
_LINK = re.compile(r"(?:tcp|udp|sctp)://")
"""With these two Kubernetes tells every container of services, one called lmcache among them."""


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
        if reads_itself(context, name):
            continue
        shown = f"lmcache.{one_line(name)}"
        if not context.schema.reading.overrides:
            told = f"LMCache {context.schema.version} reads no {shown}"
            told += f"; write {one_line(name)} in the file"
        elif name not in context.schema.keys:
            told = f"LMCache {context.schema.version} has no key {one_line(name)}"
            if right := _renamed(context, name):
                told += f"; it is lmcache.{right} here"
            elif successor := _successor(context, name):
                told += successor
            elif close := nearest(name, [*context.schema.keys]):
                told += f"; the nearest is lmcache.{close}"
        else:
            continue
        yield context.written(Finding(rules.OVERRIDE, told, shown, "launch"))


def variables(context: Context) -> Iterator[Finding]:
    """Variables that look like LMCache's and are not read."""
    read = context.history.variables_of(context.lmcache)
    known = known_variables(context)
    for name, value in sorted((context.environ or {}).items()):
        plain = name.upper().replace("-", "_").removeprefix("VLLM_")
        if name == _FIRST_LINE and name in read and value.lower() in _FALSE:
            told = f"LMCache {context.schema.version} takes the configuration before lmcache.v1 "
            told += f"where {name} is {value}, and vLLM's connector ends the engine with it"
            yield Finding(rules.STOPS, f"{told}: take it out", name, "environment")
        if name in known or name == _FIRST_LINE or not plain.startswith("LMCACHE"):
            continue
        if _KUBERNETES.search(name) or (name.endswith("_PORT") and _LINK.match(value)):
            continue
        key = plain.removeprefix("LMCACHE").lstrip("_").lower()
        right, sure = _right_variable(context, key, known)
        if right.startswith(f"{EXTRA}."):
            inner = right.removeprefix(f"{EXTRA}.")
            right = f"""{PREFIX}EXTRA_CONFIG='{{"{inner}": ...}}'"""
            told = f"LMCache reads no {name}: {inner} is a key inside of {right}"
            yield Finding(rules.LOOK_ALIKE, told, name, "environment")
            continue
        told = f"LMCache {context.schema.version} reads no variable {name}"
        spans = "" if sure else context.history.told(name)
        if sure:
            told += f"; it is {right} here"
        elif successor := _successor(context, key):
            sure = True
            told += successor
        elif key in context.history.first_line:
            sure = True
            told += "; it is one of the old v0 line"
        elif any(name.startswith(one) for one in read - known) or not (spans or right):
            continue
        else:
            told += f" ({spans} does)" if spans else ""
            told += f"; the nearest is {right}" if right else ""
        lower = None if sure else Level.WARNING
        yield Finding(rules.LOOK_ALIKE, told, name, "environment", lower=lower)


def known_variables(context: Context) -> frozenset[str]:
    """The variables that this release reads by their whole names."""
    schema = context.schema
    read = context.history.variables_of(context.lmcache)
    keys = frozenset(f"{PREFIX}{name.upper()}" for name in [*schema.keys, *schema.aliases])
    return keys | {name for name in read if not name.endswith("_")}


def _right_variable(context: Context, key: str, known: Collection[str]) -> tuple[str, bool]:
    """What a variable is called here, and whether that is certain; empty for nothing near.

    ``extra_config.NAME`` is what is no variable, but a key inside of one.
    """
    written = {one.removeprefix(PREFIX).lower(): one for one in known}
    same = {name.replace("_", ""): one for name, one in written.items()}
    if (plain := key.replace("_", "")) in same:
        return same[plain], True
    if key in _CONFIG_FILE:
        return CONFIG_VARIABLE, True
    inner = f"{EXTRA}.{key.removeprefix(f'{EXTRA}_')}"
    if key.startswith(f"{EXTRA}_") or context.schema.has(inner):
        return inner, True
    renaming = context.history.renaming(inner, context.schema)
    renamed = _renamed(context, key) or (renaming.name if renaming else "")
    if renamed:
        return (renamed if "." in renamed else f"{PREFIX}{renamed.upper()}"), True
    close = nearest(key, [*written])
    return (written[close] if close else ""), False


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
        told += f" ({spans} had it)" if spans and name not in schema.keys else ""
        if successor := _successor(context, name):
            told += successor
        else:
            close = nearest(name, [*schema.keys])
            told += f"; the nearest is {close}" if close else "; take it out"
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


def _renamed(context: Context, key: str) -> str | None:
    renaming = context.history.renaming(key, context.schema)
    if renaming is not None and "." not in renaming.name:
        return renaming.name
    dead = context.schema.dead_aliases.get(key)
    return dead if dead in context.schema.keys else None


def _successor(context: Context, name: str) -> str:
    """What takes the place of a key that is gone, for the end of a sentence; empty for nothing."""
    new, told = SUCCESSORS.get(name, ("", ""))
    return f"; {told} here" if new in context.schema.keys else ""


def _for_encoder(context: Context, name: str) -> bool:
    prefix = context.schema.encoder_prefix
    return bool(prefix) and (name == prefix.rstrip("_") or name.startswith(prefix))


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
