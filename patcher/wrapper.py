"""What stands in front of vLLM in a command: programs that start it elsewhere, or otherwise."""

from __future__ import annotations

import os.path
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .script_path import UNKNOWN, computed
from .wrapper_environment import Text, changes
from .wrapper_words import ASSIGNMENT, values

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash"})
_SAYING = frozenset(
    {"alias", "cat", "complete", "echo", "git", "grep", "egrep", "fgrep", "info"}
    | {"logger", "ls", "man", "pgrep", "pkill", "killall", "printf", "rg", "sed", "awk"}
    | {"tee", "test", "trap", "type", "wall", "which", "whereis", "wc", "[", "[["}
    | {"pip", "pip3", ":", "true", "false"}
)
_ELSEWHERE = frozenset(
    {"apptainer", "buildah", "chroot", "ctr", "crictl", "docker", "docker-compose"}
    | {"enroot", "flatpak", "kubectl", "lxc", "machinectl", "multipass", "nerdctl"}
    | {"nsenter", "oc", "podman", "podman-compose", "pdsh", "rsh", "singularity", "ssh"}
    | {"systemd-nspawn", "toolbox", "distrobox", "wsl"}
)
_PLAIN = frozenset(
    {"exec", "nohup", "time", "sudo", "command", "builtin", "env", "xargs", "setsid"}
)
_RUNS_TEXT = frozenset(
    {"eval", "screen", "ssh", "su", "runuser", "script", "tmux", "watch", "srun"}
)
_TAKES = frozenset({"-u", "-g", "-o", "+o", "-O", "+O", "-C", "-D", "--rcfile", "--init-file"})
"""Options of those programs with a word behind."""
_CHDIR = re.compile(r"--(?:chdir|directory|working-directory|cwd|workdir|work-dir)(?:=(.*))?")
_INSIDE = re.compile(r"\bserve\b|vllm\.entrypoints\.")
_IMAGE = re.compile(r"(?:^|/)vllm-openai(?:[:@][^/]*)?$")
MODULE = "vllm.entrypoints.openai.api_server"
"""What that image starts."""
_HELP = re.compile(r"-h|-v|--version|--help(?:=.*)?")


@dataclass(frozen=True)
class Start:
    """How a command starts vLLM.

    Attributes:
        at: place of vLLM's program, module or image among the words; None where ``text`` or
            ``script`` starts it.
        text: what another shell is given to run.
        script: place of the name of another script that starts it, if it does.
        by_shell: whether a shell is named that runs that script.
        assigned: variables that the words in front set; None for what is not known.
        folder: where they change to; None where they do not.
        elsewhere: the program that starts it where files have other names; empty for none.
        keeper: the program that keeps all other variables from it; empty where none does.
        handed: variables that this program hands on all the same.
        unset: variables that are taken away.
        causes: what may set any other variable.
        doubted: whether variables that are set before may not come through.
        image: whether it is vLLM's own image, which starts :data:`MODULE` by itself.
        odd: place of the first word that is put together and may be a program; None for none.
    """

    at: int | None
    text: str = ""
    script: int | None = None
    by_shell: bool = False
    assigned: Mapping[str, str | None] = field(default_factory=dict)
    folder: str | None = None
    elsewhere: str = ""
    keeper: str = ""
    handed: frozenset[str] = frozenset()
    unset: frozenset[str] = frozenset()
    causes: tuple[str, ...] = ()
    doubted: bool = False
    image: bool = False
    odd: int | None = None


def start_of(
    words: Sequence[str],
    *,
    texts: bool = True,
    odd: Collection[int] = (),
    text_of: Text = lambda _: None,
) -> Start | None:
    """How words start vLLM; None where they do not.

    Args:
        words: of one command, without variables in front.
        texts: whether a word is looked into that another shell runs.
        odd: places of words that the shell still puts together.
        text_of: the text of a file that they name.
    """
    at = program(words)
    image = _image(words) if at is None else None
    at = image if at is None else at
    names = [word.rpartition("/")[2] for word in (words if at is None else words[:at])]
    if _says(names):
        return None
    front = words if at is None else words[:at]
    text, script, by_shell = "", None, False
    if at is None:
        place = _text(words, names) if texts else None
        if texts and place is None:
            script, by_shell = _script(words, names)
        if place is None and script is None:
            return None
        front, names = front[:script], names[:script]
        if place is not None:
            text = words[place]
            # What another shell is given is no word in front.
            front = ["" if at == place else word for at, word in enumerate(front)]
            names = ["" if at == place else name for at, name in enumerate(names)]
    elif any(_HELP.fullmatch(word) for word in words[at + 1 :]):
        return None
    elsewhere = next((name for name in names if name in _ELSEWHERE), "")
    if "srun" in names and any(word.startswith("--container") for word in front):
        elsewhere = "srun"
    told = changes(front, names, odd, text_of, elsewhere=bool(elsewhere))
    usual = values(front, names)
    return Start(
        None if text or script is not None else at,
        text,
        script,
        by_shell,
        told.assigned,
        _folder(front, names),
        elsewhere,
        told.keeper,
        told.handed,
        told.unset,
        told.causes,
        told.doubted,
        image is not None,
        next((one for one in sorted(odd) if one < len(front) and one not in usual), None),
    )


def _says(names: Sequence[str]) -> bool:
    """Whether it is a command that only says something of vLLM."""
    for name in names:
        if name not in _PLAIN:
            return name in _SAYING
    return False


def program(words: Sequence[str]) -> int | None:
    """The place of vLLM's program, or of its module, among words; None where it is not there."""
    for place, word in enumerate(words):
        if word.startswith("vllm.entrypoints."):
            return place
        if word.rpartition("/")[2] == "vllm" and words[place + 1 : place + 2] == ["serve"]:
            return place
    return None


def _image(words: Sequence[str]) -> int | None:
    """The place of vLLM's own image, which starts the server by itself; None where it is not."""
    if any(word.startswith("--entrypoint") for word in words):
        return None
    for place, word in enumerate(words):
        if (
            place
            and _IMAGE.search(word)
            and _ELSEWHERE & {one.rpartition("/")[2] for one in words[:place]}
        ):
            return place
    return None


def _script(words: Sequence[str], names: Sequence[str]) -> tuple[int | None, bool]:
    """The place of a script's name, and whether it is a shell's argument."""
    by_shell = takes = False
    for place, (word, name) in enumerate(zip(words, names, strict=True)):
        if takes or ASSIGNMENT.match(word) or (name in _PLAIN and not by_shell):
            takes = False
        elif word[:1] in ("-", "+"):
            if by_shell and re.fullmatch(r"-[A-Za-z]*[cs][A-Za-z]*", word):
                return None, False
            takes = word in _TAKES
        elif name in SHELLS and not by_shell:
            by_shell = True
        else:
            return (place, by_shell) if by_shell or "/" in word else (None, False)
    return None, False


def _text(words: Sequence[str], names: Sequence[str]) -> int | None:
    """The place of what another shell runs, where that may start vLLM."""
    for place, name in enumerate(names):
        if name in SHELLS or name in ("su", "runuser", "script", "flock"):
            for option, word in enumerate(words[place + 1 : -1], place + 1):
                if re.fullmatch(r"-[A-Za-z]*c|--command", word):
                    return option + 1 if _INSIDE.search(words[option + 1]) else None
        if name in _RUNS_TEXT:
            behind = range(place + 1, len(words))
            return next((one for one in behind if _runs(words[one])), None)
    return None


def _runs(word: str) -> bool:
    return " " in word.strip() and _INSIDE.search(word) is not None


def _folder(front: Sequence[str], names: Sequence[str]) -> str | None:
    folder: str | None = UNKNOWN if "systemd-run" in names else None
    if {"sudo", "su", "runuser"} & set(names) and {"-", "-i", "-l", "--login"} & set(front):
        folder = UNKNOWN
    for place, word in enumerate(front):
        found = _CHDIR.fullmatch(word)
        short = (word.startswith("-C") and "env" in names) or (word == "-D" and "sudo" in names)
        if not found and not short:
            continue
        target = (found[1] if found else word[2:]) or "".join(front[place + 1 : place + 2])
        if computed(target) or not target:
            return UNKNOWN
        folder = os.path.join(folder or "", target)  # noqa: PTH118
    return folder
