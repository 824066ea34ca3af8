"""The options that verbs share, and what the values given to them mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from .fsops import Disk
    from .host import Choice, Where

_F = TypeVar("_F", bound=Callable[..., Any])


def together(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """Several options as one decorator, in the order in which they are listed."""

    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def patch_ids(_: click.Context, __: click.Parameter, given: str) -> list[str]:
    """The ids of patches that a shell can complete a word to."""
    from .series import discover

    return [each.id for each in discover().members if each.id.startswith(given.upper())]


def profile_names(_: click.Context, __: click.Parameter, given: str) -> list[str]:
    """The names of profiles that a shell can complete a word to."""
    from .templates import profiles

    return [each.name for each in profiles() if each.name.startswith(given)]


json = click.option("--json", "as_json", is_flag=True, help="Print one JSON envelope.")
target = together(
    click.option(
        "--python",
        # Whether it can be run is all that matters, and is said where it is run.
        type=click.Path(path_type=Path, readable=False),
        help="Environment that holds vLLM: its interpreter, or the folder of the venv.",
    ),
    click.option(
        "--site",
        type=click.Path(path_type=Path),
        help="Site folder that holds vLLM, read without its interpreter.",
    ),
)
where = together(
    target,
    click.option(
        "--state",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder for the journal, instead of .kvpatch in the environment; one of its own for "
        "each host or container.",
    ),
    json,
)
choice = together(
    click.option(
        "--only",
        multiple=True,
        metavar="ID",
        shell_complete=patch_ids,
        help="Only this patch, what it needs, and the registration of the model; may be given "
        "again.",
    ),
    click.option(
        "--skip",
        multiple=True,
        metavar="ID",
        shell_complete=patch_ids,
        help="All patches but this one; may be given again.",
    ),
)
trust = together(
    click.option(
        "--accept-foreign",
        is_flag=True,
        help="Patch on top of somebody's edit; revert gives the edit back.",
    ),
    click.option(
        "--allow-unverified",
        is_flag=True,
        help="Treat a file that RECORD has no hash for as the original.",
    ),
)


def place(where: dict[str, Any]) -> Where:
    """Where the environment and its journal are."""
    from .host import Where

    return Where(where["python"], where["site"], where["state"])


def chosen(only: Any, skip: Any, trusted: dict[str, Any] | None = None) -> Choice:
    """Which patches, and which files that are not as released are taken all the same."""
    from .host import Choice
    from .plan import Options

    trusted = trusted or {}
    options = Options(
        accept_foreign=bool(trusted.get("accept_foreign")),
        allow_unverified=bool(trusted.get("allow_unverified")),
    )
    return Choice(tuple(only), tuple(skip), options)


def disk_of(given: Disk | None) -> Disk:
    """The disk that a test gave, or one that does what it is told."""
    from .fsops import Disk

    return Disk() if given is None else given
