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

_ABSOLUTE = "name it by its absolute path"
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
        why = "the command does not show that vLLM itself is given it"
        todo = "give the whole command, as in --serve 'vllm serve MODEL --config FILE'"
        return launch if text is None else launch.with_config(_unread(str(text), why, todo))
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
            why = "its name is put together when the command runs"
            return _unread(name, why, "give --serve a command with the name written out")
        shown = os.path.expanduser(shown)  # noqa: PTH111
    if Path(shown).is_absolute():
        return _read(base.root + shown, shown)
    if folder == UNKNOWN:
        return _unread(name, "the folder that the script changes to can't be told", _ABSOLUTE)
    folders = base.folders
    if folder is not None:
        folders = tuple(dict.fromkeys(one / folder for one in folders))
    places = [one / shown for one in folders]
    if len(places) > 1:
        there = {os.path.realpath(one): one for one in reversed(places) if os.path.exists(one)}  # noqa: PTH110
        if len(there) > 1:
            told = " or ".join(str(one) for one in reversed(there.values()))
            return _unread(name, f"it is {told}, by where vLLM is started", _ABSOLUTE)
        if not there:
            inside = " or ".join(map(str, folders))
            return _unread(name, f"it is not in {inside}", _ABSOLUTE)
        places = list(there.values())
    return _read(str(places[0]), name if base.root else str(places[0]))


def _read(path: str, shown: str) -> YamlFile | ServeConfig:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            why = "it is not a file, but a folder, a pipe or a device"
            return _unread(shown, why, "name a YAML file")
        with open(path, "rb") as stream:  # noqa: PTH123
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        todo = "run kvpatch where vLLM runs, as a user who may read it"
        return _unread(shown, str(error.strerror), todo)
    except ValueError:
        return _unread(shown, "its name holds a null byte", "name a YAML file")
    if len(content) > MOST_BYTES:
        why = f"it has more than {MOST_BYTES} bytes"
        return _unread(shown, why, "name a file that holds vLLM's options alone")
    file = parse_bytes(content, shown, "vLLM")
    # YAML's messages quote what they stumble over, and the file may hold a key of the API.
    quiet = (
        replace(problem, message=_QUOTED.sub("'...'", problem.message)) for problem in file.problems
    )
    return replace(file, problems=tuple(quiet))


def _unread(path: str, why: str, todo: str) -> ServeConfig:
    return ServeConfig(path, unread=why, todo=todo)
