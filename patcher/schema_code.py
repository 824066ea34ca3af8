"""The callables of a schema, made of the release's own source, and schemas kept as JSON."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import __version__
from .links import read_regular
from .purecode import Logged, pure_expression, pure_functions
from .schema import Convert, Key, Reading, Schema, Unknown

UNQUOTE = "_parse_quoted_string"
VALIDATE = "_validate_config"
ONLY_DICT = "assert isinstance(value, dict)"
"""Stands for the assertion that a value is a dict."""
_FORMAT = 2


def bind(schema: Schema) -> Schema:
    """The schema with the functions of its ``code``, as far as they are seen to be pure."""
    module = ast.parse(schema.code)
    logged = Logged([])
    names = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    functions = pure_functions(module, names, logged)
    made: dict[str, Convert | None] = {"": None, ONLY_DICT: _only_dict}
    for text in {key.converter for key in schema.keys.values()} - set(made):
        made[text] = pure_expression(text, functions)
    keys = {name: replace(key, convert=made[key.converter]) for name, key in schema.keys.items()}
    return replace(
        schema,
        keys=keys,
        reading=replace(schema.reading, unquote=functions.get(UNQUOTE)),
        validate=functions.get(VALIDATE) or functions.get("validate"),
        log=logged.messages,
    )


def keep(schema: Schema, place: Path) -> None:
    """Keep a schema in a file; nothing is said where that can't be done.

    A failure costs the next run a few milliseconds and nothing else.
    """
    from .index import write_atomically
    from .outcome import KvpatchError

    plain = replace(
        schema,
        keys={name: replace(key, convert=None) for name, key in schema.keys.items()},
        reading=replace(schema.reading, unquote=None),
        validate=None,
        log=[],
    )
    data = {"format": _FORMAT, "kvpatch": __version__, "schema": asdict(plain)}
    try:
        write_atomically(place, json.dumps(data, default=_plain).encode())
    except KvpatchError:
        return


def kept(place: Path) -> Schema | None:
    """A schema that this kvpatch kept there; None for none."""
    try:
        data = json.loads(read_regular(str(place)) or b"")
        if (data["format"], data["kvpatch"]) != (_FORMAT, __version__):
            return None
        found: dict[str, Any] = data["schema"]
        keys = {
            name: Key(**{**key, "default": _value(key["default"])})
            for name, key in found["keys"].items()
        }
        reading = Reading(**found["reading"])
        rest = {**found, "keys": keys, "reading": reading, "extra": frozenset(found["extra"])}
        return bind(Schema(**rest))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError):
        return None


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{value!r} can't be kept")


def _value(kept_value: Any) -> Any:
    """A default as it was: what is no literal was kept by its text."""
    is_unknown = isinstance(kept_value, dict) and set(kept_value) == {"text"}
    return Unknown(kept_value["text"]) if is_unknown else kept_value


def _only_dict(value: object) -> object:
    if value is not None and not isinstance(value, dict):
        raise TypeError("it must be a dict")
    return value
