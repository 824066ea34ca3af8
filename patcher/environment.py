"""The environment that a vLLM process has or will have, from a file or from the process."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from .outcome import ExitCode, KvpatchError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_BYTES = 4 * 1024 * 1024


def from_file(path: Path) -> Mapping[str, str]:
    """Variables of a file of ``NAME=VALUE`` lines, read as a shell and systemd read them.

    Docker's ``--env-file`` keeps quotes as part of the value; this does not.

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
    return parsed(content.decode("utf-8", "surrogateescape"), path)


def parsed(text: str, path: Path) -> Mapping[str, str]:
    """The same of its text.

    Raises:
        KvpatchError: ``bad-environment``, exit 2.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), 1):
        plain = line.strip()
        if not plain or plain.startswith(("#", ";")):
            continue
        exported = plain.removeprefix("export ").lstrip()
        name, equals, value = exported.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise _bad(path, number, "it is not NAME=VALUE")
        try:
            words = shlex.split(value, comments=False)
        except ValueError as error:
            raise _bad(path, number, str(error).lower()) from None
        found[name] = " ".join(words)
    return found


def from_process(pid: int, proc: Path = Path("/proc")) -> Mapping[str, str]:
    """Variables of a running process, as it was started with.

    Raises:
        KvpatchError: ``no-process``, ``unreadable``: exit 4.
    """
    try:
        content = (proc / str(pid) / "environ").read_bytes()
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
        content = (proc / str(pid) / "cmdline").read_bytes()
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
