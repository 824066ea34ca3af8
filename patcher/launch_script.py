"""The command that starts vLLM, found in what a shell or systemd is given."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from . import script_file, systemd_unit
from .coercion import CONFIG_VARIABLE
from .launch import Launch, from_arguments
from .outcome import ExitCode, KvpatchError
from .script_path import UNKNOWN
from .serve_config import ServeConfig, named
from .shell_builtins import target_of
from .shell_expansion import expanded
from .shell_run import calls
from .shell_state import Call, State
from .shell_words import Operator, TooLong, Word, cut

_BROKEN = re.compile(r"\s*\\?\n\s*(?=--?[A-Za-z])")


def parse_script(
    text: str, here: str = "", read: script_file.Reader = script_file.nothing
) -> Launch | None:
    """The command that starts vLLM in a shell script or a systemd unit, with what is set for it.

    Of several it is the last one that runs in any case. None where no line starts vLLM. What the
    script computes is not followed, but for the folder it is in.

    Args:
        text: the script.
        here: the folder that it is in; empty where it is not known.
        read: what it sources, and another script that it starts.

    Raises:
        KvpatchError: ``too-long``, exit 2: it has more commands than are looked at.
    """
    whole, text = text, script_file.unreturned(text)
    returned: list[str] = []

    def reads(name: str) -> script_file.ScriptFile | None:
        found = read(name)
        if found is not None and found.returned:
            returned.append(name)
        return found

    try:
        if systemd_unit.is_unit(text):
            # systemd takes a carriage return for the end of a line.
            found = systemd_unit.calls(text, reads)
        else:
            found = calls(text, here, reads)
            returned += ["the script"] * script_file.is_returned(whole)
    except TooLong:
        raise _too_long() from None
    return _chosen(found, script=True, returned=tuple(dict.fromkeys(returned)))


def parse_launch(text: str) -> Launch:
    """Take a command apart, as it is typed; others may stand on the same line.

    Raises:
        KvpatchError: ``bad-command``, ``too-long``, exit 2: a shell could not read it, or it has
            more commands than are looked at.
    """
    returned = ("the command",) if script_file.is_returned(text) else ()
    # A command that was copied in several lines may have lost what joins them.
    text = _BROKEN.sub(" ", script_file.unreturned(text))
    try:
        tokens = list(cut(text))
        found = _chosen(calls(text), returned=returned)
    except ValueError as error:
        raise KvpatchError(
            "bad-command",
            f"the --serve command is not one that a shell reads: {error}",
            "give it in one argument, as it is typed",
            ExitCode.USAGE,
        ) from None
    except TooLong:
        raise _too_long() from None
    return found or _other(tokens)


def _too_long() -> KvpatchError:
    return KvpatchError(
        "too-long",
        "the script of --serve has more commands than kvpatch looks at, so what it starts can't be "
        "told",
        "give the command itself, as in --serve 'vllm serve MODEL ...', and its variables with "
        "--env-file FILE",
        ExitCode.USAGE,
    )


def _other(tokens: Sequence[Word | Operator]) -> Launch:
    """A command that starts vLLM by another program, or only its options.

    Without one of vLLM's that says something of LMCache it has none.
    """
    commands: list[list[Word]] = [[]]
    for token in tokens:
        if isinstance(token, Word):
            commands[-1].append(token)
        else:
            commands.append([])
    with_flags = (one for one in commands if any(_text(word).startswith("--") for word in one))
    words = next(with_flags, commands[0])
    environ: dict[str, str] = {}
    while words and (target_of(words[0]) or words[0].bare in ("env", "export")):
        word = words.pop(0)
        if target_of(word):
            name, _, value = _text(word).partition("=")
            environ[name] = value
    given = [one for word in words for one in expanded(word, State())]
    found = from_arguments(given, environ)
    return found if found.concerns_vllm else Launch({})


def _text(word: Word) -> str:
    return "".join(piece.text for piece in word.pieces)


def _chosen(
    found: Sequence[Call], *, script: bool = False, returned: tuple[str, ...] = ()
) -> Launch | None:
    if not found:
        return None
    chosen = next((call for call in reversed(found) if call.certain), found[-1])
    whole = (chosen.line, chosen.arguments)
    size = len(chosen.arguments)
    # The same one with more options behind it, as of `$@`, is no other.
    others = {
        (call.line, call.arguments) for call in found if (call.line, call.arguments[:size]) != whole
    }
    lines = sorted(line for line, _ in others)
    environ = _placed(chosen)
    named = CONFIG_VARIABLE in chosen.environ and CONFIG_VARIABLE not in environ
    hidden = {CONFIG_VARIABLE} if named else set()
    unsure = replace(chosen.unsure, names=chosen.unsure.names | hidden)
    launch = from_arguments(chosen.arguments, environ, chosen.folder)
    launch = replace(
        launch,
        lines=(*lines, chosen.line),
        withheld=chosen.withheld,
        scripted=script and not chosen.elsewhere,
        unsure=unsure,
        returned=returned,
    )
    return _elsewhere(launch, chosen.elsewhere) if chosen.elsewhere else launch


def _placed(call: Call) -> Mapping[str, str]:
    """Variables with the name of LMCache's file as it is where kvpatch runs, if that is known."""
    name = call.environ.get(CONFIG_VARIABLE)
    if name is None:
        return call.environ
    if call.apart or (call.folder == UNKNOWN and not os.path.isabs(name)):  # noqa: PTH117
        return {key: value for key, value in call.environ.items() if key != CONFIG_VARIABLE}
    return {**call.environ, CONFIG_VARIABLE: os.path.join(call.folder or "", name)}  # noqa: PTH118


def _elsewhere(launch: Launch, program: str) -> Launch:
    """A launch whose files are not the ones that are seen here."""
    name = named(launch.args)
    if not isinstance(name, str):
        return launch
    why = f"{program} may start vLLM where other files are"
    todo = "run kvpatch there, or check it with --serve 'vllm serve MODEL --config FILE'"
    flags = {flag: value for flag, value in launch.flags.items() if flag != "config"}
    return replace(launch, flags=flags, args=(), config=ServeConfig(name, unread=why, todo=todo))
