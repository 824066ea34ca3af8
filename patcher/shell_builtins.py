"""Commands of a shell that change its variables and its folder."""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from .script_path import UNKNOWN
from .shell_braces import braces
from .shell_expansion import expanded
from .shell_state import State, below
from .shell_syntax import Command, Function, Node
from .shell_variables import Argument, Variable, untold
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
_SETS = re.compile(r"\$\{(\w+):?=")
_COUNTS = re.compile(
    r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*(\w+)"
)
"""A variable that arithmetic changes."""
_NAMED = re.compile(r"([A-Za-z_]\w*)(\+?=|$)")
_NAMES_OF = re.compile(r"\$\{!(\w+)[@*]\}")
"""The names of all variables that begin so."""
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
    old, listed = state.value(name), state.variables.of_name(name).listed
    if word.items is not None:
        items = [one for item in word.items for one in expanded(item, state)]
        value = (*(old or () if more else ()), *items)
        known = not index and (not more or (old is not None and listed))
        short = len(value) <= _MOST_ITEMS and sum(len(one.text) for one in value) <= _LONGEST
        state.set(name, value if known and short else None, listed=True)
        return
    first = word.pieces[0].text[target.end() :]
    if first.startswith("~/"):
        first = os.path.expanduser(first)  # noqa: PTH111
    pieces = (Piece(first, quoted=True), *(replace(one, quoted=True) for one in word.pieces[1:]))
    given = expanded(Word(pieces), state) or [Argument("")]
    if len(given) > 1 or index or (more and (old is None or listed)):
        state.set(name, None, listed=listed)
        return
    set_to(name, given[0], state, before=old[0] if old and more else None)


def set_to(name: str, given: Argument, state: State, before: Argument | None = None) -> None:
    """A variable that is set to a word, behind what it was before."""
    before = before or Argument("")
    text, computed = before.text + given.text, before.computed or given.computed
    if len(text) <= _LONGEST and not (given.computed and _INNER.search(given.text)):
        state.set(name, (Argument(text, computed, name=given.name or before.name),))
    else:
        state.forget(name)


def declare(
    head: str, words: Sequence[Word], state: State, line: int, given: Sequence[Argument] = ()
) -> None:
    """Variables that are exported, or declared otherwise.

    Args:
        head: the command.
        words: behind it.
        state: what is known there.
        line: where it stands.
        given: words that stand before those, where another one became the command and them.
    """
    options = _options(given, words)
    for word in chain(map(_word, given), chain.from_iterable(map(braces, words))):
        if word.bare[:1] in ("-", "+"):
            continue
        if target_of(word):
            _declared(head, word, options, state)
            continue
        # What is quoted, or put in, names a variable all the same.
        for one in expanded(word, state):
            name = _NAMED.match(one.text)
            if name is None or (one.computed and not name[2]):
                if one.computed:
                    state.variables.lose(untold(head, one, line))
                continue
            _declared(head, _word(one), options, state)


def _word(given: Argument) -> Word:
    """A word as it is given, of which what is assigned stands in the first part."""
    name, equals, text = given.text.partition("=")
    if not equals:
        return Word((Piece(name, quoted=given.computed),))
    rest = Piece(text, expands=given.computed, quoted=True)
    return Word((Piece(name + equals), rest))


def _options(given: Sequence[Argument], words: Sequence[Word]) -> tuple[str, str]:
    texts = [*(one.text for one in given), *(word.bare for word in words)]
    set_, back = (
        "".join(text[1:] for text in texts if re.fullmatch(rf"[{sign}][A-Za-z]+", text))
        for sign in "-+"
    )
    return set_, back


def _declared(head: str, word: Word, options: tuple[str, str], state: State) -> None:
    target = target_of(word)
    given, back = options
    name = target[1] if target else word.bare
    local = head in ("declare", "typeset", "local")
    if local and "g" not in given:
        state.own.add(name)
    if target:
        assign(word, state)
        # Outside of a function, local is an error.
        if (head != "export" and set(given) & set("niluA")) or (
            head == "local" and not state.functions_around
        ):
            state.forget(name)
    elif local:
        state.forget(name)
    if local and "n" in given:
        state.variables.put(name, Variable(touched=True, refers=True))
    elif "x" in back or (head == "export" and "n" in given):
        state.export(name, given=False)
    elif head == "export" or "x" in given:
        state.export(name)


def take(head: str, given: Sequence[Argument], state: State, line: int) -> None:
    """Variables that a command sets to what is not known, or takes away."""
    if head == "printf":
        given = given[1:2]
    for one in given:
        prefix = _NAMES_OF.fullmatch(one.text)
        if head == "unset" and prefix:
            for name, known in list(state.variables.known.items()):
                if name.startswith(prefix[1]) and known.touched and not known.gone:
                    state.unset(name)
        elif one.computed:
            state.variables.lose(untold(head, one, line))
        else:
            for name in re.findall(r"[A-Za-z_]\w*", one.text):
                if head == "unset":
                    state.unset(name)
                else:
                    state.forget(name)


def counted(words: Sequence[Word], state: State) -> None:
    """Variables that arithmetic and ``${NAME:=VALUE}`` change inside of words."""
    for piece in (piece for word in words for piece in word.pieces if piece.expands):
        if "((" in piece.text[:3]:
            for name in _COUNTS.findall(piece.text):
                state.forget("".join(name))
        sets = _SETS.match(piece.text)
        if sets and not any(one.text for one in state.value(sets[1]) or ()):
            state.forget(sets[1])


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
    state.set("@", None if given is None else tuple(given), listed=True)


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
