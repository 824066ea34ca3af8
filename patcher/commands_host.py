"""The verbs about the patches of a host, as click has them: one function a verb, no logic."""

from __future__ import annotations

from typing import Any

import click

from . import console, options


@click.command()
@options.where
@options.choice
@click.pass_obj
def status(disk: Any, /, as_json: bool, only: Any, skip: Any, **where: Any) -> None:
    """Say whether this host is patched, with what, and whether it can be taken back."""
    from . import verbs

    console.finish(
        verbs.status(options.place(where), options.chosen(only, skip), options.disk_of(disk)),
        as_json,
    )


@click.command()
@options.where
@options.choice
@options.trust
@click.pass_obj
def diff(disk: Any, /, as_json: bool, only: Any, skip: Any, **rest: Any) -> None:
    """Show what apply would change, as a unified diff."""
    from . import verbs

    choice = options.chosen(only, skip, rest)
    console.finish(verbs.diff(options.place(rest), choice, options.disk_of(disk)), as_json)


@click.command()
@options.where
@options.choice
@options.trust
@click.option("--dry-run", is_flag=True, help="Do everything but write.")
@click.option("--while-running", is_flag=True, help="Go on although vLLM is running.")
@click.option("--smoke", is_flag=True, help="Run it, and revert unless that proves it.")
@click.pass_obj
def apply(
    disk: Any,
    /,
    as_json: bool,
    only: Any,
    skip: Any,
    dry_run: bool,
    while_running: bool,
    smoke: bool,
    **rest: Any,
) -> None:
    """Put the patches in: all of them or nothing."""
    from . import verbs

    if smoke:
        console.finish(_proved(disk, rest, (only, skip), dry_run, while_running), as_json)
    report = verbs.apply(
        options.place(rest),
        options.chosen(only, skip, rest),
        options.disk_of(disk),
        dry_run=dry_run,
        while_running=while_running,
    )
    console.finish(report, as_json)


@click.command()
@options.where
@options.choice
@click.pass_obj
def verify(disk: Any, /, as_json: bool, only: Any, skip: Any, **where: Any) -> None:
    """Check that everything is in place; exit 1 if anything is left to do."""
    from . import verbs

    console.finish(
        verbs.verify(options.place(where), options.chosen(only, skip), options.disk_of(disk)),
        as_json,
    )


@click.command()
@options.where
@click.option("--dry-run", is_flag=True, help="Say what would be put back, and write nothing.")
@click.option(
    "--force", is_flag=True, help="Put back files that were changed since; a copy is kept."
)
@click.option("--while-running", is_flag=True, help="Go on although vLLM is running.")
@click.pass_obj
def revert(
    disk: Any, /, as_json: bool, dry_run: bool, force: bool, while_running: bool, **where: Any
) -> None:
    """Put every file back byte for byte, by the journal alone."""
    from . import verbs

    report = verbs.revert(
        options.place(where),
        options.disk_of(disk),
        dry_run=dry_run,
        force=force,
        while_running=while_running,
    )
    console.finish(report, as_json)


@click.command("list")
@options.json
def list_patches(as_json: bool) -> None:
    """List the patches, in the order in which they are applied."""
    from . import verbs

    console.finish(verbs.list_patches(), as_json)


@click.command()
@click.argument("patch_id", metavar="ID", shell_complete=options.patch_ids)
@options.json
def show(patch_id: str, as_json: bool) -> None:
    """Show why a patch exists, what it does, and when it can go."""
    from . import verbs

    console.finish(verbs.show(patch_id), as_json)


@click.command()
@options.where
@options.choice
@click.pass_obj
def compat(disk: Any, /, as_json: bool, only: Any, skip: Any, **where: Any) -> None:
    """Say by letters what keeps this vLLM and LMCache from blending, before and after apply."""
    from . import verbs

    console.finish(
        verbs.compat(options.place(where), options.chosen(only, skip), options.disk_of(disk)),
        as_json,
    )


def _proved(disk: Any, rest: Any, chosen: Any, dry_run: bool, while_running: bool) -> Any:
    from . import smoke, smoke_apply

    if dry_run:
        raise click.UsageError("--smoke runs what was written, and --dry-run writes nothing")
    choice = options.chosen(chosen[0], chosen[1], rest)
    place, proof = options.place(rest), smoke.Choice()
    return smoke_apply.apply(
        place, choice, proof, options.disk_of(disk), console.progress, while_running=while_running
    )
