"""The command line: the verbs by name, each loaded when it is asked for."""

from __future__ import annotations

import importlib
import io
import sys
import warnings
from collections.abc import Sequence
from itertools import pairwise
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The words from the verb on; before it stand options of kvpatch itself alone.

        Raises:
            click.UsageError: another one does.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # Of the few that belong here click would name one, for want of those of the verbs.
            told = f"no option {error.option_name} goes before the verb; those of a verb follow it"
            ctx.fail(told)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that is asked for, and the words that follow it.

        Raises:
            click.UsageError: there is none of that name, or an option lacks its value.
        """
        if not ctx.resilient_parsing and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"there is no verb {args[0]!r}{_near(args[0])}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            inner = click.Context(command, info_name=name, parent=ctx)
            if told := _without_value(command.get_params(inner), rest):
                inner.fail(told)
        return name, command, rest


def _near(name: str) -> str:
    """The verbs whose names come near, as the end of a sentence."""
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), VERBS)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _without_value(params: Sequence[click.Parameter], words: Sequence[str]) -> str:
    """What is wrong where an option is followed by another one instead of by its value.

    Click takes the other one for the value, and then wonders at what follows it.
    """
    named = {
        name: param
        for param in params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
    }
    for word, following in pairwise(words):
        if word == "--":
            break
        option = named.get(word)
        if option and not option.is_flag and not option.count and following in named:
            value = f" ({option.metavar})" if option.metavar else ""
            return f"{word} takes a value{value}, and is followed by the option {following}"
    return ""


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
