"""A shell script run in thought: what is certain of variables and the folder at each command.

What a branch, a loop or another program may have changed is not known from there on.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import shell_syntax
from .script_path import UNKNOWN, is_own_folder
from .shell_syntax import Block, Chain, Command, Function, Kind, Node, parsed
from .shell_words import Argument, Piece, Word
from .wrapper import Start, start_of

_PLAIN = re.compile(r"\$(?:\{(\w+|[@*])\}|(\w+|[@*]))")
_DEFAULT = re.compile(r"\$\{(\w+)(:?)[-=]([^$`\"'\\{}]*)\}", re.DOTALL)
_ALL = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_SETS = re.compile(r"\$\{(\w+):?=")
_VLLM = re.compile(r"\$\((?:which|command -v|type -P|type -p) (?:-- )?vllm(?: *2> */dev/null)?\)")
_TARGET = re.compile(r"([A-Za-z_]\w*)(\[.*?\])?(\+?)=", re.DOTALL)
_SUCCEEDS = frozenset(
    {"cd", "pushd", "popd", "export", "echo", "mkdir", "set", "source", ".", "true", ":", "readonly",
     "declare", "typeset", "local", "ulimit", "umask", "shopt", ""}
)  # fmt: skip
_DECLARES = frozenset({"export", "readonly", "declare", "typeset", "local"})
_TAKES_NAMES = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "let", "printf"})
_DEEPEST = 12
_MOST = 20_000
"""Commands that are looked at in one script."""

Value = tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """A command that starts vLLM, with all that is known when it runs.

    Attributes:
        arguments: from vLLM's program or module on.
        environ: variables that are set, in the script or in front of it.
        folder: None where it is still the one in which the script was started.
        line: in the script, from 1.
        certain: whether it runs whenever the script does.
        elsewhere: the program that starts it in a container or on another machine.
    """

    arguments: tuple[Argument, ...]
    environ: Mapping[str, str]
    folder: str | None
    line: int
    certain: bool
    elsewhere: str = ""


@dataclass
class _State:
    """What is known at one place of a script."""

    variables: dict[str, Value] = field(default_factory=dict)
    arrays: frozenset[str] = frozenset()
    exported: frozenset[str] = frozenset()
    outer: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    stack: tuple[str | None, ...] = ()
    functions: dict[str, shell_syntax.Sequence] = field(default_factory=dict)
    certain: bool = True
    ended: bool = False
    elsewhere: str = ""
    depth: int = 0
    leaves: list[_State] = field(default_factory=list)
    returns: list[_State] = field(default_factory=list)

    def copy(self) -> _State:
        """Another that may go on otherwise; where a loop or a function ends is one for both."""
        return replace(self, variables=dict(self.variables), functions=dict(self.functions))

    def take(self, other: _State) -> None:
        """What is known there."""
        self.variables, self.arrays, self.folder = other.variables, other.arrays, other.folder
        self.exported, self.stack = other.exported, other.stack
        self.functions, self.ended = other.functions, other.ended

    def forget(self, name: str) -> None:
        """A variable may have any value."""
        self.variables.pop(name, None)

    @property
    def environ(self) -> dict[str, str]:
        """The variables that are no array."""
        own = {
            name: value[0]
            for name, value in self.variables.items()
            if name not in self.arrays and name != "@"
        }
        return {**self.outer, **own}


def calls(text: str, here: str = "", variables: Mapping[str, str] | None = None) -> list[Call]:
    """The commands of a script that start vLLM, in their order.

    Args:
        text: the script.
        here: the folder that it is in; empty where it is not known.
        variables: that are set before it runs.
    """
    run = _Run(here)
    state = _State({name: (value,) for name, value in (variables or {}).items()})
    run.sequence(parsed(text), state)
    if not run.found:
        # What is never called here may be called by what sources it.
        for body in list(state.functions.values()):
            later = state.copy()
            later.certain, later.ended = False, False
            run.sequence(body, later)
    return run.found


def calls_of(words: Sequence[Word], variables: Mapping[str, str], folder: str) -> list[Call]:
    """The same of one command that no shell runs, with its variables and its folder."""
    run = _Run("")
    state = _State({name: (value,) for name, value in variables.items()}, folder=folder)
    state.exported = frozenset(variables)
    run.sequence((Chain((("", (Command(tuple(words)),)),)),), state)
    return run.found


class _Run:
    def __init__(self, here: str) -> None:
        self.found: list[Call] = []
        self._here = here
        self._left = _MOST

    def sequence(self, chains: shell_syntax.Sequence, state: _State) -> None:
        """Run chains, and leave what is known behind them in the state."""
        for chain in chains:
            if state.ended or self._left <= 0:
                return
            self._chain(chain, state.copy() if chain.background else state)

    def _chain(self, chain: Chain, state: _State) -> None:
        certain, before = state.certain, state.copy()
        failed: list[_State] = []
        for operator, nodes in chain.steps:
            if operator == "||":
                other = _joined(failed or [before])
                other.certain = False
                self._pipeline(nodes, other)
                failed = [] if other.ended or _succeeds(nodes) else [other.copy()]
                ends = [one for one in (state, other) if not one.ended]
                if ends:
                    state.take(_joined(ends))
            elif not state.ended:
                before = state.copy()
                state.certain = certain and not failed
                self._pipeline(nodes, state)
                if not _succeeds(nodes):
                    failed.append(state.copy())
        state.certain = certain
        if len(chain.steps) > 1:
            ends = [one for one in (state, *failed) if not one.ended]
            if ends:
                state.take(_joined(ends))

    def _pipeline(self, nodes: Sequence[Node], state: _State) -> None:
        for node in nodes:
            self._node(node, state.copy() if len(nodes) > 1 else state)

    def _node(self, node: Node, state: _State) -> None:
        self._left -= 1
        if isinstance(node, Command):
            self._command(node, state)
        elif isinstance(node, Function):
            state.functions[node.name] = node.body
        else:
            self._block(node, state)

    def _block(self, block: Block, state: _State) -> None:
        if block.kind is Kind.SUBSHELL:
            self.sequence(block.first, state.copy())
            return
        self.sequence(block.first, state)
        if block.kind is Kind.GROUP or state.ended:
            return
        for name in block.names:
            state.forget(name)
        if block.kind is Kind.LOOP:
            # What one round sets, the next one has.
            found = len(self.found)
            self._parts(block, state)
            del self.found[found:]
            state.ended = False
        self._parts(block, state)

    def _parts(self, block: Block, state: _State) -> None:
        leaves, loops = state.leaves, block.kind is Kind.LOOP
        ends = [] if block.whole else [state.copy()]
        if loops:
            state.leaves = []
        for part in block.parts:
            within = state.copy()
            within.certain = False
            self.sequence(part, within)
            if not within.ended:
                ends.append(within)
        if loops:
            ends += state.leaves
            state.leaves = leaves
        if ends:
            state.take(_joined(ends))
        else:
            state.ended = True

    def _command(self, command: Command, state: _State) -> None:
        words = list(command.words)
        assigned: list[Word] = []
        while words and _target(words[0]):
            assigned.append(words.pop(0))
        for word in (*assigned, *words):
            for piece in word.pieces:
                sets = _SETS.match(piece.text) if piece.expands else None
                if sets and not "".join(state.variables.get(sets[1], ())):
                    state.forget(sets[1])
        if not words:
            for word in assigned:
                self._assign(word, state)
            return
        head = words[0].bare
        if head in ("builtin", "command") and len(words) > 1 and words[1].bare[:1] != "-":
            words.pop(0)
            head = words[0].bare
        if head in _DECLARES:
            self._declare(head, words[1:], state)
            return
        given = [one for word in words for one in self._expanded(word, state)]
        if head in ("exit", "return", "break", "continue"):
            if head != "exit":
                (state.returns if head == "return" else state.leaves).append(state.copy())
            state.ended = True
        elif head in ("cd", "pushd", "popd"):
            self._change(head, given[1:], state)
        elif head in _TAKES_NAMES:
            for one in given[1:]:
                for name in re.findall(r"[A-Za-z_]\w*", one.text):
                    state.forget(name)
        elif head == "shift" or (head == "set" and "--" in [one.text for one in given]):
            texts = [one.text for one in given]
            rest = given[texts.index("--") + 1 :] if head == "set" else []
            self._positional(rest if head == "set" else None, state)
        elif head in state.functions and state.depth < _DEEPEST:
            self._function(state.functions[head], given[1:], state)
        else:
            self._start(assigned, given, command.line, state)
            state.ended = state.ended or (head == "exec" and len(words) > 1)

    def _function(
        self, body: shell_syntax.Sequence, given: Sequence[Argument], state: _State
    ) -> None:
        own, returns, depth = state.variables.get("@"), state.returns, state.depth
        state.returns, state.depth = [], depth + 1
        self._positional(given, state)
        self.sequence(body, state)
        ends = [*([] if state.ended else [state]), *state.returns]
        if ends:
            state.take(_joined(ends))
            state.ended = False
        state.returns, state.depth = returns, depth
        state.forget("@")
        if own is not None:
            state.variables["@"] = own

    def _positional(self, given: Sequence[Argument] | None, state: _State) -> None:
        state.forget("@")
        for place in range(1, 10):
            state.forget(str(place))
        if given is not None and all(one.single and not one.computed for one in given):
            state.variables["@"] = tuple(one.text for one in given)

    def _start(
        self, assigned: Sequence[Word], given: Sequence[Argument], line: int, state: _State
    ) -> None:
        texts = [
            "vllm" if _stands_for_vllm(one, *given[place + 1 : place + 2]) else one.text
            for place, one in enumerate(given)
        ]
        if texts[:1] == ["eval"] and state.depth < _DEEPEST:
            self._evaluate(given[1:], state)
            return
        start = start_of(texts)
        if start is None:
            return
        within = state.copy()
        for word in assigned:
            self._assign(word, within)
        front = given if start.at is None else given[: start.at]
        odd = next((one for one in front if one.computed and not _is_program(one)), None)
        elsewhere = state.elsewhere or start.elsewhere
        if odd is not None and start.at is not None and not elsewhere:
            elsewhere = odd.name or "what stands in front"
        environ = {} if start.elsewhere else {**within.environ, **start.assigned}
        folder = _below(state.folder, start.folder)
        if start.at is None:
            if state.depth < _DEEPEST:
                inner = _inner(within, start, environ, elsewhere)
                inner.folder = UNKNOWN if start.elsewhere else folder
                self.sequence(parsed(start.text), inner)
            return
        self.found.append(
            Call(tuple(given[start.at :]), environ, folder, line, state.certain, elsewhere)
        )

    def _evaluate(self, given: Sequence[Argument], state: _State) -> None:
        if any(one.computed for one in given):
            state.variables.clear()
            state.folder = UNKNOWN
            return
        state.depth += 1
        self.sequence(parsed(" ".join(one.text for one in given)), state)
        state.depth -= 1

    def _change(self, head: str, given: Sequence[Argument], state: _State) -> None:
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
            state.folder = _below(state.folder, target) if target else state.folder
        if head == "pushd":
            state.stack = (*state.stack, before)

    def _declare(self, head: str, words: Sequence[Word], state: _State) -> None:
        options = "".join(word.bare for word in words if word.bare[:1] in ("-", "+"))
        exports = head == "export" or "x" in options
        for word in words:
            target = _target(word)
            if target:
                self._assign(word, state)
                if set(options) & set("niluA"):
                    state.forget(target[1])
            elif head in ("declare", "typeset", "local"):
                state.forget(word.bare)
            name = target[1] if target else word.bare
            if exports:
                state.exported |= {name}

    def _assign(self, word: Word, state: _State) -> None:
        target = _target(word)
        if target is None:
            return
        name, index, more = target[1], target[2], target[3]
        old = state.variables.get(name)
        state.forget(name)
        if word.items is not None:
            items = [one for item in word.items for one in self._expanded(item, state)]
            known = all(one.single and not one.computed for one in items)
            if known and not index and (not more or (old is not None and name in state.arrays)):
                state.variables[name] = (*(old or () if more else ()), *(one.text for one in items))
                state.arrays |= {name}
            return
        first = word.pieces[0].text[target.end() :]
        if first.startswith("~/"):
            first = os.path.expanduser(first)  # noqa: PTH111
        pieces = (Piece(first, quoted=True), *(replace(one, quoted=True) for one in word.pieces[1:]))
        (value, *others) = self._expanded(Word(pieces), state) or [Argument("")]
        if others or value.computed or index or (more and (old is None or name in state.arrays)):
            return
        state.arrays -= {name}
        state.variables[name] = ((old or ("",))[0] * bool(more) + value.text,)

    def _expanded(self, word: Word, state: _State) -> list[Argument]:
        """The words that one word becomes."""
        done: list[Argument] = []
        current, there = Argument(""), False
        if word.items is not None:
            return [Argument("", computed=True, single=False)]
        for piece in word.pieces:
            if not piece.expands:
                current = replace(current, text=current.text + piece.text)
                there = there or piece.quoted or bool(piece.text)
                continue
            value, listed = self._value(piece.text, state)
            if value is None:
                plain = _PLAIN.fullmatch(piece.text)
                current = Argument(
                    current.text + piece.text,
                    computed=True,
                    single=current.single and piece.quoted and not _is_list(piece.text),
                    name=f"${plain[1] or plain[2]}" if plain else current.name,
                )
                there = True
                continue
            parts = list(value) if listed else [value[0]]
            if not piece.quoted:
                parts = [part for one in parts for part in one.split()]
                spaced = "".join(value)[:1].isspace()
                if there and spaced:
                    done.append(current)
                    current, there = Argument(""), False
            for place, part in enumerate(parts):
                if place:
                    done.append(current)
                    current = Argument("")
                current = replace(current, text=current.text + part)
                there = True
            if there and parts and not piece.quoted and "".join(value)[-1:].isspace():
                done.append(current)
                current, there = Argument(""), False
            if listed and not parts and piece.quoted and not current.text:
                there = False
        return [*done, current] if there else done

    def _value(self, text: str, state: _State) -> tuple[Value | None, bool]:
        """What an expansion gives, and whether that is a list; None where it is not known."""
        variables = state.variables
        plain, every = _PLAIN.fullmatch(text), _ALL.fullmatch(text)
        if plain or every:
            name = (plain[1] or plain[2]) if plain else every[1] if every else ""
            name = "@" if name == "*" else name
            if name.isdigit() and name != "0" and "@" in variables:
                return (*variables["@"], *[""] * 9)[int(name) - 1 :][:1] or None, False
            value = variables.get(name)
            if value is None and name == "HOME":
                value = (os.path.expanduser("~"),)  # noqa: PTH111
            if value is None and name == "PWD" and os.path.isabs(state.folder or ""):  # noqa: PTH117
                value = (state.folder or "",)
            if value is None or name == "@" or every:
                return value, True
            return value[:1] or ("",), False
        default = _DEFAULT.fullmatch(text)
        if default:
            value = variables.get(default[1])
            # Without the colon an empty value stays.
            filled = value[0] or (default[3] if default[2] else "") if value else ""
            return ((filled,) if value else None), False
        if _VLLM.fullmatch(text.replace('"', "")):
            return ("vllm",), False
        if self._here and state.folder is None and is_own_folder(text):
            return (self._here,), False
        return None, False


def _joined(states: Sequence[_State]) -> _State:
    """What is known whichever of these came about."""
    first, *others = states
    found = first.copy()
    found.variables = {
        name: value
        for name, value in first.variables.items()
        if all(one.variables.get(name) == value for one in others)
    }
    for one in others:
        found.arrays |= one.arrays
        found.exported &= one.exported
        found.functions = {**one.functions, **found.functions}
        if one.folder != found.folder:
            found.folder = UNKNOWN
        if one.stack != found.stack:
            found.stack = ()
    found.ended = False
    return found


def _inner(state: _State, start: Start, environ: Mapping[str, str], elsewhere: str) -> _State:
    """Where another shell begins: with what was exported to it."""
    inner = state.copy()
    names = inner.exported if not start.elsewhere else frozenset()
    inner.variables = {name: state.variables[name] for name in names & set(state.variables)}
    inner.outer, inner.elsewhere, inner.depth = environ, elsewhere, state.depth + 1
    inner.functions, inner.stack = {}, ()
    return inner


def _target(word: Word) -> re.Match[str] | None:
    first = word.pieces[0] if word.pieces else Piece("")
    return None if first.expands or first.quoted else _TARGET.match(first.text)


def _succeeds(nodes: Sequence[Node]) -> bool:
    """Whether what comes behind ``&&`` is taken to run."""
    (node, *others) = nodes
    if others or not isinstance(node, Command):
        return isinstance(node, Function)
    words = [word for word in node.words if not _target(word)]
    asks = any(piece.text[:2] in ("$(", "`") for word in node.words for piece in word.pieces)
    return (words[0].bare in _SUCCEEDS) if words else not asks


def _below(folder: str | None, target: str | None) -> str | None:
    """The folder after a change from one; a target of None is no change."""
    if target is None:
        return folder
    if target == UNKNOWN or (folder == UNKNOWN and not os.path.isabs(target)):  # noqa: PTH117
        return UNKNOWN
    return os.path.join(folder or "", target)  # noqa: PTH118


def _is_list(text: str) -> bool:
    return text in ("$@", "${@}") or "[@]" in text or text.startswith("${@")


def _stands_for_vllm(one: Argument, *following: Argument) -> bool:
    serves = bool(following) and following[0].text == "serve"
    return one.computed and serves and "vllm" in one.text.lower()


def _is_program(one: Argument) -> bool:
    """Whether a word that is put together is a folder's program, and no command in front."""
    return re.search(r"python|vllm|venv|/bin/|^\W*PY", one.text, re.IGNORECASE) is not None
