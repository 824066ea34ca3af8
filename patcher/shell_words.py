"""A shell's text cut into words and operators, as bash cuts it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .shell_brackets import UNCLOSED, closing, found_at

_OPERATOR = re.compile(
    r";;&|;;|;&|&&|\|\||\|&|&>>|&>|<<<|<<-|<<|<&|>&|<>|>>|>\||[;&|()<>\n]",
)
_REDIRECTIONS = frozenset({"&>>", "&>", "<<<", "<<-", "<<", "<&", ">&", "<>", ">>", ">|", "<", ">"})
_NAME = re.compile(r"\w+|[@*#?$!-]")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_DESCRIPTOR = re.compile(r"(?:\d+|\{\w+\})(?=[<>])")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_BEFORE = frozenset({"if", "then", "else", "elif", "while", "until", "do", "{", "!", "time"})
"""What a command may stand behind."""
_DEEPEST = 50
"""Commands inside of each other."""


class TooLong(Exception):  # noqa: N818 - it says what the script is
    """A script has more in it than is looked at."""


@dataclass(frozen=True)
class Piece:
    """A part of a word: text without its quotes, or an expansion as it stands."""

    text: str
    expands: bool = False
    quoted: bool = False


@dataclass(frozen=True)
class Word:
    """A word; ``items`` are those of an array that it assigns, None for none."""

    pieces: tuple[Piece, ...]
    line: int = 0
    items: tuple[Word, ...] | None = None

    @property
    def bare(self) -> str:
        """Its text where nothing of it is quoted or put in; empty otherwise."""
        (first, *others) = self.pieces or (Piece(""),)
        return "" if others or first.quoted or first.expands else first.text


@dataclass(frozen=True)
class Operator:
    """What stands between commands; a line's end is one."""

    text: str
    line: int = 0


@dataclass
class _Reader:
    """Where the text is read."""

    text: str
    at: int = 0
    line: int = 1
    heredocs: list[tuple[str, bool]] = field(default_factory=list)
    depth: int = 0

    def take(self, end: int) -> str:
        taken = self.text[self.at : end]
        self.line += taken.count("\n")
        self.at = end
        return taken


def cut(text: str) -> Iterator[Word | Operator]:
    """The words and operators of a text, without comments, redirections and here-documents.

    Raises:
        ValueError: a quotation or an expansion has no end; all before it was given.
        TooLong: commands are inside of each other too deep.
    """
    return _tokens(_Reader(text))


def _tokens(reader: _Reader) -> Iterator[Word | Operator]:
    while True:
        token = _token(reader)
        if token is None:
            return
        if isinstance(token, Operator) and token.text in _REDIRECTIONS:
            target = _token(reader)
            if token.text in ("<<", "<<-") and isinstance(target, Word):
                end = "".join(piece.text for piece in target.pieces)
                reader.heredocs.append((end, token.text == "<<-"))
            if isinstance(target, Operator):
                yield target
            continue
        yield token


def literal(text: str) -> Word:
    """A word that stands for itself."""
    return Word((Piece(text, quoted=True),))


def _token(reader: _Reader) -> Word | Operator | None:
    text = reader.text
    while reader.at < len(text):
        if text[reader.at] in " \t":
            reader.at += 1
        elif text.startswith("\\\n", reader.at):
            reader.take(reader.at + 2)
        elif text[reader.at] == "#":
            end = text.find("\n", reader.at)
            reader.at = len(text) if end < 0 else end
        else:
            break
    if reader.at >= len(text):
        return None
    line = reader.line
    descriptor = _DESCRIPTOR.match(text, reader.at)
    if descriptor:
        reader.at = descriptor.end()
    if not text.startswith(("((", "<(", ">("), reader.at):
        found = _OPERATOR.match(text, reader.at)
        if found:
            reader.take(found.end())
            if found[0] == "\n":
                _skip_heredocs(reader)
            return Operator(found[0], line)
    return _word(reader)


def _skip_heredocs(reader: _Reader) -> None:
    for end, tabs in reader.heredocs:
        while reader.at < len(reader.text):
            stop = reader.text.find("\n", reader.at)
            row = reader.take(len(reader.text) if stop < 0 else stop + 1).removesuffix("\n")
            if (row.lstrip("\t") if tabs else row) == end:
                break
    reader.heredocs.clear()


def _word(reader: _Reader) -> Word:
    text, line = reader.text, reader.line
    pieces: list[Piece] = []
    while reader.at < len(text):
        letter = text[reader.at]
        if text.startswith(("((", "<(", ">("), reader.at) and not pieces:
            if text.startswith("((", reader.at):
                end = closing(text, closing(text, reader.at + 2, "(", ")"), "(", ")")
            else:
                end = _command_end(reader, reader.at + 2)
            pieces.append(Piece(reader.take(end), expands=True))
        elif letter == "(" and len(pieces) == 1 and _ARRAY.fullmatch(pieces[0].text):
            reader.at += 1
            return Word(tuple(pieces), line, tuple(_items(reader)))
        elif letter in " \t" or _OPERATOR.match(letter):
            break
        elif text.startswith("\\\n", reader.at):
            reader.take(reader.at + 2)
        elif letter == "\\":
            pieces.append(Piece(text[reader.at + 1 : reader.at + 2], quoted=True))
            reader.take(min(reader.at + 2, len(text)))
        elif letter == "'":
            end = found_at(text, "'", reader.at + 1)
            pieces.append(Piece(text[reader.at + 1 : end], quoted=True))
            reader.take(end + 1)
        elif text.startswith("$'", reader.at):
            pieces.append(_escaped(reader))
        elif letter == '"' or text.startswith('$"', reader.at):
            pieces += _doubled(reader)
        elif letter in "$`":
            pieces.append(_expansion(reader, quoted=False))
        else:
            end = reader.at + 1
            while end < len(text) and text[end] not in " \t\n;&|()<>\\'\"$`":
                end += 1
            pieces.append(Piece(reader.take(end)))
    return Word(tuple(pieces), line)


def _items(reader: _Reader) -> Iterator[Word]:
    while True:
        token = _token(reader)
        if token is None:
            raise ValueError(UNCLOSED)
        if isinstance(token, Word):
            yield token
        elif token.text == ")":
            return


def _escaped(reader: _Reader) -> Piece:
    text, at, told = reader.text, reader.at + 2, ""
    while at < len(text) and text[at] != "'":
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            told += _ESCAPES.get(text[at], "\\" + text[at])
        else:
            told += text[at]
        at += 1
    if at >= len(text):
        raise ValueError(UNCLOSED)
    reader.take(at + 1)
    return Piece(told, quoted=True)


def _doubled(reader: _Reader) -> Iterator[Piece]:
    """What stands in double quotes; nothing in them is a piece too."""
    text, told = reader.text, ""
    reader.at = text.index('"', reader.at) + 1
    yield Piece("", quoted=True)
    while reader.at < len(text) and text[reader.at] != '"':
        letter, following = text[reader.at], text[reader.at + 1 : reader.at + 2]
        if letter == "\\" and following in ("$", "`", '"', "\\", "\n"):
            told += following.removesuffix("\n")
            reader.take(reader.at + 2)
        elif letter in "$`":
            yield Piece(told, quoted=True)
            told = ""
            yield _expansion(reader, quoted=True)
        else:
            told += reader.take(reader.at + 1)
    if reader.at >= len(text):
        raise ValueError(UNCLOSED)
    reader.at += 1
    yield Piece(told, quoted=True)


def _expansion(reader: _Reader, *, quoted: bool) -> Piece:
    text, at = reader.text, reader.at
    if text[at] == "`":
        end = found_at(text, "`", at + 1) + 1
    elif text.startswith("$((", at):
        end = closing(text, at + 2, "(", ")")
    elif text.startswith("$(", at):
        end = _command_end(reader, at + 2)
    elif text.startswith("${", at):
        end = closing(text, at + 2, "{", "}")
    else:
        name = _NAME.match(text, at + 1)
        if name is None:
            return Piece(reader.take(at + 1), quoted=quoted)
        # Of $12 the shell takes $1.
        end = at + 2 if name[0][0].isdigit() else name.end()
    return Piece(reader.take(end), expands=True, quoted=quoted)


def _command_end(reader: _Reader, at: int) -> int:
    """The place behind commands that are put in, which have comments and here-documents."""
    if reader.depth >= _DEEPEST:
        raise TooLong
    inner = _Reader(reader.text, at, depth=reader.depth + 1)
    open_brackets = cases = 0
    first = True
    for token in _tokens(inner):
        if isinstance(token, Word):
            cases += (token.bare == "case" and first) - (token.bare == "esac" and cases > 0)
            first = first and token.bare in _BEFORE
            continue
        first = True
        if token.text == "(":
            open_brackets += 1
        elif token.text == ")" and open_brackets:
            open_brackets -= 1
        elif token.text == ")" and not cases:
            return inner.at
    raise ValueError(UNCLOSED)
