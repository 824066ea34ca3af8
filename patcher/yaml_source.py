"""A configuration file as LMCache's YAML reader takes it, with the line of every key."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .outcome import ExitCode, KvpatchError
from .rules import one_line
from .schema import EXTRA

MOST_BYTES = 1024 * 1024
MOST_VALUES = 20_000
_NAMED = re.compile(r"(\b(?:alias|anchor|handle|tag)) (['\"]).*\2", re.DOTALL)


@dataclass(frozen=True, eq=False, repr=False)
class Entry:
    """One key with its value; ``line`` and ``column`` count from 1.

    ``comment`` is what stands behind a ``#`` where the value would be, None where nothing does.
    """

    name: str
    value: Any
    line: int
    column: int
    comment: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """Why LMCache can't take the file, or not all of it; ``kind`` is a word for the rule."""

    kind: str
    message: str
    line: int = 1
    column: int = 1


@dataclass(frozen=True, eq=False, repr=False)
class YamlFile:
    """What came of a file: entries by name, ``extra_config.NAME`` for those inside of it.

    ``written`` is false where there is none, and LMCache is configured by variables alone.
    ``empty`` is true where YAML has nothing there, not even an empty mapping.
    """

    path: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    written: bool = True
    empty: bool = False

    @property
    def readable(self) -> bool:
        """Whether LMCache gets a mapping out of it."""
        return all(problem.kind == "duplicate" for problem in self.problems)


def read_yaml(path: Path, shown: str = "") -> YamlFile:
    """Read and parse a file, which may be shown under another name.

    Raises:
        KvpatchError: ``no-file``, ``unreadable``: exit 4.
    """
    shown = shown or str(path)
    content = read_bytes(path, shown)
    if len(content) > MOST_BYTES:
        told = f"it has more than {MOST_BYTES} bytes: no LMCache configuration"
        return _refused(shown, "", Problem("syntax", told))
    return parse_bytes(content, shown)


def parse_bytes(content: bytes, shown: str, reader: str = "LMCache") -> YamlFile:
    """What the YAML reader of LMCache, or of another ``reader``, makes of a file's bytes."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _refused(shown, "", Problem("syntax", "it is not UTF-8 text", line))
    return parse_yaml(text, shown, reader)


def read_bytes(path: Path, shown: str = "") -> bytes:
    """A configuration file, or as much of a larger one as shows that it is too large.

    Raises:
        KvpatchError: ``no-file``, ``unreadable``: exit 4.
    """
    shown = shown or str(path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise KvpatchError(
                "no-file",
                f"{shown} is not a file",
                "name a YAML file: a pipe or a folder can't be checked",
                ExitCode.ENVIRONMENT,
            )
        return read_now(path)
    except OSError as error:
        raise KvpatchError(
            "unreadable",
            f"{shown} can't be read: {error.strerror}",
            "name the YAML file that LMCACHE_CONFIG_FILE names",
            ExitCode.ENVIRONMENT,
        ) from None


def read_now(path: Path | str) -> bytes:
    """As many bytes of a file as show that it is too large, without waiting for any.

    Raises:
        OSError: as the system has it; also where a file that the kernel makes has none by now.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if content is None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return content


def parse_yaml(text: str, path: str = "-", reader: str = "LMCache") -> YamlFile:
    """What the YAML reader of LMCache, or of another ``reader``, makes of a text."""
    loader = _Loader(text) if _printable(text) else None
    if loader is None:
        place = next(i for i, char in enumerate(text) if not _printable(char))
        line = text.count("\n", 0, place) + 1
        return _refused(path, text, Problem("syntax", "it holds control characters", line))
    try:
        node = loader.get_single_node()
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return YamlFile(path, text, empty=True)
        if _size(node) > MOST_VALUES:
            told = f"it has more than {MOST_VALUES} values: no configuration of {reader}'s"
            if _size(node, once=True) <= MOST_VALUES:
                told = "its anchors unfold without end"
            return _refused(path, text, Problem("syntax", told))
        if not isinstance(node, yaml.MappingNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
            told = f"its top level is {kind}; {reader} stops at anything but keys with values"
            return _refused(path, text, Problem("syntax", told, *_place(node)))
        twice = tuple(_duplicates(node))
        pairs = list(_pairs(node))
        values = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        return _refused(path, text, _syntax(error, text, reader))
    except RecursionError:
        return _refused(path, text, Problem("syntax", "it is not YAML: it is nested too deep"))
    except Exception as error:
        # A value's tag promises what the value is not, and the constructors raise what they like.
        failed = loader.at
        where = (1, 1) if failed is None else _place(failed)
        told = "it is not YAML: a value is not what its tag says"
        if isinstance(error, yaml.YAMLError):
            told = "it is not YAML"
        elif failed is not None:
            told = f"it is not YAML: no {failed.tag.rpartition(':')[2]} can be made of the value"
        return _refused(path, text, Problem("syntax", told, *where))
    finally:
        loader.dispose()
    if not isinstance(values, dict):
        told = f"its top level is a {type(values).__name__}; {reader} stops at it"
        return _refused(path, text, Problem("syntax", told))
    try:
        entries = dict(_entries(pairs, values, text.splitlines()))
    except ValueError:
        # Python writes out no number of more than 4300 digits.
        return _refused(path, text, Problem("syntax", "a key is a number of too many digits"))
    return YamlFile(path, text, values, entries, twice)


class _Loader(yaml.SafeLoader):
    """Knows at which value it failed."""

    at: yaml.Node | None = None

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The same, and notes the innermost node where that raises."""
        try:
            return super().construct_object(node, deep=deep)
        except Exception:
            self.at = self.at or node
            raise


def _refused(path: str, text: str, problem: Problem) -> YamlFile:
    return YamlFile(path, text, problems=(problem,))


def _printable(text: str) -> bool:
    return yaml.reader.Reader.NON_PRINTABLE.search(text) is None


def _syntax(error: yaml.MarkedYAMLError, text: str, reader: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    lines = text.splitlines()
    said = error.problem or error.context or "it can not be read"
    # Names that are quoted are a value's beginning where that was not put in quotes.
    told = "it is not YAML: " + _NAMED.sub(r"\1", said)
    if error.problem == "but found another document":
        told = f"a second document begins here, and {reader} reads one alone"
    if mark and line <= len(lines) and "\t" in lines[line - 1][: column + 1]:
        told = "a tab stands where YAML wants spaces"
    return Problem("syntax", told, line, column)


def _size(node: yaml.Node, *, once: bool = False) -> int:
    """How many values a node unfolds to, anchors counted each time; stops above the most.

    With ``once`` as many as are written.
    """
    sizes: dict[int, int] = {}

    def size(one: yaml.Node) -> int:
        if id(one) in sizes:
            return 0 if once else sizes[id(one)]
        # An anchor inside itself is without end.
        sizes[id(one)] = MOST_VALUES + 1
        inner: list[yaml.Node] = []
        if isinstance(one, yaml.SequenceNode):
            inner = list(one.value)
        elif isinstance(one, yaml.MappingNode):
            inner = [part for pair in one.value for part in pair]
        sizes[id(one)] = min(MOST_VALUES + 1, 1 + sum(map(size, inner)))
        return sizes[id(one)]

    return size(node)


def _duplicates(node: yaml.Node, within: str = "") -> Iterator[Problem]:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = f"{within}{key.value}"
                line, column = _place(key)
                if name in seen and key.value != "<<":
                    told = f"{one_line(name)} is there already, in line {seen[name]}"
                    told += "; the last one counts"
                    yield Problem("duplicate", told, line, column)
                seen.setdefault(name, line)
                if isinstance(value, yaml.MappingNode):
                    yield from _duplicates(value, f"{name}.")


def _pairs(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Keys and values with those that come by ``<<``, which the own ones beat."""
    merged = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
    for one in merged:
        several = one.value if isinstance(one, yaml.SequenceNode) else [one]
        # Of several the first counts, and here the last.
        for part in reversed(several):
            if isinstance(part, yaml.MappingNode):
                yield from _pairs(part)
    yield from (pair for pair in node.value if pair[0].tag != "tag:yaml.org,2002:merge")


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _entries(
    pairs: list[tuple[yaml.Node, yaml.Node]], values: Mapping[Any, Any], lines: list[str]
) -> Iterator[tuple[str, Entry]]:
    places = {_written(key): (key, value) for key, value in pairs if isinstance(key.value, str)}
    for name, value in values.items():
        key, node = places.get(_spelt(name), (None, None))
        yield str(name), _entry(str(name), value, key, node, lines)
        if name == EXTRA and isinstance(value, dict):
            inner = _pairs(node) if isinstance(node, yaml.MappingNode) else ()
            within = {one.value: (one, two) for one, two in inner if isinstance(one.value, str)}
            for part, found in value.items():
                one, two = within.get(str(part), (key, None))
                full = f"{EXTRA}.{part}"
                yield full, _entry(full, found, one, two, lines)


def _written(key: yaml.Node) -> str:
    """A key as ``_spelt`` has it: on, off, yes and no are true and false."""
    if key.tag == "tag:yaml.org,2002:bool":
        return _spelt(yaml.SafeLoader.bool_values[key.value.lower()])
    return str(key.value)


def _spelt(name: object) -> str:
    return name if isinstance(name, str) else str(name).lower()


def _entry(
    name: str, value: Any, key: yaml.Node | None, node: yaml.Node | None, lines: list[str]
) -> Entry:
    if key is None:
        return Entry(name, value, 1, 1)
    line, column = _place(key)
    comment = None
    if value is None and node is not None and node.value == "":
        rest = lines[line - 1][key.end_mark.column :].lstrip(" \t:")
        comment = rest if rest.startswith("#") else None
    return Entry(name, value, line, column, comment)
