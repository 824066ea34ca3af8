"""The command line: the verbs by name, each loaded when it is asked for."""

from __future__ import annotations

import importlib
import io
import sys
import warnings
from typing import Any, NoReturn

import click

from . import __version__, console

VERBS = {
    **dict.fromkeys(
        ("status", "diff", "apply", "verify", "revert", "list", "show", "compat"), "commands_host"
    ),
    **dict.fromkeys(("profiles", "profile", "lint", "doctor"), "commands_configuration"),
    **dict.fromkeys(("smoke", "try"), "commands_engine"),
    **dict.fromkeys(("validate", "fork"), "commands_index"),
}
"""The module of each verb. Declaring the options of them all takes longer than most verbs do."""

_FUNCTIONS = {"list": "list_patches", "try": "try_it"}


class _Verbs(click.Group):
    """A group whose commands are imported one by one, as click's documentation shows it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(VERBS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f".{VERBS[cmd_name]}", __package__)
        command: click.Command = getattr(module, _FUNCTIONS.get(cmd_name, cmd_name))
        return command


@click.group(
    cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False
)
@click.version_option(__version__, prog_name="kvpatch")
def cli() -> None:
    """Make CacheBlend work on the vLLM and LMCache this host has, and take it back."""


def main(arguments: list[str] | None = None, disk: Any = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: instead of those of the process.
        disk: instead of a :class:`~kvpatch.fsops.Disk` that does what it is told.
    """
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path need not be text that the terminal can show.
            stream.reconfigure(errors="backslashreplace")
    # What Python has to say of vLLM's sources is not for those who patch them.
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    sys.exit(int(console.run(cli, given, disk)))
