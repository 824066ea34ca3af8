"""The environment that a vLLM process has or will have, from a file or from the process."""

from __future__ import annotations

import os
import re
import shlex
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .outcome import ExitCode, KvpatchError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BLANKS = " \t"
_EXPORT = re.compile(r"^[ \t]*export[ \t]", re.MULTILINE)
_LINE = re.compile(r"(?:[ \t\r\n]|[#;](?:\\[\s\S]|[^\\\r\n])*)*(?P<name>[^=\r\n]*)(?P<value>=)?")
"""A comment goes on in the next line behind a backslash."""
_QUOTED = re.compile(r"""[ \t]*(?:'(?P<single>[^']*)'|"(?P<double>(?:\\[\s\S]|[^\\"])*)")""")
_ESCAPED = re.compile(r"\\([\n\"\\`$])")
_WHOLE = re.compile(r"""(?:(?<!\S)\#[^\n]*|\\.|'[^']*'|"(?:\\[\s\S]|[^\\"])*"|[^\n\\'"])*""")
"""A line of a shell's, with those that its quotations go on in."""
_PLAIN = re.compile(r"(?:\\[\s\S]|[^\\\r\n])*\\?")
_TRIES, _PAUSE_S = 5, 0.02
_MOST_BYTES = 4 * 1024 * 1024


def from_file(path: Path) -> Mapping[str, str]:
    """Variables of a file of ``NAME=VALUE`` lines, as :func:`parsed` reads them.

    Raises:
        KvpatchError: ``unreadable`` (exit 4), ``bad-environment`` (exit 2).
    """
    return parsed(text_of(path), path)


def text_of(path: Path) -> str:
    """The text of such a file.

    Raises:
        KvpatchError: ``unreadable`` (exit 4), ``bad-environment`` (exit 2).
    """
    try:
        kind = path.stat().st_mode
        if not stat.S_ISREG(kind) and not path.samefile(os.devnull):
            raise KvpatchError(
                "unreadable",
                f"{path} is not a file, but a folder, a pipe or a device",
                "name a file with lines of NAME=VALUE",
                ExitCode.ENVIRONMENT,
            )
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            content = stream.read(_MOST_BYTES + 1) or b""
    except OSError as error:
        raise KvpatchError(
            "unreadable",
            f"{path} can't be read: {error.strerror}",
            "name a file with lines of NAME=VALUE",
            ExitCode.ENVIRONMENT,
        ) from None
    if len(content) > _MOST_BYTES or b"\0" in content:
        raise _bad(path, 1, "it is no text of NAME=VALUE lines")
    return content.decode("utf-8", "surrogateescape")


def parsed(text: str, path: Path) -> Mapping[str, str]:
    """Variables of a text, as systemd reads an EnvironmentFile.

    Where a line has a shell's ``export``, which systemd does not know, as a shell reads it.

    Raises:
        KvpatchError: ``bad-environment``, exit 2.
    """
    text = text.removeprefix("\ufeff")
    found: dict[str, str] = {}
    place = 0
    if _EXPORT.search(text):
        for number, one in _of_shell(text):
            if one is None:
                raise _bad(path, number, "it is not NAME=VALUE as a shell has it: look at quotes")
            found |= one
        return found
    while line := _LINE.match(text, place):
        number = text.count("\n", 0, line.start("name")) + 1
        name = line["name"].rstrip(" \t")
        if not name and line["value"] is None:
            break
        if line["value"] is None or not _NAME.fullmatch(name):
            raise _bad(path, number, "it is not NAME=VALUE")
        found[name], place = _value(text, line.end(), path, number)
    return found


def _value(text: str, place: int, path: Path, number: int) -> tuple[str, int]:
    """What stands behind the = there, and where that ends.

    As ``parse_env_file_internal`` of systemd's ``basic/env-file.c`` has it: quotes count where they
    begin a value, or stand behind one that was closed.
    """
    value = ""
    while quoted := _QUOTED.match(text, place):
        inner = quoted["single"]
        if inner is None:
            inner = _ESCAPED.sub(lambda one: "" if one[1] == "\n" else one[1], quoted["double"])
        value += inner
        place = quoted.end()
    plain = _PLAIN.match(text, place)
    rest = plain[0].lstrip(_BLANKS) if plain else ""
    if rest[:1] in ("'", '"') and rest:
        raise _bad(path, number, "a quotation is not closed")
    # A blank counts that a backslash keeps.
    kept = re.sub(r"(?<!\\)((?:\\\\)*)[ \t]+$", r"\1", rest)
    value += re.sub(r"\\(?:\r?\n|(.)|$)", lambda one: one[1] or "", kept)
    return value, plain.end() if plain else place


def _of_shell(text: str) -> Iterator[tuple[int, Mapping[str, str] | None]]:
    """What each line sets in a shell, with its number; None for one that is no assignment."""
    place, number = 0, 1
    while whole := _WHOLE.match(text, place):
        end = text.find("\n", whole.end())
        line = text[place : end if end >= 0 else len(text)]
        if not line.strip().startswith("#"):
            yield number, _of_shells_line(line)
        if end < 0:
            return
        place, number = end + 1, number + line.count("\n") + 1


def _of_shells_line(line: str) -> Mapping[str, str] | None:
    found: dict[str, str] = {}
    try:
        words = shlex.split(line, comments=False)
    except ValueError:
        return None
    exports = words[:1] == ["export"]
    for word in words[exports:]:
        if word.startswith("#"):
            break
        name, equals, value = word.partition("=")
        if not _NAME.fullmatch(name) or not (equals or exports):
            return None
        if equals:
            found[name] = value
    return found


def others(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Who else may be given such a file, with what they make of it."""
    if _EXPORT.search(text):
        return
    yield "docker's --env-file", _of_docker(text)
    yield (
        "a shell",
        {name: value for _, one in _of_shell(text) for name, value in (one or {}).items()},
    )


def _of_docker(text: str) -> Mapping[str, str]:
    """The variables that ``docker run --env-file`` makes of a text: it keeps quotes and blanks."""
    found: dict[str, str] = {}
    for line in text.removeprefix("\ufeff").split("\n"):
        plain = line.removesuffix("\r").lstrip()
        name, equals, value = plain.partition("=")
        if equals and not plain.startswith("#"):
            found[name] = value
    return found


def _settled(path: Path) -> bytes:
    """What the kernel tells of a process; it tells nothing for a moment while that is started."""
    content = path.read_bytes()
    for _ in range(_TRIES):
        if content:
            break
        time.sleep(_PAUSE_S)
        content = path.read_bytes()
    return content


def from_process(pid: int, proc: Path = Path("/proc")) -> Mapping[str, str]:
    """Variables of a running process, as it was started with.

    Raises:
        KvpatchError: ``no-process``, ``unreadable``: exit 4.
    """
    try:
        content = _settled(proc / str(pid) / "environ")
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        raise KvpatchError(
            "no-process",
            f"there is no process {pid}",
            "name the pid of a vLLM process; `kvpatch status` says those of this environment",
            ExitCode.ENVIRONMENT,
        ) from None
    except OSError as error:
        raise KvpatchError(
            "unreadable",
            f"the environment of process {pid} can't be read: {error.strerror}",
            "run kvpatch as that process's user, or as root",
            ExitCode.ENVIRONMENT,
        ) from None
    entries = os.fsdecode(content).split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def command_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The command line of a process as a shell has it; empty where it can't be read."""
    try:
        content = _settled(proc / str(pid) / "cmdline")
    except OSError:
        return ""
    return shlex.join(os.fsdecode(content).rstrip("\0").split("\0"))


def _bad(path: Path, line: int, why: str) -> KvpatchError:
    return KvpatchError(
        "bad-environment",
        f"{path}, line {line}: {why}",
        "write one NAME=VALUE a line, with quotes round a value that has spaces",
        ExitCode.USAGE,
    )
