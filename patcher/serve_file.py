"""Reads the file that a command gives vLLM by ``--config``, from where vLLM would read it."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from . import process_path, serve_config
from .launch import Launch
from .rules import printable
from .script_path import UNKNOWN, computed
from .serve_config import ServeConfig
from .yaml_source import MOST_BYTES, YamlFile, parse_bytes, read_now

_WHERE = "run kvpatch where vLLM runs, as a user who may read it"
_ABSOLUTE = "name it by its absolute path"
_QUOTED = re.compile(r"(['\"]).{2,}\1", re.DOTALL)


@dataclass(frozen=True)
class Base:
    """Where a relative name leads.

    Attributes:
        folders: where vLLM may be started; one where that is certain.
        root: of a process that runs, below which an absolute name leads; empty for this one.
        since: when that process was started, in seconds of the epoch; None where not known.
    """

    folders: tuple[Path, ...]
    root: str = ""
    since: float | None = None


def of_process(pid: int, proc: Path = Path("/proc")) -> Base:
    """As a running process has it, also where that is in a container."""
    own = proc / str(pid)
    return Base((own / "cwd",), str(own / "root"), process_path.started(own))


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
    place = _place(name, launch.folder, base)
    if isinstance(place, ServeConfig):
        return launch.with_config(place)
    path, shown, changed = place
    file = _read(path, shown)
    if isinstance(file, ServeConfig):
        return launch.with_config(file)
    if process_path.is_newer(changed, base.since):
        why = "it was changed after vLLM was started, which runs with what was there before"
        todo = f"restart vLLM, or check it with --serve 'vllm serve MODEL --config {shown}'"
        return launch.with_config(_unread(shown, why, todo))
    return launch.with_config(serve_config.converted(file, launch.args, vllm))


def _place(name: str, folder: str | None, base: Base) -> tuple[str, str, float] | ServeConfig:
    """The path of the file of that name, how it is shown, and when it was changed.

    Or why that can't be told.
    """
    if base.root:
        (own,) = base.folders
        if folder == UNKNOWN and not name.startswith("/"):
            return _unread(name, "the folder that is changed to can't be told", _ABSOLUTE)
        name = name if folder is None else os.path.join(folder, name)  # noqa: PTH118
        shown = printable(process_path.shown(name, str(own)))
        try:
            found = process_path.found(name, base.root, str(own))
        except OSError as error:
            return _unread(shown, str(error.strerror), _WHERE)
        except ValueError:
            return _unread(name, "its name holds a null byte", "name a YAML file")
        return found.path, shown, found.changed
    shown = re.sub(r"^\$(HOME\b|\{HOME\})", lambda _: "~", name)
    if computed(shown):
        why = "its name is put together when the command runs"
        return _unread(name, why, "give --serve a command with the name written out")
    shown = os.path.expanduser(shown)  # noqa: PTH111
    if Path(shown).is_absolute():
        return shown, shown, 0.0
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
    (place, *_) = places
    return str(place), str(place), 0.0


def _read(path: str, shown: str) -> YamlFile | ServeConfig:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            why = "it is not a file, but a folder, a pipe or a device"
            return _unread(shown, why, "name a YAML file")
        content = read_now(path)
    except OSError as error:
        return _unread(shown, str(error.strerror), _WHERE)
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
    return ServeConfig(path, unread=printable(why), todo=printable(todo))
