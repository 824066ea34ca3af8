"""Rules about values as LMCache will have them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from . import rules
from .coercion import PREFIX, Seen
from .lint_context import DISK_SIZE, Context, says_nothing
from .lint_numbers import UNITS
from .lint_tiers import BACKENDS
from .rules import Finding, Fix, Level
from .schema import Key, Unknown
from .secrecy import masked

_TRUE = frozenset({"yes", "on", "y", "t", "enable", "enabled"})
_FALSE = frozenset({"false", "0", "no", "off", "n", "f", "disable", "disabled", "none", "null", ""})
_NOTHING = ("", "none", "null")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt])(?:i?b)?\s*", re.IGNORECASE)

_PREFIXES = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def values(context: Context) -> Iterator[Finding]:
    """Values that do not arrive as they were meant."""
    for seen in (*context.effective.values.values(), *context.effective.lost):
        if seen.source != "default" and not isinstance(seen.value, Unknown):
            yield from _value(context, seen, context.schema.keys[seen.name])


def turned(context: Context) -> Iterator[Finding]:
    """What LMCache's own check changes or refuses."""
    for name, value in context.effective.changed.items():
        if context.is_set(name):
            written = context.effective.values[name].written
            told = f"{name} becomes {context.shown(name, value)}, whatever is written"
            told += f" ({context.shown(name, written)})"
            said = next((one for one in context.effective.said if name in one), "")
            told += f": {_quiet(context, said)}" if said else ""
            yield context.found(rules.TURNED, told, name)
    if context.effective.stop:
        said = _quiet(context, context.effective.stop)
        yield Finding(rules.STOPS, f"LMCache {context.schema.version} stops with: {said}")


def _quiet(context: Context, told: str) -> str:
    """What LMCache says, which may quote a value."""
    for name, seen in context.effective.values.items():
        for one in (seen.written, seen.value):
            for text in one if isinstance(one, list) else [one]:
                if isinstance(text, str) and len(text) > 1:
                    told = told.replace(text, str(masked(text, name)))
    return told


def _value(context: Context, seen: Seen, key: Key) -> Iterator[Finding]:
    if seen.written is None:
        if not key.optional:
            yield _empty(context, seen, key)
        return
    written = context.shown(seen.name, seen.written)
    value = context.shown(seen.name, seen.value)
    misnamed = not seen.failure and context.misnamed(seen.name, seen.value)
    if not misnamed and _unset(seen, key):
        return
    fix = _fix(seen, key)
    right = f"; write {context.form(seen.name, fix.value, seen)}" if fix else ""
    if misnamed or (seen.failure and key.default is None and _is_nothing(seen.written)):
        fix = Fix("set", _given(seen), value=None)
        right = "; leave it out" if seen.source == "environment" else "; write null or leave it out"
    if misnamed:
        unmade = seen.name == "local_disk" and not context.disk_sized
        told = (
            f"LMCache {context.schema.version} takes {_given(seen)}: {written} for {_place(seen)}"
        )
        told += f", and makes none while {DISK_SIZE} is 0" if unmade else ""
        lower = Level.WARNING if unmade or seen.name not in BACKENDS else None
        yield context.found(rules.MISNAMED, f"{told}{right}", seen.name, fix=fix, lower=lower)
    elif seen.failure:
        what = {
            "none": "becomes null" + ", not the default" * (key.default is not None),
            "stop": "stops LMCache at its start",
            "kept": f"is dropped, and {context.shown(seen.name, context.value(seen.name))} stays",
        }[seen.failure]
        told = f"{_given(seen)}: {written} is no {_kind(key)} and {what}{right}"
        yield context.found(rules.LOST, told, seen.name, seen=seen, fix=fix)
    elif (
        seen.name == "blend_special_str"
        and seen.value != seen.written
        and (isinstance(seen.value, str) and str(seen.written).strip() == seen.value)
    ):
        told = f"LMCache {context.schema.version} strips {written} to {value}"
        quoted = f"""{PREFIX}{seen.name.upper()}="'{masked(seen.written, seen.name)}'\""""
        yield context.found(rules.STRIPPED, f"{told}; write {quoted}", seen.name)
    elif seen.source == "environment" and _unquoted(seen.value) is not None:
        told = f"LMCache {context.schema.version} keeps the quotes of {_given(seen)}: it reads "
        told += f"{value}; write {_given(seen)}={written} without the inner quotes"
        yield context.found(rules.CHANGED, told, seen.name)
    elif seen.source == "file" and not context.schema.reading.converts_file and _other(seen, key):
        told = f"{_given(seen)}: {written} is no {_kind(key)}, and LMCache {context.schema.version}"
        yield context.found(
            rules.IMPOSSIBLE, f"{told} takes it as it is{right}", seen.name, fix=fix
        )
    elif seen.name not in context.effective.changed and not _carried(seen, key):
        told = f"LMCache {context.schema.version} reads {_given(seen)}: {written} as "
        as_text = isinstance(seen.written, bool) and isinstance(seen.value, str)
        told += f'the text "{seen.value}"' if as_text else value
        yield context.found(rules.CHANGED, f"{told}{right}", seen.name, fix=fix)


def _place(seen: Seen) -> str:
    """What LMCache takes a word for that is meant to say that there is none."""
    kind = "an address" if seen.name.endswith(("_url", "_host")) else "a folder"
    return f"{kind} that is called {seen.value}" if seen.value != "" else f"{kind} of no name"


def _is_nothing(written: object) -> bool:
    return says_nothing(written) or written == ""


def _unset(seen: Seen, key: Key) -> bool:
    """Whether a text says that nothing is set, and LMCache takes it so."""
    if seen.failure == "stop":
        return False
    nothing = isinstance(seen.written, str) and seen.written.strip().lower() in _NOTHING
    empty = key.default is None and not seen.value
    return nothing and (empty or seen.value == key.default)


def _other(seen: Seen, key: Key) -> bool:
    """Whether a value that nothing converts is plainly of another type than its key."""
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (int,)}
    kind = _plain_type(key)
    if kind not in kinds:
        return False
    # A truth value is an int to Python, and is meant as no number.
    truth = isinstance(seen.value, bool) and kind != "bool"
    return truth or not isinstance(seen.value, kinds[kind])


def _plain_type(key: Key) -> str:
    return key.type.removeprefix("Optional[").removesuffix("]")


def _given(seen: Seen) -> str:
    return seen.given_as or seen.name


def _kind(key: Key) -> str:
    return {"int": "whole number", "float": "number", "bool": "truth value"}.get(
        _plain_type(key), f"value of type {key.type}"
    )


def _empty(context: Context, seen: Seen, key: Key) -> Finding:
    entry = context.file.entries.get(_given(seen))
    default = context.shown(seen.name, key.default)
    told = f"{_given(seen)} is empty, which LMCache reads as null and not as {default}"
    fix = None
    if entry is not None and entry.comment is not None:
        told = (
            f"what stands behind {_given(seen)} is a comment ({masked(entry.comment, seen.name)}): "
            "the value is null"
        )
        meant = str(key.default)
        if isinstance(key.default, str) and _is_meant(entry.comment, meant.strip()):
            fix = Fix("set", _given(seen), value=meant, comment=meant.strip())
            told += f"; write {context.shown(seen.name, meant)}"
    return context.found(rules.EMPTY, told, seen.name, fix=fix)


def _is_meant(comment: str, text: str) -> bool:
    """Whether a comment is that text, alone or with a comment of its own some way behind it."""
    rest = comment.strip().removeprefix(text)
    return comment.startswith(text) and bool(re.fullmatch(r"(?:(?:[ ]{2,}|[ ]*\t\s*)#.*)?", rest))


def _fix(seen: Seen, key: Key) -> Fix | None:
    """The value that is certainly meant."""
    text = seen.written
    if not isinstance(text, str):
        return None
    plain = text.strip()
    value: Any = None
    if key.type == "bool" and plain.lower() in _TRUE:
        value = True
    elif seen.name in UNITS and (found := _SIZE.fullmatch(text)):
        value = _in_unit(
            float(found[1]), found[2], UNITS[seen.name], whole=_plain_type(key) == "int"
        )
    elif "list" in key.type and plain.startswith("["):
        value = _parts(plain) or None
    return None if value is None else Fix("set", _given(seen), value=value)


def _in_unit(number: float, prefix: str, unit: int, *, whole: bool) -> float | int | None:
    """A size in a key's own unit, of so many bytes; None where that is no number for the key."""
    found = number * _PREFIXES[prefix.lower()] / unit
    if whole:
        return int(found) if found.is_integer() else None
    return found


def _carried(seen: Seen, key: Key) -> bool:
    """Whether what LMCache has says the same as what was written."""
    written, value = seen.written, seen.value
    if isinstance(value, bool):
        if isinstance(written, bool):
            return written == value
        text = str(written).strip().strip("'\"").lower()
        return value is (text in ("true", "1")) if value else text in _FALSE
    if isinstance(written, bool):
        return value == written and "str" not in key.type and "list" not in key.type
    if value == written or (isinstance(value, str) and _unquoted(written) == value):
        return True
    if isinstance(value, list):
        parts = written if isinstance(written, list) else _parts(str(written))
        return [_plain(one) for one in value] == [_plain(one) for one in parts]
    if isinstance(value, dict):
        return isinstance(written, str)
    if isinstance(written, list | dict):
        return False
    if isinstance(value, int | float):
        number = _number(written)
        both_none = number is not None and math.isnan(number) and math.isnan(value)
        return number == value or both_none
    # The path behind file:// is all that LMCache keeps of it.
    return _plain(str(written).replace("file://", "")) == _plain(value)


def _parts(text: str) -> list[Any]:
    """What a text means as a list: YAML's form of one, or what commas part."""
    try:
        found = json.loads(text.replace("'", '"')) if text.strip().startswith("[") else None
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else text.split(",")


def _unquoted(value: object) -> str | None:
    """What stands between quotes that embrace a text; None where there are none."""
    text = value.strip() if isinstance(value, str) else ""
    embraced = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if embraced else None


def _plain(value: object) -> str:
    number = _number(value)
    return str(value).strip().strip("'\"") if number is None else str(number)


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(str(value).strip().strip("'\""))
    except ValueError:
        return None
