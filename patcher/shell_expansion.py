"""What a shell makes of a word, as far as that is known."""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass, field, replace

from .script_path import computed, is_own_folder
from .shell_braces import braces
from .shell_state import State
from .shell_variables import Argument, Value
from .shell_words import Piece, Word

_PLAIN = re.compile(r"\$(?:\{(\w+|[@*])\}|(\w+|[@*]))")
_DEFAULT = re.compile(r"\$\{(\w+)(:?)[-=]([^$`\"'\\{}]*)\}", re.DOTALL)
_ALL = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_PATTERN = re.compile(r"[*?]|\{[^{}]*(?:,|\.\.)[^{}]*\}")
"""What the shell makes other words of."""
_HOME = re.compile(r"[A-Za-z_]\w*=~(?:/|$)")
_FILES = re.compile(r"[*?]")
_OTHER = "x"
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

    def take(self, part: Argument) -> None:
        self.put(part.text)
        if part.computed:
            self.computed = True
            self.name = part.name
        self.single = self.single and part.single

    def end(self) -> list[Argument]:
        """The word, where there is one."""
        text = "".join(self.parts)
        return [Argument(text, self.computed, self.single, self.name)] if self.there else []


def expanded(word: Word, state: State) -> list[Argument]:
    """The words that one word becomes."""
    return [found for one in braces(word) for found in _expanded(_homed(one), state)]


def _homed(word: Word) -> Word:
    """A word with the folder that a tilde stands for, where it looks like an assignment."""
    (first, *others) = word.pieces or (Piece(""),)
    if first.expands or first.quoted or not _HOME.match(first.text):
        return word
    name, _, rest = first.text.partition("=")
    text = f"{name}={os.path.expanduser(rest)}"  # noqa: PTH111
    return replace(word, pieces=(Piece(text), *others))


def _expanded(word: Word, state: State) -> list[Argument]:
    done: list[Argument] = []
    current, length, emptied = _Open(), 0, False
    for piece in word.pieces:
        if not piece.expands:
            if piece.quoted or piece.text:
                current.put(piece.text)
            continue
        whole = ""
        found, listed = value(piece.text, state, quoted=piece.quoted)
        length += sum(len(one.text) for one in found or ())
        if length > _LONGEST or (not piece.quoted and state.variables.of_name("IFS").touched):
            found = None
        if found is None:
            name = _NAME.match(piece.text)
            told = f"${name[1]}" if name else "what a command prints"
            single = piece.quoted and not _is_list(piece.text)
            found = (Argument(piece.text, computed=True, single=single, name=told),)
        elif not piece.quoted:
            whole = " ".join(one.text for one in found)
            if whole[:1].isspace() and current.there:
                done += current.end()
                current = _Open()
            found = tuple(part for one in found for part in _split(one))
        elif listed and not found:
            emptied = True
        for place, part in enumerate(found):
            if place:
                done += current.end()
                current = _Open()
            current.take(part)
        if not piece.quoted and found and not found[-1].computed and whole[-1:].isspace():
            done += current.end()
            current = _Open()
    if word.items is not None:
        return [Argument("", computed=True, single=False)]
    if _PATTERN.search(
        "".join(_OTHER if one.expands or one.quoted else one.text for one in word.pieces)
    ):
        # Which files there are, or how many words it becomes, is the shell's.
        ends = (replace(one, computed=True, single=False) for one in current.end())
        return [*done, *ends]
    if emptied and not done and not "".join(current.parts):
        # "$@" of nothing is no word.
        return []
    return done + current.end()


def _split(one: Argument) -> list[Argument]:
    """The words of a value that is put in without quotes."""
    if not one.computed:
        texts = one.text.split()
        return [
            replace(one, text=text, computed=True, single=False)
            if _FILES.search(text)
            else Argument(text)
            for text in texts
        ]
    parts = one.text.split()
    return [
        replace(one, text=text, single=False) if computed(text) else Argument(text)
        for text in parts
    ]


def value(text: str, state: State, *, quoted: bool = False) -> tuple[Value | None, bool]:
    """What an expansion gives, and whether that is a list; None where it is not known."""
    found: Value | None
    plain, every = _PLAIN.fullmatch(text), _ALL.fullmatch(text)
    if plain or every:
        name = (plain[1] or plain[2]) if plain else every[1] if every else ""
        given = state.value("@")
        if name.isdigit() and name != "0" and given is not None:
            return _positional(int(name), given), False
        found = state.value("@" if name == "*" else name)
        if found is None and name == "HOME":
            found = (Argument(os.path.expanduser("~")),)  # noqa: PTH111
        if found is None and name == "PWD" and os.path.isabs(state.folder or ""):  # noqa: PTH117
            found = (Argument(state.folder or ""),)
        if found is not None and quoted and (name == "*" or (every and "[*]" in text)):
            fields = state.variables.of_name("IFS").touched
            return (None if fields else (_one(found),)), False
        if found is None or name in ("@", "*") or every:
            return found, True
        return found[:1] or (Argument(""),), False
    default = _DEFAULT.fullmatch(text)
    if default:
        found = state.value(default[1])
        if found is None or (found and found[0].computed):
            return None, False
        # Without the colon an empty value stays.
        filled = (found[0].text if found else "") or (default[3] if default[2] or not found else "")
        return (Argument(filled),), False
    if text in ("$(pwd)", "`pwd`") and os.path.isabs(state.folder or ""):  # noqa: PTH117
        return (Argument(state.folder or ""),), False
    if _VLLM.fullmatch(text.replace('"', "")):
        return (Argument("vllm"),), False
    told = state.rooted or state.folder == state.began
    if state.here and told and is_own_folder(text):
        return (Argument(state.here),), False
    return None, False


def _positional(place: int, given: Value) -> Value | None:
    """The argument of that number; None where it can't be told which one that is."""
    if not all(one.single for one in given[:place]):
        return None
    return given[place - 1 : place] or (Argument(""),)


def _one(items: Value) -> Argument:
    """Items that become one word."""
    name = next((one.name for one in items if one.computed), "")
    return Argument(
        " ".join(one.text for one in items), any(one.computed for one in items), name=name
    )


def _is_list(text: str) -> bool:
    return text in ("$@", "${@}") or "[@]" in text or text.startswith("${@")
