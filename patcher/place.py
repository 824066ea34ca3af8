"""Command lines as they must be given for the place that a user named."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .outcome import KvpatchError, Report

OPTIONS = ("--python", "--site", "--state")
_HERE = re.compile(
    r"`kvpatch (apply|status|verify|diff|revert|compat|doctor|smoke|profile [a-z-]+)"
    r"((?: --(?:force|accept-foreign|(?:only|skip) \w+))+)?`"
)


def options(given: Mapping[str, object]) -> tuple[str, ...]:
    """The options that name a place, as words of a command line."""
    found = ((name, given.get(name[2:])) for name in OPTIONS)
    return tuple(part for name, value in found if value for part in (name, str(value)))


def lasting(words: Sequence[str]) -> tuple[str, ...]:
    """Such words for a text that is read in another folder: all but a Python on PATH are paths."""
    found = list(words)
    for at in range(1, len(found), 2):
        on_path = found[at - 1] == "--python" and "/" not in found[at]
        # As `locate` has it: what is there by that name is meant, and not what is on PATH.
        if not on_path or os.path.exists(found[at]):  # noqa: PTH110
            found[at] = os.path.abspath(found[at])  # noqa: PTH100
    return tuple(found)


def options_in(words: Sequence[str]) -> tuple[str, ...]:
    """The same, read off a command line that may be wrong elsewhere."""
    found: dict[str, object] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name in OPTIONS:
            found[name[2:]] = value if equals else following
    return options(found)


def quoted(word: str, *, in_ascii: bool = False) -> str:
    """A word as bash reads it, also where a path is no text; in ASCII where that is wanted."""
    if word.isprintable() and (word.isascii() or not in_ascii):
        return shlex.quote(word)
    plain = set(range(0x20, 0x7F)) - {0x27, 0x5C}
    raw = word.encode("utf-8", "surrogateescape")
    return "$'" + "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in raw) + "'"


def command(verb: str, place: Sequence[str], *, in_ascii: bool = False) -> str:
    """The command line of a verb for that place."""
    return " ".join(["kvpatch", verb, *(quoted(word, in_ascii=in_ascii) for word in place)])


def addressed(text: str, place: Sequence[str], *, in_ascii: bool = False) -> str:
    """The text, with the place in every command line that it names."""
    if not place:
        return text
    return _HERE.sub(
        lambda found: f"`{command(found[1], place, in_ascii=in_ascii)}{found[2] or ''}`",
        text,
    )


def report_for(report: Report, place: Sequence[str]) -> Report:
    """The report, with the place in every command line that it names to a reader."""
    if not place:
        return report
    return replace(
        report,
        text=addressed(report.text, place),
        notes=tuple(addressed(note, place) for note in report.notes),
        errors=tuple(_error_for(error, place) for error in report.errors),
    )


def _error_for(error: KvpatchError, place: Sequence[str]) -> KvpatchError:
    return type(error)(
        error.code,
        addressed(error.message, place),
        addressed(error.hint, place),
        error.exit_code,
    )
