"""The verbs about configuration, as click has them: one function a verb, no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import console, options


@click.command()
@options.json
def profiles(as_json: bool) -> None:
    """List the profiles: what each is for."""
    from . import profiling

    console.finish(profiling.list_profiles(), as_json)


@click.command()
@click.argument("name", shell_complete=options.profile_names)
@click.option(
    "--format", type=click.Choice(["yaml", "env", "serve", "bundle"]), help="What to make."
)
@click.option("--vllm", metavar="V", help="A release of vLLM, not the installed one.")
@click.option("--lmcache", metavar="V", help="A release on the index, not the installed one.")
@click.option("--model", type=click.Path(path_type=Path), help="config.json, or its folder.")
@click.option("--tp", type=click.IntRange(min=1), default=1, help="Tensor-parallel ranks.")
@click.option("--gpu-memory", type=float, metavar="GIB", help="Memory of one GPU.")
@click.option("--max-model-len", type=click.IntRange(min=1), help="Tokens of the longest prompt.")
@click.option("--kv-dtype", default="auto", help="dtype of the KV cache, such as fp8.")
@click.option(
    "--gds-path",
    metavar="DIR",
    help="Folder on the fast storage, mounted, one for this pair alone. With --model, a folder "
    "below it that is named for model, ranks and LMCache release.",
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Another value for a key.")
@click.option("--strict", is_flag=True, help="Exit 1 where something it needs is not in place.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write; of a bundle, its folder.",
)
@click.option("--force", is_flag=True, help="Write over what is there already.")
@options.where
@click.pass_obj
def profile(disk: Any, /, name: str, as_json: bool, **rest: Any) -> None:
    """Make the LMCache configuration for a use, such as gds-blend, as this pair understands it."""
    from . import profiling

    where = options.place(rest)
    asked = {key: value for key, value in rest.items() if key not in ("python", "site", "state")}
    console.finish(
        profiling.run_profile(where, options.disk_of(disk), name, profiling.Asked(**asked)), as_json
    )


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--lmcache", metavar="V", help="A release on the index, not the installed one.")
@click.option("--vllm", metavar="V", help="Release of the vLLM beside it.")
@click.option(
    "--env-file",
    type=click.Path(path_type=Path),
    help="Variables, NAME=VALUE a line, as systemd reads them.",
)
@click.option(
    "--pid", type=click.IntRange(min=1), help="Take variables and command of that process."
)
@click.option("--serve", metavar="COMMAND", help="How vLLM is started: command, script or unit.")
@click.option("--fix", is_flag=True, help="Mend what is certain; comments and order stay.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Write the findings there, too.")
@options.target
@options.json
def lint(file: Path | None, as_json: bool, **asked: Any) -> None:
    """Check an LMCache configuration against the release that will read it.

    Without FILE, it is the one that the variables of --env-file or --pid make.
    """
    from . import linting

    console.finish(linting.run_lint(file, linting.Asked(**asked)), as_json)


@click.command()
@click.option(
    "--profile",
    metavar="NAME",
    shell_complete=options.profile_names,
    help="Look at what this profile asks for.",
)
@click.option("--config", type=click.Path(path_type=Path), help="Look at this configuration.")
@click.option("--model", type=click.Path(path_type=Path), help="config.json, or its folder.")
@click.option("--gds-path", help="Folder on the fast storage.")
@click.option(
    "--pid", type=click.IntRange(min=1), help="Look at that vLLM's environment and command, too."
)
@click.option("--no-write", is_flag=True, help="Write no temporary file in that folder.")
@options.where
@click.pass_obj
def doctor(disk: Any, /, as_json: bool, no_write: bool, **rest: Any) -> None:
    """Look at pair, configuration, model and storage: what would go wrong, and what to do."""
    from . import doctor as doctors
    from . import subject

    names = ("profile", "config", "model", "gds_path", "pid")
    asked = subject.Asked(**{name: rest[name] for name in names}, write=not no_write)
    console.finish(doctors.run_doctor(options.place(rest), options.disk_of(disk), asked), as_json)
