"""Sentences as comment lines of the files that kvpatch writes."""

from __future__ import annotations

import re
import textwrap

_WIDTH = 98
_QUOTED = re.compile(r"`[^`]*`")
_KEPT = "\0"


def comment(text: str, first: str = "") -> list[str]:
    """A sentence as comment lines; what stands between backticks stays on one line."""
    whole = _QUOTED.sub(lambda found: found[0].replace(" ", _KEPT), text)
    lines = textwrap.wrap(
        " ".join(whole.split()),
        _WIDTH,
        initial_indent=f"# {first}",
        subsequent_indent="# " + " " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_KEPT, " ") for line in lines]
