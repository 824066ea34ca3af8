"""Files that a script names, as far as they are there to be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .links import opened_regular

MOST_BYTES = 1024 * 1024
"""A script is no longer."""


@dataclass(frozen=True)
class ScriptFile:
    """A script that another one names.

    Attributes:
        text: all of it, without the carriage returns of Windows.
        folder: that it is in; empty where dirname and readlink say two of them.
        returned: whether a shell would take such returns for a part of its words.
    """

    text: str
    folder: str
    returned: bool = False


Reader = Callable[[str], ScriptFile | None]
"""Reads the file of a name; None where that can't be told from here."""


def nothing(name: str) -> ScriptFile | None:  # noqa: ARG001
    """Where no other file is to be read."""
    return None


def beginning(path: Path) -> bytes:
    """The first bytes of a file, and one more than a script may have.

    Raises:
        OSError: it can't be read.
    """
    # Some files of /proc wait for what is written next.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:  # noqa: PTH123
        return stream.read(MOST_BYTES + 1) or b""


def folder_of(path: Path) -> str:
    """The folder that a script finds itself in; empty where it is named by a link."""
    return "" if path.is_symlink() else str(path.absolute().parent)


def read(name: str) -> ScriptFile | None:
    """A script by its name."""
    try:
        with opened_regular(name) as opened:
            content = b"\0" if opened is None else opened.read(MOST_BYTES + 1)
    except (OSError, ValueError):
        return None
    if len(content) > MOST_BYTES or b"\0" in content:
        return None
    text = content.decode("utf-8", "replace")
    return ScriptFile(unreturned(text), folder_of(Path(name)), is_returned(text))


def unreturned(text: str) -> str:
    """A text without the carriage returns of Windows."""
    return text.replace("\r\n", "\n")


def is_returned(text: str) -> bool:
    """Whether a shell takes carriage returns at the ends of lines for a part of its words.

    In a comment and in a here-document they do no harm.
    """
    if "\r\n" not in text:
        return False
    from .shell_words import TooLong, Word, cut

    try:
        words = [one for one in cut(text) if isinstance(one, Word)]
    except (ValueError, TooLong):
        return True
    ends = (one for word in words for one in (word, *(word.items or ())))
    return any("\r" in piece.text for word in ends for piece in word.pieces)
