"""The keys of a profile's file in those of one release, each with the reason for its value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from .comments import comment
from .outcome import KvpatchError
from .schema import EXTRA, Schema
from .templates import Template

_NUMBER = re.compile(r"\{(\w+)\}")
_SET = "Set by --set."


def body(
    template: Template, schema: Schema, values: Mapping[str, Any], changes: Mapping[str, Any]
) -> Iterator[str]:
    """The lines of a profile's keys, each with its reason above it.

    Args:
        template: of the profile.
        schema: the keys of the LMCache release.
        values: settings and numbers by the names that the template has for them.
        changes: keys that get another value than the template's.

    Raises:
        KvpatchError: ``no-key``, exit 3: the release lacks a key that the profile can't do without.
    """
    nested: list[str] = []
    left = dict(changes)
    for _, entry in template.concepts:
        line = _fitting(entry, schema)
        if line is None:
            if "refuse" in entry:
                raise KvpatchError(
                    "no-key",
                    f"LMCache {schema.version} can't run {template.name}: {entry['refuse']}",
                    "install an LMCache release that has it, from 0.3.3 on, or a newer kvpatch",
                )
            yield from ["", *comment(entry["absent"])]
            continue
        given = {name: _filled(value, values) for name, value in line["keys"].items()}
        keys = {name: left.pop(name, value) for name, value in given.items()}
        reason = line.get("here", "") if keys == given else _SET
        told = comment(
            _NUMBER.sub(lambda found: str(values[found[1]]), f"{line.get('why', '')} {reason}")
        )
        top = {name: value for name, value in keys.items() if "." not in name}
        if top:
            yield from ["", *told]
            yield from (f"{name}: {_dumped(value)}" for name, value in top.items())
        for name, value in keys.items():
            if name not in top:
                nested += [f"  {text}" for text in told]
                nested.append(f"  {name.partition('.')[2]}: {_dumped(value)}")
    for name, value in left.items():
        if "." in name:
            nested += [f"  # {_SET}", f"  {name.partition('.')[2]}: {_dumped(value)}"]
        else:
            yield from ["", f"# {_SET}", f"{name}: {_dumped(value)}"]
    if nested:
        yield from ["", f"{EXTRA}:", *nested]


def _fitting(entry: Mapping[str, Any], schema: Schema) -> Mapping[str, Any] | None:
    for line in entry["lines"]:
        if all(schema.has(name) for name in line["keys"]):
            found: Mapping[str, Any] = line
            return found
    return None


def _filled(value: object, values: Mapping[str, Any]) -> object:
    """A value of the template, with the setting or number that it stands for."""
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return values[found[1]] if found else value


def _dumped(value: object) -> str:
    """The value as it stands in YAML, on one line; strings that are no plain word are quoted."""
    if isinstance(value, str) and not value.isidentifier():
        return _one_line(value, style='"')
    return _one_line(value)


def _one_line(value: object, style: str | None = None) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, default_style=style, width=float("inf"), allow_unicode=False
    )
    return text.strip().removesuffix("...").strip()
