"""The commands of a shell script, and what has to happen before each of them runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .shell_words import Operator, TooLong, Word, cut

_DEEPEST = 100
"""Blocks inside of each other."""


class Kind(Enum):
    """What a block does with its parts."""

    GROUP = "group"
    SUBSHELL = "subshell"
    CHOICE = "choice"
    LOOP = "loop"


@dataclass(frozen=True)
class Command:
    """A simple command."""

    words: tuple[Word, ...]

    @property
    def line(self) -> int:
        """The line it starts in, from 1."""
        return self.words[0].line if self.words else 0


@dataclass(frozen=True)
class Block:
    """Commands that belong together.

    Attributes:
        kind: what is done with them.
        first: what runs in any case.
        parts: what may run.
        whole: whether one of a choice's parts runs for certain.
        names: variables that a loop sets.
    """

    kind: Kind
    first: Sequence
    parts: tuple[Sequence, ...] = ()
    whole: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Function:
    """A function's definition."""

    name: str
    body: Sequence


Node = Command | Block | Function


@dataclass(frozen=True)
class Chain:
    """Pipelines, each with the operator before it; the first has none."""

    steps: tuple[tuple[str, tuple[Node, ...]], ...]
    background: bool = False


Sequence = tuple[Chain, ...]


def parsed(text: str) -> Sequence:
    """The commands of a script, up to where a shell would stop reading it.

    Raises:
        TooLong: blocks are inside of each other too deep.
    """
    tokens: list[Word | Operator] = []
    try:
        for token in cut(text):
            tokens.append(token)  # noqa: PERF402 - what came before an error is kept
    except ValueError:
        # A shell runs the lines before.
        while tokens and not (isinstance(tokens[-1], Operator) and tokens[-1].text == "\n"):
            tokens.pop()
    return _Parser(tokens).sequence(frozenset())


class _Parser:
    def __init__(self, tokens: list[Word | Operator]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def sequence(self, stops: frozenset[str]) -> Sequence:
        """Chains up to one of these keywords or operators, which is left."""
        chains: list[Chain] = []
        self._depth += 1
        while self._at < len(self._tokens):
            if self._depth > _DEEPEST:
                raise TooLong
            token = self._tokens[self._at]
            if self._text() in stops:
                break
            if isinstance(token, Operator) and token.text != "(":
                self._at += 1
                continue
            chains.append(self._chain(stops))
        self._depth -= 1
        return tuple(chains)

    def _text(self) -> str:
        """The operator, or the unquoted word, that is next."""
        if self._at >= len(self._tokens):
            return ""
        token = self._tokens[self._at]
        return token.text if isinstance(token, Operator) else token.bare

    def _operator(self, *texts: str) -> str:
        """The operator that is next, where it is one of these, which is then taken."""
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if isinstance(token, Operator) and token.text in texts:
            self._at += 1
            return token.text
        return ""

    def _taken(self, *texts: str) -> bool:
        if self._text() in texts:
            self._at += 1
            return True
        return False

    def _lines(self) -> None:
        while self._operator("\n"):
            pass

    def _chain(self, stops: frozenset[str]) -> Chain:
        steps = [("", self._pipeline())]
        while True:
            operator = self._operator("&&", "||")
            if not operator:
                break
            self._lines()
            if self._text() in stops:
                break
            steps.append((operator, self._pipeline()))
        return Chain(tuple(steps), bool(self._operator("&")))

    def _pipeline(self) -> tuple[Node, ...]:
        while self._taken("!", "time"):
            pass
        nodes = [self._node()]
        while self._operator("|", "|&"):
            self._lines()
            nodes.append(self._node())
        return tuple(nodes)

    def _node(self) -> Node:
        text = self._text()
        if self._operator("("):
            return Block(Kind.SUBSHELL, self._until(")"))
        if text in ("{", "if", "while", "until", "for", "select", "case", "function"):
            self._at += 1
        if text == "{":
            return Block(Kind.GROUP, self._until("}"))
        if text == "if":
            return self._if()
        if text in ("while", "until"):
            first = self._until("do")
            return Block(Kind.LOOP, first, (self._until("done"),))
        if text in ("for", "select"):
            name = self._text()
            while self._at < len(self._tokens) and not self._taken("do"):
                self._at += 1
            return Block(Kind.LOOP, (), (self._until("done"),), names=(name,))
        if text == "case":
            return self._case()
        if text == "function":
            name = self._text()
            self._at += 1
            return self._function(name)
        return self._command()

    def _until(self, *ends: str) -> Sequence:
        found = self.sequence(frozenset(ends))
        self._at += 1
        return found

    def _if(self) -> Block:
        first = self._until("then")
        parts: list[Sequence] = []
        before: Sequence = ()
        whole = False
        while True:
            parts.append(before + self.sequence(frozenset({"elif", "else", "fi"})))
            if self._taken("elif"):
                before = self._until("then")
            elif self._taken("else"):
                before, whole = (), True
            else:
                self._at += 1
                return Block(Kind.CHOICE, first, tuple(parts), whole)

    def _case(self) -> Block:
        parts: list[Sequence] = []
        while self._at < len(self._tokens) and not self._taken("in"):
            self._at += 1
        while self._at < len(self._tokens):
            self._lines()
            if self._taken("esac"):
                break
            self._operator("(")
            while self._at < len(self._tokens) and not self._operator(")"):
                self._at += 1
            parts.append(self.sequence(frozenset({";;", ";&", ";;&", "esac"})))
            self._operator(";;", ";&", ";;&")
        return Block(Kind.CHOICE, (), tuple(parts))

    def _function(self, name: str) -> Function:
        if self._operator("("):
            self._operator(")")
        self._lines()
        body = self._node()
        return Function(name, (Chain((("", (body,)),)),))

    def _command(self) -> Node:
        words: list[Word] = []
        tests = self._text() == "[["
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if isinstance(token, Word):
                words.append(token)
                if tests and token.bare == "]]":
                    tests = False
            elif not tests:
                if token.text == "(" and len(words) == 1 and words[0].bare:
                    return self._function(words[0].bare)
                break
            self._at += 1
        return Command(tuple(words))
