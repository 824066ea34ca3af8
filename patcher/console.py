"""What is printed, and the exit code a run ends with; nothing else prints."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn

import click

from .outcome import ExitCode, KvpatchError, Report
from .place import options, options_in, report_for


def run(group: click.Group, given: list[str], disk: Any = None) -> ExitCode:
    """Run the verb of a command line; whatever it raises is told with a next step.

    Args:
        group: the verbs.
        given: the words after the program's name.
        disk: handed to the verb as its click object.
    """
    try:
        code = group.main(given, prog_name="kvpatch", standalone_mode=False, obj=disk)
        return ExitCode(code or 0)
    except SystemExit:
        # What click makes of a reader of its help that has left.
        _silence(sys.stdout)
        return ExitCode.DONE
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
            "run `kvpatch status`; the next apply or revert cleans up what was half done"
            if {"apply", "revert"} & set(given)
            else "run it again; it changed no installed file",
            ExitCode.ENVIRONMENT,
        )
    except OSError as error:
        from .system_errors import environment_error

        failure = _unwritable(error) if _printing(error) else environment_error(error)
    except Exception as error:
        from .system_errors import no_memory

        failure = no_memory() if _short_of_memory(error) else _bug(error)
    return _fail(failure, given, group)


def _printing(error: OSError) -> bool:
    """Whether it was the output that could not be written, and no file."""
    frames = walk_tb(error.__traceback__)
    return not error.filename and any(
        frame.f_code is click.utils.echo.__code__ for frame, _ in frames
    )


def _short_of_memory(error: BaseException) -> bool:
    """Whether it is memory that was short; a library that can't be mapped says so in words."""
    if isinstance(error, ImportError):
        return any(words in str(error) for words in ("map segment", "allocate memory"))
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)


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


def _fail(failure: KvpatchError, given: list[str], group: click.Group) -> ExitCode:
    verbs = group.list_commands(click.Context(group))
    command = next((word for word in given if word in verbs), "kvpatch")
    report = Report(command, "", exit_code=failure.exit_code, errors=(failure,))
    return _print(report_for(report, options_in(given)), "--json" in given)


def finish(report: Report, as_json: bool) -> NoReturn:
    """Print a verb's report and end the run with its exit code."""
    given = click.get_current_context().params
    raise click.exceptions.Exit(int(_print(report_for(report, options(given)), as_json)))


def _print(report: Report, as_json: bool) -> ExitCode:
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


def _print_errors(errors: Sequence[KvpatchError], notes: Sequence[str] = ()) -> None:
    """Say on stderr what went wrong; where nobody can hear it, the exit code still says it."""
    try:
        for note in notes:
            click.echo(f"kvpatch: {note}", err=True)
        for hint, alike in groupby(errors, key=lambda error: error.hint):
            for error in alike:
                click.echo(f"kvpatch: {error.message}", err=True)
            click.echo(f"    {hint}", err=True)
    except OSError:
        _silence(sys.stderr)


def progress(line: str) -> None:
    """A line of what an engine is doing, on stderr."""
    click.echo(line, err=True)


def say(line: str) -> None:
    """The same with the program's name; where nobody can hear it, the work goes on."""
    try:
        click.echo(f"kvpatch: {line}", err=True)
    except OSError:
        _silence(sys.stderr)
