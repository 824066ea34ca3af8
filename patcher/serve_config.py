"""vLLM's own configuration file, which ``--config FILE`` names, as the words it becomes.

Read from ``FlexibleArgumentParser`` of every release from 0.8.5 to 0.33.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.version import Version

from .rules import one_line
from .script_path import computed
from .secrecy import shown
from .vllm_options import full_name
from .yaml_source import YamlFile

_DOTTED = Version("0.9.1")
"""Before, there is no dotted form, or its names lose their underscores."""
_MAPPINGS = Version("0.16.0")
"""From here on a mapping becomes JSON, and not the text that Python has for it."""
_SWITCHED_OFF = Version("0.28.0")
"""From here on the module api_server turns ``KEY: false`` into ``--no-KEY``; serve never does."""
_MODULE = Version("0.10.2")
"""Before, the file's words come behind the first word of api_server, whatever that is."""
_LISTS = Version("0.10.2")
"""From here on each value of a list becomes a word; before, the list is one, as Python has it."""
_SUFFIXES = ("yaml", "yml")
_FLAG = "--config"
_OPTION = re.compile(r"(?!x[-_])[A-Za-z][\w-]*(?:[.=]|$)")
"""No option of any release begins with x-, under which files keep what their anchors name."""
_SHORT = {
    "cc": "compilation-config",
    "O": "optimization-level",
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
}
"""What has one dash on a command, and no name with two."""
SWITCHES = frozenset({"enable-prefix-caching", "enforce-eager", "enable-lora"})
"""Those that have a ``no-`` form and say something of LMCache."""


@dataclass(frozen=True)
class Origin:
    """Where an option was written: file, line and column from 1, 0 for all of it.

    ``path`` is empty for the command itself.
    """

    path: str
    line: int = 0
    column: int = 0


@dataclass(frozen=True)
class Problem:
    """Why vLLM stops at the file, or leaves it unread; ``certain`` unless that hangs on vLLM."""

    message: str
    origin: Origin
    certain: bool = True


@dataclass(frozen=True)
class ServeConfig:
    """What a command's ``--config`` comes to.

    Attributes:
        path: of the file, as it is shown; empty where none is named.
        words: what vLLM puts behind the model, before the rest of the command, with their places.
        dropped: switches that are ``false`` in the file and of which vLLM makes nothing.
        twice: keys that are there twice.
        problems: why vLLM stops, or does not read it.
        unread: why it was not read here; empty where it was.
        todo: what to do about that.
        ignored: whether vLLM does not read it either.
    """

    path: str = ""
    words: tuple[tuple[str, Origin], ...] = ()
    dropped: Mapping[str, Origin] = field(default_factory=dict)
    twice: tuple[Problem, ...] = ()
    problems: tuple[Problem, ...] = ()
    unread: str = ""
    todo: str = ""
    ignored: bool = False

    @property
    def read(self) -> bool:
        """Whether ``words`` are all that vLLM has from the file."""
        stops = any(problem.certain for problem in self.problems)
        return not (self.unread or self.ignored or stops)

    @property
    def known(self) -> bool:
        """Whether an option that is not in ``words`` does not come from the file."""
        return self.ignored or self.read


def named(args: Sequence[str]) -> ServeConfig | str | None:
    """The file that vLLM's arguments name, what is wrong with how they do, or None for none."""
    count = list(args).count(_FLAG)
    if count > 1:
        return _stops(f"{_FLAG} is there {count} times, and vLLM stops: name one file")
    if count:
        at = list(args).index(_FLAG)
        if at == len(args) - 1:
            return _stops(f"{_FLAG} has no file behind it, and vLLM stops: name one")
        path = args[at + 1]
        suffix = path.rpartition(".")[2]
        if suffix not in _SUFFIXES and not computed(path):
            told = f"vLLM stops at {_FLAG} {shown('', path)}: the name has to end in .yaml or .yml"
            return _stops(told)
        return path
    joined = [word for word in args if word.startswith(f"{_FLAG}=")]
    if joined:
        told = f"vLLM does not read the file of {_FLAG}=FILE: write {_FLAG} FILE, with a space"
        return replace(_stops(told), ignored=True)
    return None


def converted(file: YamlFile, args: Sequence[str], vllm: Version | None) -> ServeConfig:
    """What vLLM makes of a file.

    Args:
        file: as it was read.
        args: vLLM's arguments, from ``serve`` on or, of a module, behind its name.
        vllm: its release; None where it is not known, which is taken as the newest.
    """
    path = file.path
    twice = tuple(
        Problem(problem.message, Origin(path, problem.line, problem.column))
        for problem in file.problems
        if problem.kind == "duplicate"
    )
    if not file.readable:
        found = file.problems[-1]
        return ServeConfig(
            path,
            problems=(Problem(found.message, Origin(path, found.line, found.column)),),
        )
    if file.empty:
        told = "it is empty, and vLLM stops: write an option, or leave --config out"
        return ServeConfig(path, problems=(Problem(told, Origin(path)),))
    serves = tuple(args[:1]) == ("serve",)
    words: list[tuple[str, Origin]] = []
    dropped: dict[str, Origin] = {}
    problems: list[Problem] = []
    for key, value in dict[object, object](file.values.items()).items():
        entry = file.entries[str(key)]
        origin = Origin(path, entry.line, entry.column)
        if not isinstance(key, str):
            told = "vLLM stops at a key that YAML takes for no text: write it in quotes"
            problems.append(Problem(told, origin))
            continue
        short = key.partition(".")[0]
        if short in _SHORT and value is not False:
            told = f"vLLM has no --{short}, and stops at {one_line(key)}: write {_SHORT[short]}"
            problems.append(Problem(told, origin))
            continue
        name = full_name(key.replace("_", "-"))
        switch = name.removeprefix("no-")
        if value is False:
            newer = vllm is None or vllm >= _SWITCHED_OFF
            if key in SWITCHES and not serves and newer:
                words.append((f"--no-{key}", origin))
            elif switch in SWITCHES:
                dropped[switch] = origin
            continue
        if not _OPTION.match(key):
            told = f"vLLM has no option --{one_line(key)}, and stops: every key has to be the "
            told += "name of an option, without dashes in front"
            problems.append(Problem(told, origin))
            continue
        empty = value == [] and (vllm is None or vllm >= _LISTS)
        if switch in SWITCHES and value is not True and not empty:
            told = f"vLLM stops at a value of the switch {one_line(key)}: write {name}: true"
            problems.append(Problem(told, origin))
            continue
        problems += _problems(key, value, origin, vllm)
        words += [(word, origin) for word in _words(key, value, vllm)]
    if serves and len(args) > 1 and not _has_model(args) and "--model" not in dict(words):
        told = "vLLM stops: neither the command nor the file names a model; write model: NAME"
        problems.append(Problem(told, Origin(path)))
    if not serves and vllm is not None and vllm < _MODULE and _takes_value(args):
        told = (
            f"vLLM {vllm} puts the file's options between {args[0]} and its value, and stops: "
            "start it with `vllm serve`"
        )
        problems.append(Problem(told, Origin(path)))
    return ServeConfig(path, tuple(words), dropped, twice, tuple(problems))


def _stops(told: str) -> ServeConfig:
    return ServeConfig(problems=(Problem(told, Origin("")),))


def _words(key: str, value: object, vllm: Version | None) -> Iterator[str]:
    if isinstance(value, list) and (vllm is None or vllm >= _LISTS):
        if value:
            yield f"--{key}"
            yield from map(_text, value)
        return
    yield f"--{key}"
    if isinstance(value, dict) and (vllm is None or vllm >= _MAPPINGS):
        # Of a mapping that JSON has not, the problem is told.
        yield _json(value)
    elif value is not True:
        yield _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except ValueError:
        return ""


def _json(value: object) -> str:
    try:
        return json.dumps(value, default=str, skipkeys=True)
    except (ValueError, RecursionError):
        return "{}"


def _too_long(value: object) -> bool:
    """Whether a number is there that Python does not write out, at which vLLM stops."""
    try:
        str(value)
    except ValueError:
        return True
    return False


def _problems(key: str, value: object, origin: Origin, vllm: Version | None) -> Iterator[Problem]:
    shown = one_line(key)
    if _too_long(value):
        yield Problem(f"{shown} has a number of too many digits, at which vLLM stops", origin)
        return
    if "." in key and vllm is not None and vllm < _DOTTED:
        yield Problem(f"vLLM {vllm} does not take {shown}: write one JSON text, in quotes", origin)
    elif value is True and "." in key:
        told = f"vLLM takes the word behind --{shown} as its value"
        yield Problem(f"{told}: write {shown}: 'true', in quotes", origin)
    elif isinstance(value, list) and len(value) > 1 and "." in key:
        told = f"vLLM takes the first of a list as {shown}, and stops at the next"
        if vllm is not None and vllm < _LISTS:
            told = f"vLLM {vllm} takes the list as a text of {shown}"
        yield Problem(f"{told}: write one JSON text, in quotes", origin, vllm is not None)
    if not isinstance(value, dict):
        return
    if vllm is None:
        told = (
            f"{shown} is a mapping, which vLLM takes from {_MAPPINGS} on alone: before, write JSON"
        )
        yield Problem(f"{told} in quotes", origin, certain=False)
    elif vllm < _MAPPINGS:
        told = f"{shown} is a mapping, at which vLLM {vllm} stops: write it as JSON, in quotes"
        yield Problem(told, origin)
    else:
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            told = (
                f"{shown} holds a value that JSON does not have, such as a date: write it in quotes"
            )
            yield Problem(told, origin)


def _has_model(args: Sequence[str]) -> bool:
    return not args[1].startswith("-") or any(
        word == "--model" or word.startswith("--model=") for word in args
    )


def _takes_value(args: Sequence[str]) -> bool:
    """Whether the first of a module's arguments is an option whose value is the second one."""
    return args[0] == _FLAG or (len(args) > 1 and "=" not in args[0] and args[1][:1] != "-")
