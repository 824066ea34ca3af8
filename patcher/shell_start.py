"""How a command of a script starts another shell, and what that one knows."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence

from .script_file import Reader, ScriptFile
from .script_path import UNKNOWN
from .shell_state import Argument, State, Withheld, below
from .wrapper import SHELLS, Start

_SHEBANG = re.compile(r"#!\s*(?:\S*/)?(?:env\s+(?:-S\s+)?)?(?:\S*/)?(\w+)")


def inner(state: State, start: Start, environ: Mapping[str, str], elsewhere: str) -> State:
    """Where another shell begins: with what was exported to it."""
    found = state.copy()
    found.variables = {name: (Argument(value),) for name, value in environ.items()}
    found.exported, found.exports, found.arrays = frozenset(environ), False, frozenset()
    found.elsewhere, found.depth = elsewhere, state.depth + 1
    found.functions, found.stack = {}, ()
    found.loops = found.functions_around = found.files_around = 0
    found.folder = UNKNOWN if start.elsewhere else below(state.folder, start.folder)
    return found


def environ(state: State, start: Start) -> dict[str, str]:
    """The variables that a program is given."""
    alone = start.elsewhere or start.keeper
    kept = {} if alone else {k: v for k, v in state.environ.items() if k not in start.unset}
    return {**kept, **start.assigned}


def withheld(state: State, start: Start, given: Mapping[str, str]) -> dict[str, Withheld]:
    """The variables that are set, and not given to a program that starts here."""
    if start.elsewhere or state.elsewhere:
        return {}
    return {
        name: Withheld(value, (start.keeper or "env") if name in state.exported else "")
        for name, value in state.settings.items()
        if name not in given
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
