"""A systemd service: the command that it starts, with its variables and its folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from . import environment, script_file
from .outcome import KvpatchError
from .script_path import UNKNOWN
from .shell_run import calls_of
from .shell_state import Call
from .shell_words import Piece, Word

_SECTION = re.compile(r"^\[Service\]\s*$", re.MULTILINE)
_HEADED = re.compile(r"(?:[ \t]*(?:[#;].*)?\n)*[ \t]*\[\w+\]")
_BRACED = re.compile(r"\$\{\w+\}")
_ALONE = re.compile(r"\$\w+")
_SPECIFIER = re.compile(r"(?<!%)(?:%%)*%[A-Za-z]")
_EXPORTS = re.compile(r"^\s*export\s", re.MULTILINE)
"""A shell's word, with which systemd takes a line for none."""
_PREFIX = "-@:+!|"


def is_unit(text: str) -> bool:
    """Whether a text is a unit that systemd starts."""
    return _HEADED.match(text) is not None and _SECTION.search(text) is not None


def calls(text: str, read: script_file.Reader = script_file.nothing) -> list[Call]:
    """The commands of a unit that start vLLM, in their order.

    Args:
        text: the unit.
        read: the files of variables that it names, and scripts that it starts; where such a file
            can't be read, it may set others, or the unit's own to something else.
    """
    environ: dict[str, str] = {}
    files: dict[str, str] = {}
    causes: list[str] = []
    unset: set[str] = set()
    folder = UNKNOWN
    commands: list[tuple[int, str]] = []
    for line, name, value in _settings(text):
        if name == "Environment":
            if not value:
                environ.clear()
            for word in _split(value):
                key, _, setting = word.partition("=")
                environ[key] = setting
        elif name == "EnvironmentFile":
            if not value:
                files, causes = {}, []
                continue
            variables = _file(value.removeprefix("-"), read)
            if variables is None:
                # systemd.exec(5): with a dash in front one that is missing is left out.
                told = value.removeprefix("-")
                causes.append(f"line {line} reads {told} for variables, which can't be read here")
            files.update(variables or {})
        elif name == "UnsetEnvironment":
            unset = {*unset, *_split(value)} if value else set()
        elif name == "WorkingDirectory":
            target = value.removeprefix("-")
            folder = UNKNOWN if "%" in target or not target.startswith("/") else target
        elif name == "ExecStart":
            if not value:
                commands.clear()
            commands.append((line, value))
    environ = {name: value for name, value in environ.items() if "%" not in value}
    # systemd.exec(5): a file's settings stand above those of the unit, wherever it is named.
    environ.update(files)
    environ = {
        name: value for name, value in environ.items() if not {name, f"{name}={value}"} & unset
    }
    found: list[Call] = []
    for line, value in commands:
        for words in _commands(value, line):
            found += calls_of(words, environ, folder, read, causes)
    return found


def _file(name: str, read: script_file.Reader) -> Mapping[str, str] | None:
    """Variables of a file; None where they can't be told."""
    plain = name.startswith("/") and not set(name) & set("%*?[\\")
    found = read(name) if plain else None
    if found is None or _EXPORTS.search(found.text):
        return None
    try:
        return environment.parsed(found.text, Path(name))
    except KvpatchError:
        return None


def _settings(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and value of each setting of the service."""
    section, start = "", 0
    held: list[str] = []
    for number, row in enumerate([*text.splitlines(), ""], 1):
        if row.lstrip().startswith(("#", ";")):
            continue
        start = start if held else number
        if row.endswith("\\"):
            held.append(row[:-1] + " ")
            continue
        line = "".join([*held, row]).strip()
        held.clear()
        if line.startswith("["):
            section = line
        elif section == "[Service]" and "=" in line:
            name, _, value = line.partition("=")
            yield start, name.strip(), value.strip()


def _split(value: str) -> list[str]:
    reader = shlex.shlex(value, posix=True)
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:
        return []


def _commands(value: str, line: int) -> Iterator[Sequence[Word]]:
    words: list[Word] = []
    renamed = False
    for text in (*_split(value), ";"):
        if text == ";":
            if words:
                yield words
            words = []
            continue
        if not words:
            prefix = text[: len(text) - len(text.lstrip(_PREFIX))]
            words.append(Word(tuple(_pieces(text[len(prefix) :])), line))
            renamed = "@" in prefix
        elif renamed and len(words) == 1:
            # The word behind is the name that the program is given.
            renamed = False
        else:
            words.append(Word(tuple(_pieces(text)), line))


def _pieces(text: str) -> Iterator[Piece]:
    """systemd puts variables in by itself: one in braces stays one word, one alone is split."""
    if _ALONE.fullmatch(text):
        yield Piece(text, expands=True)
        return
    if _SPECIFIER.search(text):
        yield Piece(f"${{{text}}}", expands=True, quoted=True)
        return
    at = 0
    for found in _BRACED.finditer(text):
        yield _plain(text[at : found.start()])
        yield Piece(found[0], expands=True, quoted=True)
        at = found.end()
    yield _plain(text[at:])


def _plain(text: str) -> Piece:
    return Piece(text.replace("$$", "$").replace("%%", "%"), quoted=True)
