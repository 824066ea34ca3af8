"""How a command of a script starts another shell, and what that one knows."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Sequence

from .script_file import Reader, ScriptFile
from .script_path import UNKNOWN
from .shell_map import SharedMap
from .shell_state import State, Unsure, Withheld, below
from .shell_variables import Argument, Variable, Variables
from .wrapper import SHELLS, Start

_SPLITS = re.compile(r"-[a-z]*S|--split-string=?")
_SHEBANG = re.compile(r"#!\s*(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(\w+)")


def given(state: State, start: Start) -> Variables:
    """The variables that a program is given, as far as the script says."""
    before = state.variables
    found = Variables(SharedMap())
    if not (start.elsewhere or start.keeper):
        found.losses, found.causes = before.losses, before.causes
        for name, one in before.known.items():
            # Nothing of one that is not exported is known there; of one taken away, that it is.
            if name in start.unset or one.gone:
                found.known[name] = Variable((), touched=True, since=one.since)
            elif one.exported is not False and not one.listed:
                found.known[name] = one
    for name in start.handed if start.keeper or start.elsewhere else ():
        one = before.of_name(name)
        if one.touched and one.exported is not False:
            found.put(name, one, sure=before.sure(one))
    for name, text in start.assigned.items():
        value = None if text is None else (Argument(text),)
        found.put(name, Variable(value, True, touched=True))
    for cause in start.causes:
        found.lose(cause)
    return found


def inner(state: State, start: Start, variables: Variables, elsewhere: str) -> State:
    """Where another shell begins: with what was exported to it."""
    found = state.copy()
    found.kept = withheld(state, start, variables)
    found.variables = variables.copy()
    found.exports = False
    found.elsewhere, found.depth = elsewhere, state.depth + 1
    found.functions, found.stack = SharedMap(), ()
    found.loops = found.functions_around = found.files_around = 0
    found.folder = UNKNOWN if start.elsewhere else below(state.folder, start.folder)
    return found


def environ(variables: Variables) -> dict[str, str]:
    """What is told of the variables that a program is given."""
    pairs = ((name, one.text) for name, one in sorted(variables.known.items(), key=_name))
    return {name: text for name, text in pairs if text is not None}


def _name(pair: tuple[str, object]) -> str:
    return pair[0]


def unsure(variables: Variables, start: Start) -> Unsure:
    """Which of them it may have otherwise."""
    names = {
        name
        for name, one in variables.known.items()
        if one.touched
        and not one.gone
        and (one.text is None or one.exported is None or not variables.sure(one) or start.doubted)
    }
    settled = {name for name, one in variables.known.items() if variables.sure(one)} - names
    return Unsure(frozenset(names), variables.causes, frozenset(settled))


def withheld(state: State, start: Start, variables: Variables) -> dict[str, Withheld]:
    """The variables that are set, and not given to a program that starts here."""
    if start.elsewhere or state.elsewhere or state.variables.losses:
        return {}
    before = {name: one for name, one in state.kept.items() if not variables.of_name(name).touched}
    return before | {
        name: Withheld(one.text, (start.keeper or "env") if one.exported else "")
        for name, one in sorted(state.variables.known.items(), key=_name)
        if one.touched
        and name != "@"
        and not one.gone
        and not one.listed
        and one.exported is not None
        and (name not in variables.known or variables.of_name(name).gone)
    }


def named(name: Argument, state: State, read: Reader) -> ScriptFile | None:
    """The file that a word names there; None where it can't be told, or be read."""
    path = below(state.folder, os.path.expanduser(name.text))  # noqa: PTH111
    if name.computed or not name.single or not path or state.elsewhere:
        return None
    return read(path)


def is_shell_script(text: str) -> bool:
    """Whether the kernel gives a file of that text to a shell."""
    found = _SHEBANG.match(text)
    return found is not None and found[1] in SHELLS


def stands_for_vllm(one: Argument, following: Sequence[Argument]) -> bool:
    """Whether a word that is put together is vLLM's program."""
    serves = bool(following) and following[0].text == "serve"
    return one.computed and serves and "vllm" in one.text.lower()


def is_program(one: Argument) -> bool:
    """Whether a word that is put together is a folder's program, and no command in front."""
    return re.search(r"python|vllm|venv|/bin/|^\W*PY", one.text, re.IGNORECASE) is not None


def unpacked(given: Sequence[Argument]) -> Sequence[Argument]:
    """The words of a command, with those that ``env -S`` has in one."""
    for place, one in enumerate(given):
        if not (place and _SPLITS.match(one.text)) or one.computed:
            continue
        if "env" not in {before.text.rpartition("/")[2] for before in given[:place]}:
            return given
        name, text = _SPLITS.sub("", one.text), given[place + 1 : place + 2]
        packed, behind = (name, place + 1) if name else ("".join(w.text for w in text), place + 2)
        try:
            words = [Argument(word) for word in shlex.split(packed)]
        except ValueError:
            return given
        return [*given[:place], *words, *given[behind:]]
    return given
