"""The option ``--serve``: a command, or the script that it stands in."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from . import script_file
from .launch import Launch
from .launch_script import parse_launch, parse_script
from .outcome import ExitCode, KvpatchError

_MANIFEST = re.compile(
    r"\A(?:---\n|#.*\n|\s*\n)*(?:services|apiVersion|kind|version|name): *\S*\s*$", re.M
)
"""How a file for docker compose or Kubernetes begins."""
_IMAGE = re.compile(r"(?:[ \t]*(?:#.*)?\r?\n|ARG\s.*\n)*FROM[ \t]+\S", re.IGNORECASE)
"""How a file begins that an image is built of."""


def launch_of(given: str) -> Launch:
    """A command, or the one in the script of that name.

    Raises:
        KvpatchError: ``bad-command``, ``too-long``, ``no-script``, ``no-command`` (exit 2),
            ``unreadable`` (exit 4).
    """
    script = script_of(given)
    if script is not None:
        text = _content(script, given).decode("utf-8", "replace")
        if kind := other_kind(script.name, text):
            raise _no_script(given, kind)
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


def other_kind(name: str, text: str) -> str:
    """What a file is that no shell and no systemd reads; empty where it may be a script."""
    if Path(name).suffix.lower() in (".yaml", ".yml", ".json") or _MANIFEST.search(text):
        return "YAML or JSON"
    if re.match(r"(?:.*\.)?(?:docker|container)file(?:\..*)?$", name, re.IGNORECASE):
        return "what an image is built of"
    return "what an image is built of" if _IMAGE.match(text) else ""


def _no_script(given: str, kind: str) -> KvpatchError:
    return KvpatchError(
        "no-script",
        f"{given} is {kind}, and no shell script and no systemd unit",
        "write out what it starts: --serve 'vllm serve MODEL ...' for the command, and --env-file "
        "FILE with a line of NAME=VALUE for each of its variables",
        ExitCode.USAGE,
    )


def _no_command(told: str) -> KvpatchError:
    return KvpatchError(
        "no-command",
        told,
        "give the command in one argument, as in --serve 'vllm serve MODEL ...', or its script",
        ExitCode.USAGE,
    )
