"""Dotted forms of an option, ``--NAME.KEY VALUE``, as vLLM puts them together.

Read from ``FlexibleArgumentParser.parse_args``, which merges them and puts what comes of it behind
all other words, as one JSON object for each spelling of the option.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .vllm_options import full_name

Pairs = Iterable[tuple[str, "str | bool"]]


class NotReadError(Exception):
    """vLLM stops at a value, and why."""


def merged(pairs: Pairs, names: frozenset[str]) -> dict[str, dict[str, Any]]:
    """The objects of these options by spelling, in the order in which vLLM has them.

    Args:
        pairs: names without dashes in front, with values, in the order of the command.
        names: names of one option; the last spelling that has dotted forms counts.

    Raises:
        NotReadError: vLLM stops at a value.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, text in pairs:
        option, dot, rest = name.partition(".")
        if not dot or full_name(option) not in names or not isinstance(text, str):
            continue
        value: Any = text.split(",") if rest.endswith("+") else _value(text)
        rest = rest.removesuffix("+")
        for key in reversed(rest.split(".")):
            value = {key: value}
        _update(found.setdefault(option, {}), value)
    return found


def json_of(text: str) -> Any:
    """What a JSON text says.

    Raises:
        NotReadError: it says nothing.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise NotReadError("it is nested too deep") from None
    except ValueError as error:
        raise NotReadError(f"it is not JSON: {error}") from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
    except RecursionError:
        raise NotReadError("a value is nested too deep") from None
    except ValueError:
        raise NotReadError("a number has too many digits") from None


def _update(original: dict[str, Any], update: dict[str, Any]) -> None:
    for key, value in update.items():
        before = original.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            _update(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            before += value
        else:
            original[key] = value
