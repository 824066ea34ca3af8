"""A shell script run in thought: what is certain of variables and the folder at each command.

What a branch, a loop or another program may have changed is not known from there on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import itemgetter

from . import script_file, shell_inner, shell_start, shell_syntax
from .script_path import computed
from .shell_builtins import (
    assign,
    change,
    counted,
    declare,
    leave,
    options,
    positional,
    succeeds,
    take,
    target_of,
)
from .shell_expansion import expanded
from .shell_state import Call, Defined, State, below, joined
from .shell_syntax import Block, Chain, Command, Function, Kind, Node, parsed
from .shell_variables import Argument, Variables, untold
from .shell_words import TooLong, Word
from .wrapper import MODULE, Start, start_of

_DECLARES = frozenset({"export", "readonly", "declare", "typeset", "local"})
_TAKES_NAMES = frozenset({"read", "mapfile", "readarray", "getopts", "unset", "let"})
_ACTIVATES = re.compile(r"/bin/activate$")
_DEEPEST = 12
_UNCALLED = 200
"""Functions that are looked into although nothing calls them."""
_WORDS = 50_000
"""Words of one command."""
_INSIDE = 100
"""Blocks and functions inside of each other."""
_MOST = 50_000
"""Commands that are looked at in one script."""
_LETTERS = 100
"""Characters of a file that count as one of them."""


def calls(text: str, here: str = "", read: script_file.Reader = script_file.nothing) -> list[Call]:
    """The commands of a script that start vLLM, in their order.

    Args:
        text: the script.
        here: the folder that it is in; empty where it is not known.
        read: what it sources, and scripts that it starts.

    Raises:
        TooLong: it has more commands than are looked at.
    """
    run = _Run(read)
    state = State(here=here)
    run.sequence(parsed(text), state)
    if not run.found:
        # What is never called here may be called by what sources it.
        for _, one in islice(sorted(state.functions.items(), key=itemgetter(0)), _UNCALLED):
            later = state.copy()
            later.certain, later.ended, later.here = False, False, one.here
            run.sequence(one.body, later)
    return run.found


def calls_of(
    words: Sequence[Word],
    variables: Mapping[str, str],
    folder: str,
    read: script_file.Reader = script_file.nothing,
    causes: Sequence[str] = (),
) -> list[Call]:
    """The same of one command that no shell runs, with its variables and its folder.

    ``causes`` are what may set others, or these to something else.
    """
    run = _Run(read)
    state = State(Variables.of(variables, exported=True), folder=folder)
    for cause in causes:
        state.variables.lose(cause)
    run.sequence((Chain((("", (Command(tuple(words)),)),)),), state)
    return run.found


class _Run:
    def __init__(self, read: script_file.Reader) -> None:
        self.found: list[Call] = []
        self._read = read
        self._left, self._deep = _MOST, 0
        self._running: list[shell_syntax.Sequence] = []

    def sequence(self, chains: shell_syntax.Sequence, state: State) -> None:
        """Run chains, and leave what is known behind them in the state."""
        for chain in chains:
            if state.ended:
                return
            self._chain(chain, state.copy() if chain.background else state)

    def _chain(self, chain: Chain, state: State) -> None:
        if len(chain.steps) == 1:
            self._pipeline(chain.steps[0][1], state)
            return
        certain, before = state.certain, state.copy()
        failed: State | None = None
        for operator, nodes in chain.steps:
            if operator == "||":
                other = joined([failed or before])
                other.certain = False
                self._pipeline(nodes, other)
                failed = None if other.ended or succeeds(nodes) else other.copy()
                ends = [one for one in (state, other) if not one.ended]
                if ends:
                    state.take(joined(ends))
            elif not state.ended:
                before = state.copy()
                state.certain = certain and failed is None
                self._pipeline(nodes, state)
                if not succeeds(nodes):
                    left = [one for one in (failed, state) if one is not None]
                    failed = joined(left)
                    failed.ended = all(one.ended for one in left)
        state.certain = certain
        ends = [one for one in (state, failed) if one is not None and not one.ended]
        if ends:
            state.take(joined(ends))

    def _pipeline(self, nodes: Sequence[Node], state: State) -> None:
        for node in nodes:
            self._node(node, state.copy() if len(nodes) > 1 else state)

    def _node(self, node: Node, state: State) -> None:
        self._left -= 1
        self._deep += 1
        if self._left <= 0 or self._deep > _INSIDE:
            raise TooLong
        if isinstance(node, Command):
            self._command(node, state)
        elif isinstance(node, Function):
            state.functions[node.name] = Defined(node.body, state.here)
        else:
            self._block(node, state)
        self._deep -= 1

    def _block(self, block: Block, state: State) -> None:
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
            found, before = len(self.found), state.copy()
            self._parts(block, state)
            ended, state.ended = state.ended, False
            if before.same(state):
                state.ended = ended
                return
            del self.found[found:]
        self._parts(block, state)

    def _parts(self, block: Block, state: State) -> None:
        leaves, loops = state.leaves, block.kind is Kind.LOOP
        ends = [] if block.whole else [state.copy()]
        if loops:
            state.leaves = []
        for part in block.parts:
            within = state.copy()
            within.certain = False
            within.loops += loops
            self.sequence(part, within)
            if not within.ended:
                ends.append(within)
        if loops:
            ends += state.leaves
            state.leaves = leaves
        if ends:
            state.take(joined(ends))
        else:
            state.ended = True

    def _command(self, command: Command, state: State) -> None:
        words = list(command.words)
        assigned: list[Word] = []
        while words and target_of(words[0]):
            assigned.append(words.pop(0))
        counted((*assigned, *words), state)
        if not words:
            for word in assigned:
                assign(word, state)
            return
        given = expanded(words[0], state)
        program = False
        while given and given[0].text in ("builtin", "command") and not given[0].computed:
            program = True
            if len(given) == 1:
                words = words[1:]
                given = expanded(words[0], state) if words else []
            elif given[1].text[:1] == "-":
                break
            else:
                given = given[1:]
        head = given[0].text if given and not given[0].computed else ""
        line = state.line or command.line
        if head in _DECLARES:
            declare(head, words[1:], state, line, given[1:])
            return
        for word in words[1:]:
            given += expanded(word, state)
            if len(given) > _WORDS:
                raise TooLong
        if head in ("exit", "return", "break", "continue"):
            leave(head, state)
        elif head in ("cd", "pushd", "popd"):
            change(head, given[1:], state)
        elif head in _TAKES_NAMES or (head == "printf" and given[1:2] == [Argument("-v")]):
            take(head, given[1:], state, line)
        elif head == "shift":
            positional(None, state)
        elif head == "set":
            options(given[1:], state)
        elif head in ("eval", "source", ".") or (head in state.functions and not program):
            self._here(head, assigned, given[1:], command.line, state)
        else:
            self._start(assigned, given, command.line, state)
            state.ended = state.ended or (head == "exec" and len(given) > 1)

    def _here(
        self,
        head: str,
        assigned: Sequence[Word],
        given: Sequence[Argument],
        line: int,
        state: State,
    ) -> None:
        """What runs in this shell."""
        at = state.line or line
        function = state.functions.get(head)
        if state.depth >= _DEEPEST or any(
            function and one is function.body for one in self._running
        ):
            state.lose(f"line {at} calls what calls itself")
            return
        with shell_inner.variables(assigned, state):
            if head == "eval":
                shell_inner.evaluate(given, line, state, self.sequence)
                return
            if function is not None:
                self._running.append(function.body)
                shell_inner.function(function, given, state, self.sequence)
                self._running.pop()
                return
            given = given[1:] if given[:1] == [Argument("--")] else given
            found = self._file(given[0], state) if given else None
            if found is not None:
                shell_inner.source(found, given[1:], line, state, self.sequence)
            elif given and given[0].computed:
                state.lose(untold(head, given[0], at))
            elif given and _ACTIVATES.search(given[0].text):
                # What activates a virtual environment sets no more than these.
                for name in ("VIRTUAL_ENV", "PATH", "PS1"):
                    state.forget(name)
            elif given:
                state.lose(f"line {at} reads {given[0].text}, which can't be read here")

    def _file(self, name: Argument, state: State) -> script_file.ScriptFile | None:
        found = shell_start.named(name, state, self._read)
        self._left -= len(found.text) // _LETTERS if found else 0
        return found

    def _start(
        self, assigned: Sequence[Word], given: Sequence[Argument], line: int, state: State
    ) -> None:
        given = shell_start.unpacked(given)
        texts = [
            "vllm" if shell_start.stands_for_vllm(one, given[place + 1 :]) else one.text
            for place, one in enumerate(given)
        ]
        odd = frozenset(place for place, one in enumerate(given) if one.computed)
        start = start_of(texts, odd=odd, text_of=lambda name: self._text(name, state))
        if start is None:
            return
        within = state.copy() if assigned else state
        for word in assigned:
            assign(word, within)
            if target := target_of(word):
                within.export(target[1])
        elsewhere = state.elsewhere or start.elsewhere
        if start.odd is not None and start.at is not None and not elsewhere:
            one = given[start.odd]
            if not shell_start.is_program(one):
                elsewhere = one.name or "what stands in front"
        variables = shell_start.given(within, start)
        at = state.line or line
        if start.at is None:
            if state.depth < _DEEPEST:
                inner = shell_start.inner(within, start, variables, elsewhere)
                inner.line = at
                self._shell(start, given, inner)
            return
        folder = below(state.folder, start.folder)
        program = MODULE if start.image else texts[start.at]
        arguments = (Argument(program), *given[start.at + 1 :])
        if "xargs" in texts[: start.at]:
            arguments += (Argument("", computed=True, single=False, name="xargs"),)
        environ = shell_start.environ(variables)
        self._left -= len(environ)
        self.found.append(
            Call(
                arguments,
                environ,
                folder,
                at,
                state.certain,
                elsewhere,
                shell_start.withheld(within, start, variables),
                shell_start.unsure(variables, start),
                bool(state.elsewhere or start.elsewhere),
            )
        )

    def _text(self, name: str, state: State) -> str | None:
        found = self._file(Argument(name, computed(name)), state)
        return None if found is None else found.text

    def _shell(self, start: Start, given: Sequence[Argument], inner: State) -> None:
        if start.script is None:
            inner.doubt([one for one in given if one.computed and one.text == start.text])
            self.sequence(parsed(start.text), inner)
            return
        found = self._file(given[start.script], inner)
        if found is None or not (start.by_shell or shell_start.is_shell_script(found.text)):
            return
        inner.here, inner.began = found.folder, inner.folder
        inner.rooted = given[start.script].text.startswith(("/", "~"))
        positional(given[start.script + 1 :], inner)
        self.sequence(parsed(found.text), inner)
