"""Texts and values as they stand in a message: on one line, shortened, and printable.

What may hold a login goes through :mod:`kvpatch.secrecy`.
"""

from __future__ import annotations

from typing import Any


def spelt(value: Any) -> str:
    """A value as YAML has it, on one line and shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        return one_line(value if value.isidentifier() else f'"{value}"')
    try:
        return one_line(str(value))
    except ValueError:
        # Python writes out no number of more than 4300 digits.
        return "a number of too many digits"


def one_line(text: str) -> str:
    """A text as it may be printed: shortened, and what is no printable character escaped."""
    shown = printable(text)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def printable(text: str) -> str:
    """A text with what is no printable character escaped."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
