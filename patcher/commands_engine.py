"""The verbs that start engines, as click has them: one function a verb, no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import console, options


@click.command()
@options.where
@click.option(
    "--profile",
    shell_complete=options.profile_names,
    help="Smoke with this profile's configuration.",
)
@click.option("--config", type=click.Path(path_type=Path), help="Smoke with this one of yours.")
@click.option(
    "--model",
    metavar="PATH_OR_ID",
    help="Your model, instead of a tiny one: its folder, or its name in the hub's cache.",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option(
    "--ratio",
    "ratios",
    type=click.FloatRange(0, 1),
    multiple=True,
    help="Recompute ratio to measure; may be given again.",
)
@click.option("--timeout", type=click.FloatRange(1), default=900.0, help="Seconds for all of it.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep all files in this new folder.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with the result.")
@click.option("--arch", type=click.Choice(["llama", "qwen2", "qwen3"]), default="llama")
@click.option(
    "--rope", type=click.Choice(["default", "llama3", "yarn", "linear"]), default="default"
)
@click.option("--tokenizer", type=click.Choice(["bos", "no-bos"]), default="bos")
@click.option("--gds", is_flag=True, help="Store in one process, blend in the next, through GDS.")
@click.option("--fault", default="", hidden=True)
@click.pass_obj
def smoke(disk: Any, /, as_json: bool, **rest: Any) -> None:
    """Prove CacheBlend by running it: real engines, blended answers against ones without cache."""
    from . import smoke as capability

    place = options.place({name: rest.pop(name) for name in ("python", "site", "state")})
    choice = capability.Choice(**rest)
    console.finish(
        capability.smoke(place, choice, options.disk_of(disk), console.progress), as_json
    )


@click.command("try")
@click.option(
    "--env",
    type=click.Path(path_type=Path),
    envvar="KVPATCH_STACK",
    help="A virtual environment with both, instead of one made for it.",
)
@options.json
def try_it(env: Path | None, as_json: bool) -> None:
    """Show it on the real pair: fails as released, is patched, blends, is as before again."""
    from . import trial

    console.finish(trial.trial(env, console.progress), as_json)
