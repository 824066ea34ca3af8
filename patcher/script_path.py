"""Names of files and folders in a shell script, as far as they can be told without running it."""

from __future__ import annotations

import re

_SELF = r"\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?\})"
_ASKED = re.compile(rf"\$\(.*\bdirname\b.*{_SELF}[^;&|]*?(?:&& *pwd[^;&|]*?)?\)", re.DOTALL)
_REDIRECTED = re.compile(r"\s*(?:[&\d]?>{1,2} ?/dev/null|2>&1)")
UNKNOWN = ""
"""A folder that can't be told."""


def is_own_folder(text: str) -> bool:
    """Whether ``$(...)`` gives the folder of the script itself, and not one above or below it."""
    plain = _REDIRECTED.sub("", text)
    if "/" in plain or ".." in plain or plain.count("dirname") != 1:
        return False
    return _ASKED.fullmatch(plain) is not None


def computed(word: str) -> bool:
    """Whether a shell would still put something in."""
    return "$" in word or "`" in word
