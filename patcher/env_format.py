"""A configuration as environment variables that this LMCache release reads back as meant."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .coercion import PREFIX
from .schema import Schema


@dataclass(frozen=True)
class Variables:
    """The variables by name, and the keys that this release can't take that way."""

    values: Mapping[str, str]
    left_out: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """``NAME=VALUE`` lines as a shell and systemd's EnvironmentFile read them."""
        return [f"{name}={shlex.quote(value)}" for name, value in self.values.items()]


def variables(schema: Schema, values: Mapping[str, Any]) -> Variables:
    """The variables that say what a file with these values says.

    Args:
        schema: of the release.
        values: by key, as YAML gives them.
    """
    found: dict[str, str] = {}
    left_out: list[str] = []
    for name, value in values.items():
        key = schema.keys[name]
        if schema.reading.converts_file and key.env_converter is None:
            # LMCache looks for the converter of every variable, and stops where there is none.
            left_out.append(name)
        else:
            found[f"{PREFIX}{name.upper()}"] = text_of(schema, value)
    return Variables(found, tuple(left_out))


def text_of(schema: Schema, value: Any) -> str:
    """What a variable has to be for this value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(str(one) for one in value)
    if isinstance(value, dict):
        return json.dumps(value)
    text = str(value)
    unquote = schema.reading.unquote
    if unquote is not None and unquote(text) != text:
        # Quotes of its own keep what LMCache would take away.
        return f"'{text}'" if "'" not in text and "\\" not in text else json.dumps(text)
    return text
