"""What a shell makes of a word, as far as that is known."""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass, field

from .script_path import is_own_folder
from .shell_state import Argument, State, Value
from .shell_words import Word

_PLAIN = re.compile(r"\$(?:\{(\w+|[@*])\}|(\w+|[@*]))")
_DEFAULT = re.compile(r"\$\{(\w+)(:?)[-=]([^$`\"'\\{}]*)\}", re.DOTALL)
_ALL = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_LONGEST = 200_000
"""Characters that are put into one word."""
_NAME = re.compile(r"\$\{?(\w+|[@*])")
_VLLM = re.compile(r"\$\((?:which|command -v|type -P|type -p) (?:-- )?vllm(?: *2> */dev/null)?\)")


@dataclass
class _Open:
    """A word that is being put together."""

    parts: list[str] = field(default_factory=list)
    there: bool = False
    computed: bool = False
    single: bool = True
    name: str = ""

    def put(self, text: str) -> None:
        self.parts.append(text)
        self.there = True

    def end(self) -> list[Argument]:
        """The word, where there is one."""
        text = "".join(self.parts)
        return [Argument(text, self.computed, self.single, self.name)] if self.there else []


def expanded(word: Word, state: State) -> list[Argument]:
    """The words that one word becomes."""
    done: list[Argument] = []
    current, length = _Open(), 0
    for piece in word.pieces:
        if not piece.expands:
            if piece.quoted or piece.text:
                current.put(piece.text)
            continue
        found, listed = value(piece.text, state)
        length += sum(map(len, found or ()))
        if length > _LONGEST:
            found = None
        if found is None:
            name = _NAME.match(piece.text)
            current.put(piece.text)
            current.computed = True
            current.single = current.single and piece.quoted and not _is_list(piece.text)
            current.name = f"${name[1]}" if name else "what a command prints"
            continue
        parts = list(found)
        if not piece.quoted:
            whole = " ".join(found)
            parts = whole.split()
            if whole[:1].isspace() and current.there:
                done += current.end()
                current = _Open()
        elif listed and not parts and not "".join(current.parts):
            # "$@" of nothing is no word.
            current.there = False
        for place, part in enumerate(parts):
            if place:
                done += current.end()
                current = _Open()
            current.put(part)
        if not piece.quoted and parts and whole[-1:].isspace():
            done += current.end()
            current = _Open()
    if word.items is not None:
        return [Argument("", computed=True, single=False)]
    return done + current.end()


def value(text: str, state: State) -> tuple[Value | None, bool]:
    """What an expansion gives, and whether that is a list; None where it is not known."""
    variables = state.variables
    found: Value | None
    plain, every = _PLAIN.fullmatch(text), _ALL.fullmatch(text)
    if plain or every:
        name = (plain[1] or plain[2]) if plain else every[1] if every else ""
        name = "@" if name == "*" else name
        if name.isdigit() and name != "0" and "@" in variables:
            return (*variables["@"], *[""] * 9)[int(name) - 1 :][:1] or None, False
        found = variables.get(name)
        if found is None and name == "HOME":
            found = (os.path.expanduser("~"),)  # noqa: PTH111
        if found is None and name == "PWD" and os.path.isabs(state.folder or ""):  # noqa: PTH117
            found = (state.folder or "",)
        if found is None or name == "@" or every:
            return found, True
        return found[:1] or ("",), False
    default = _DEFAULT.fullmatch(text)
    if default:
        found = variables.get(default[1])
        # Without the colon an empty value stays.
        filled = found[0] or (default[3] if default[2] else "") if found else ""
        return ((filled,) if found else None), False
    if _VLLM.fullmatch(text.replace('"', "")):
        return ("vllm",), False
    told = state.rooted or state.folder == state.began
    if state.here and told and is_own_folder(text):
        return (state.here,), False
    return None, False


def _is_list(text: str) -> bool:
    return text in ("$@", "${@}") or "[@]" in text or text.startswith("${@")
