"""Names of files and folders in a shell script, as far as they can be told without running it."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping, Sequence

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SELF = r"\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?\})"
_DIRNAME = re.compile(rf"\$\(dirname (?:-- )?{_SELF}\)")
_ASKED = rf"[\"']?(\$\(.*\bdirname\b.*{_SELF}[^;&|]*?(?:&& *pwd[^;&|]*?)?\))[\"']?"
_REDIRECTED = re.compile(r"\s*(?:[&\d]?>{1,2} ?/dev/null|2>&1)")
_OWN_FOLDER = re.compile(rf"\s*(?:export\s+|readonly\s+)?(\w+)={_ASKED}\s*")
_OWN_CD = re.compile(rf"\s*cd\s+(?:--\s+)?{_ASKED}\s*(?:(?:&&|\|\||;).*)?", re.DOTALL)
_CONFIG = "--config"
UNKNOWN = ""
"""A folder that can't be told."""


def own_folder(line: str, here: str) -> Iterator[tuple[str, str]]:
    """The variable that a line gives the script's own folder, with that; none where it does not."""
    found = _OWN_FOLDER.fullmatch(_REDIRECTED.sub("", line))
    if found and here and _is_own(found[2]):
        yield found[1], here


def spelt_out(word: str, variables: Mapping[str, str], here: str) -> str:
    """A word with what is known of its variables put in.

    Args:
        word: as it stands in the script, without its quotes.
        variables: that the script sets.
        here: the script's folder; empty where it is not known.
    """
    if here:
        word = _DIRNAME.sub(lambda _: here, word)
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), word)


def changed(
    line: str, words: Sequence[str], folder: str | None, variables: Mapping[str, str], here: str
) -> str | None:
    """The folder after a line; None where it is still that in which the script was started."""
    own = _OWN_CD.fullmatch(_REDIRECTED.sub("", line))
    if own:
        return here if here and _is_own(own[1]) else UNKNOWN
    for place, word in enumerate(words):
        if word.rpartition("/")[2] == "vllm" or word.startswith("vllm."):
            break
        if word not in ("cd", "pushd"):
            continue
        rest = [one for one in words[place + 1 :] if one not in ("--", "-P", "-L")]
        target = spelt_out(rest[0], variables, here).rstrip(";") if rest else "~"
        if computed(target) or target == "-":
            return UNKNOWN
        target = os.path.expanduser(target)  # noqa: PTH111
        if folder != UNKNOWN or os.path.isabs(target):  # noqa: PTH117
            folder = os.path.join(folder or "", target)  # noqa: PTH118
    return folder


def config_named(args: Sequence[str], variables: Mapping[str, str], here: str) -> tuple[str, ...]:
    """vLLM's arguments with the name behind ``--config`` spelt out."""
    return tuple(
        spelt_out(word, variables, here) if place and args[place - 1] == _CONFIG else word
        for place, word in enumerate(args)
    )


def computed(word: str) -> bool:
    """Whether a shell would still put something in."""
    return "$" in word or "`" in word


def _is_own(text: str) -> bool:
    """Whether a command gives the script's folder itself, and not one above or below it."""
    return "/" not in text and ".." not in text and text.count("dirname") == 1
