"""The values of ``--set``, as YAML has them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from .outcome import ExitCode, KvpatchError
from .place import quoted
from .secrecy import HIDDEN, masked

_COMMENT = re.compile(r"(?:^|(?<=\s))#")


def set_values(given: tuple[str, ...]) -> Mapping[str, Any]:
    """The values by key.

    Args:
        given: each as KEY=VALUE.

    Raises:
        KvpatchError: ``bad-set``, exit 2: one is not that, or a part of its value is a comment.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        key = name.strip()
        try:
            if not equals or not key:
                raise ValueError
            found[key] = yaml.safe_load(value)
        except (ValueError, yaml.YAMLError):
            raise KvpatchError(
                "bad-set",
                # What stands behind the name may hold a login.
                f"--set {name + equals + HIDDEN * bool(value)!r} is not KEY=VALUE",
                "write the value as YAML has it, such as --set chunk_size=512",
                ExitCode.USAGE,
            ) from None
        if _commented(value, found[key]):
            whole = json.dumps(masked(value, key))
            raise KvpatchError(
                "bad-set",
                f"--set {key}: a # that begins a word begins a comment in YAML",
                f"put the value in quotes: --set {quoted(f'{key}={whole}')}",
                ExitCode.USAGE,
            )
    return found


def _commented(value: str, read: object) -> bool:
    """Whether a part of a value is a comment: without it the value is read as the same."""
    return any(_reads(value[: found.start()], read) for found in _COMMENT.finditer(value))


def _reads(text: str, read: object) -> bool:
    try:
        return bool(yaml.safe_load(text) == read)
    except yaml.YAMLError:
        # Within quotes.
        return False
