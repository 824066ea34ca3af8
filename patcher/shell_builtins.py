"""Commands of a shell that change its variables and its folder."""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from dataclasses import replace

from .script_path import UNKNOWN
from .shell_expansion import expanded
from .shell_state import Argument, State, below
from .shell_syntax import Command, Function, Node
from .shell_words import Piece, Word

_LONGEST = 20_000
_MOST_ITEMS = 1000
"""A value that is made of itself has no end: so long one may be."""
_SUCCEEDS = frozenset(
    {"cd", "export", "echo", "mkdir", "set", "source", ".", "true", ":", ""}
    | {"readonly", "declare", "typeset", "local", "ulimit", "umask", "shopt"}
)
_INNER = re.compile(r"\$\(|`|\$\{[^}]*[\s'\"]")
"""What is put in, and has blanks or quotes that are not the value's."""
_TARGET = re.compile(r"([A-Za-z_]\w*)(\[.*?\])?(\+?)=", re.DOTALL)


def target_of(word: Word) -> re.Match[str] | None:
    """Name, index and plus sign of what a word assigns to; None where it assigns nothing."""
    first = word.pieces[0] if word.pieces else Piece("")
    return None if first.expands or first.quoted else _TARGET.match(first.text)


def assign(word: Word, state: State) -> None:
    """A variable or an array that is set; one that can't be read is not known from here on."""
    target = target_of(word)
    if target is None:
        return
    name, index, more = target[1], target[2], target[3]
    old = state.variables.get(name)
    if word.items is not None:
        items = [one for item in word.items for one in expanded(item, state)]
        state.forget(name)
        if not index and (not more or (old is not None and name in state.arrays)):
            value = (*(old or () if more else ()), *items)
            if len(value) <= _MOST_ITEMS and sum(len(one.text) for one in value) <= _LONGEST:
                state.variables[name] = value
                state.arrays |= {name}
        return
    first = word.pieces[0].text[target.end() :]
    if first.startswith("~/"):
        first = os.path.expanduser(first)  # noqa: PTH111
    pieces = (Piece(first, quoted=True), *(replace(one, quoted=True) for one in word.pieces[1:]))
    (given, *others) = expanded(Word(pieces), state) or [Argument("")]
    state.forget(name)
    if state.exports:
        state.exported |= {name}
    if others or index or (more and (old is None or name in state.arrays)):
        return
    before = old[0] if old and more else Argument("")
    text, computed = before.text + given.text, before.computed or given.computed
    if len(text) <= _LONGEST and not (given.computed and _INNER.search(given.text)):
        state.arrays -= {name}
        state.variables[name] = (Argument(text, computed, name=given.name or before.name),)


def declare(head: str, words: Sequence[Word], state: State) -> None:
    """Variables that are exported, or declared otherwise."""
    options = "".join(word.bare for word in words if word.bare[:1] == "-")
    takes_back = any(re.fullmatch(r"\+[a-z]*x[a-z]*", word.bare) for word in words)
    takes_back = takes_back or (head == "export" and "n" in options)
    exports = (head == "export" or "x" in options) and not takes_back
    for word in words:
        target = target_of(word)
        if target:
            assign(word, state)
            # Outside of a function, local is an error.
            if (head != "export" and set(options) & set("niluA")) or (
                head == "local" and not state.functions_around
            ):
                state.forget(target[1])
        elif head in ("declare", "typeset", "local"):
            state.forget(word.bare)
        name = target[1] if target else word.bare
        if head in ("declare", "typeset", "local") and "g" not in options:
            state.own.add(name)
        if exports:
            state.exported |= {name}
        elif takes_back:
            state.exported -= {name}


def change(head: str, given: Sequence[Argument], state: State) -> None:
    """Another folder, by cd, pushd or popd."""
    if head == "popd":
        state.folder = state.stack[-1] if state.stack and not given else UNKNOWN
        state.stack = state.stack[:-1]
        return
    before = state.folder
    rest = [one for one in given if one.text not in ("--", "-P", "-L", "-e")]
    if not rest and head == "cd":
        state.folder = os.path.expanduser("~")  # noqa: PTH111
    elif not rest or rest[0].computed or rest[0].text[:1] in ("-", "+"):
        state.folder = UNKNOWN
    else:
        target = os.path.expanduser(rest[0].text)  # noqa: PTH111
        state.folder = below(state.folder, target) if target else state.folder
    if head == "pushd":
        state.stack = (*state.stack, before)


def positional(given: Sequence[Argument] | None, state: State) -> None:
    """Arguments that are set; None for some that are not known."""
    state.forget("@")
    if given is not None:
        state.variables["@"] = tuple(given)


def options(given: Sequence[Argument], state: State) -> None:
    """Options of the shell, and its arguments where they are set, by ``set``."""
    texts = [one.text for one in given]
    for place, text in enumerate(texts):
        if text == "--":
            positional(given[place + 1 :], state)
            return
        if re.fullmatch(r"[-+][A-Za-z]+", text) is None:
            continue
        long = texts[place + 1 : place + 2] == ["allexport"] and text[-1:] == "o"
        if long or "a" in text:
            state.exports = text[0] == "-"


def leave(head: str, state: State) -> None:
    """The end of a script, a function or a loop's round; outside of these nothing ends."""
    around = state.functions_around or state.files_around
    if head == "exit":
        state.ended = True
    elif around if head == "return" else state.loops:
        (state.returns if head == "return" else state.leaves).append(state.copy())
        state.ended = True


def succeeds(nodes: Sequence[Node]) -> bool:
    """Whether what comes behind ``&&`` is taken to run."""
    (node, *others) = nodes
    if others or not isinstance(node, Command):
        return isinstance(node, Function)
    words = [word for word in node.words if not target_of(word)]
    asks = any(piece.text[:2] in ("$(", "`") for word in node.words for piece in word.pieces)
    return (words[0].bare in _SUCCEEDS) if words else not asks
