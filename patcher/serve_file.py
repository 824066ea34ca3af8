"""Reads the file that a command gives vLLM by ``--config``, from where vLLM would read it."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from . import serve_config
from .launch import Launch
from .script_path import UNKNOWN, computed
from .serve_config import ServeConfig
from .yaml_source import MOST_BYTES, YamlFile, parse_bytes

_QUOTED = re.compile(r"(['\"]).{2,}\1", re.DOTALL)


@dataclass(frozen=True)
class Base:
    """Where a relative name leads.

    Attributes:
        folders: where vLLM may be started; one where that is certain.
        root: before an absolute name, too: what the process that was asked for has as root.
    """

    folders: tuple[Path, ...]
    root: str = ""


def of_process(pid: int, proc: Path = Path("/proc")) -> Base:
    """As a running process has it, also where that is in a container."""
    return Base((proc / str(pid) / "cwd",), str(proc / str(pid) / "root"))


def followed(launch: Launch, vllm: Version | None, base: Base) -> Launch:
    """A launch with the options of vLLM's configuration file.

    Where that can't be read, ``launch.config`` says why.

    Args:
        launch: as the command has it.
        vllm: its release; None where it is not known.
        base: where a relative name leads.
    """
    if not launch.args:
        text = launch.flags.get("config")
        told = "the command does not show whether vLLM itself is given it"
        return launch if text is None else launch.with_config(_unread(str(text), told))
    name = serve_config.named(launch.args)
    if name is None:
        return launch
    if isinstance(name, ServeConfig):
        return launch.with_config(name)
    found = _file(name, launch.folder, base)
    if isinstance(found, ServeConfig):
        return launch.with_config(found)
    return launch.with_config(serve_config.converted(found, launch.args, vllm))


def _file(name: str, folder: str | None, base: Base) -> YamlFile | ServeConfig:
    """The file of that name, or why it could not be read."""
    shown = name
    if not base.root:
        shown = re.sub(r"^\$(HOME\b|\{HOME\})", lambda _: "~", name)
        if computed(shown):
            return _unread(name, "its name is put together when the command runs")
        shown = os.path.expanduser(shown)  # noqa: PTH111
    if Path(shown).is_absolute():
        return _read(base.root + shown, shown)
    if folder == UNKNOWN:
        return _unread(name, "the folder that the script changes to can't be told")
    folders = base.folders if folder is None else _within(folder, base)
    places = [one / shown for one in folders]
    if len(places) > 1:
        there = {os.path.realpath(one): one for one in reversed(places) if one.exists()}
        if len(there) > 1:
            told = " or ".join(str(one) for one in reversed(there.values()))
            return _unread(name, f"it is {told}, by the folder that vLLM is started in")
        if not there:
            inside = " or ".join(map(str, folders))
            return _unread(name, f"there is none in {inside}, and vLLM may be started elsewhere")
        places = list(there.values())
    return _read(str(places[0]), name if base.root else str(places[0]))


def _within(folder: str, base: Base) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(one / folder for one in base.folders))


def _read(path: str, shown: str) -> YamlFile | ServeConfig:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            return _unread(shown, "it is not a file, but a folder, a pipe or a device")
        with open(path, "rb") as stream:  # noqa: PTH123
            content = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else "its name holds a null byte"
        return _unread(shown, f"it can't be read here: {told}")
    if len(content) > MOST_BYTES:
        return _unread(shown, f"it has more than {MOST_BYTES} bytes")
    file = parse_bytes(content, shown, "vLLM")
    # YAML's messages quote what they stumble over, and the file may hold a key of the API.
    quiet = (
        replace(problem, message=_QUOTED.sub("what stands there", problem.message))
        for problem in file.problems
    )
    return replace(file, problems=tuple(quiet))


def _unread(path: str, why: str) -> ServeConfig:
    return ServeConfig(path, unread=why)
