"""The option ``--serve``: a command, or the script that it stands in."""

from __future__ import annotations

import errno
from pathlib import Path

from . import script_file
from .launch import Launch
from .launch_script import parse_launch, parse_script
from .outcome import ExitCode, KvpatchError


def launch_of(given: str) -> Launch:
    """A command, or the one in the script of that name.

    Raises:
        KvpatchError: ``bad-command``, ``no-command`` (exit 2), ``unreadable`` (exit 4).
    """
    script = script_of(given)
    if script is not None:
        text = _content(script, given).decode("utf-8", "replace")
        found = parse_script(text, script_file.folder_of(script), script_file.read)
        if found is None:
            told = f"{given} is a file in which no line starts vLLM"
            raise _no_command(f"{told}, as far as can be seen without running it")
        return found
    launch = parse_launch(given)
    if not launch.flags and launch.model is None:
        # The words may hold a key: they are not repeated.
        told = "--serve is no command that starts vLLM, and no file"
        raise _no_command(f"{told}: there is no `vllm serve` in it")
    return launch


def _content(script: Path, given: str) -> bytes:
    """The beginning of a script.

    Raises:
        KvpatchError: ``unreadable``, exit 4.
    """
    try:
        return script_file.beginning(script)
    except OSError as error:
        raise _unreadable(given, error) from None


def script_of(given: str) -> Path | None:
    """The script of that name; None where it is a command."""
    try:
        return Path(given) if Path(given).is_file() else None
    except ValueError:
        # A null byte in it: no path.
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise _unreadable(given, error) from None


def _unreadable(given: str, error: OSError) -> KvpatchError:
    return KvpatchError(
        "unreadable",
        f"{given} can't be read: {error.strerror}",
        "name a script that this user may read, or give the command itself",
        ExitCode.ENVIRONMENT,
    )


def _no_command(told: str) -> KvpatchError:
    return KvpatchError(
        "no-command",
        told,
        "give the command in one argument, as in --serve 'vllm serve MODEL ...', or its script",
        ExitCode.USAGE,
    )
