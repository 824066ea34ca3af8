"""The variables that programs in front of vLLM set, keep from it, or hand on."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .wrapper_words import ASSIGNMENT, values

_CONTAINERS = frozenset({"docker", "nerdctl", "podman", "docker-compose", "podman-compose"})
_SETS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_CONTAINERS, frozenset({"-e", "--env"})),
    "apptainer": frozenset({"--env"}),
    "flatpak": frozenset({"--env"}),
    "kubectl": frozenset({"--env"}),
    "mpiexec": frozenset({"-x"}),
    "mpirun": frozenset({"-x"}),
    "oc": frozenset({"--env"}),
    "singularity": frozenset({"--env"}),
    "systemd-run": frozenset({"-E", "--setenv"}),
    "tmux": frozenset({"-e"}),
}
"""Options that set a variable, or hand on one that is named alone."""
_OTHERS = frozenset(
    {"-p", "-v", "-u", "-w", "-m", "-h", "--name", "--gpus", "--network", "--net", "--shm-size"}
    | {"--volume", "--publish", "--ipc", "--memory", "--hostname", "--device", "--mount", "--user"}
    | {"--workdir", "--cpus", "--cpuset-cpus", "--restart", "--runtime", "--ulimit"}
)
"""Options of containers with a word behind that sets no variable."""
_LISTS = re.compile(r"(--export|--preserve-env|--whitelist-environment)=(.*)", re.DOTALL)
_LOGIN = frozenset({"-", "-l", "--login"})

Text = Callable[[str], str | None]
"""The text of a file; None where it can't be read."""


@dataclass(frozen=True)
class Changes:
    """What becomes of variables on the way to vLLM.

    Attributes:
        assigned: those that are set; None for what is not known.
        handed: those that come through a program which keeps the others.
        keeper: that program; empty where there is none.
        unset: those that are taken away.
        causes: what may set any other one.
        doubted: whether none that was set before comes through for certain.
    """

    assigned: Mapping[str, str | None] = field(default_factory=dict)
    handed: frozenset[str] = frozenset()
    keeper: str = ""
    unset: frozenset[str] = frozenset()
    causes: tuple[str, ...] = ()
    doubted: bool = False


def changes(
    front: Sequence[str],
    names: Sequence[str],
    odd: Collection[int] = (),
    text: Text = lambda _: None,
    *,
    elsewhere: bool = False,
) -> Changes:
    """What the words in front of vLLM do to variables.

    Args:
        front: those words.
        names: the same without the folders of programs.
        odd: places of those that the shell still puts together.
        text: the files that they name.
        elsewhere: whether vLLM starts in a container or on another machine.
    """
    assigned: dict[str, str | None] = {}
    handed: set[str] = set()
    causes: list[str] = []
    keeper, listed = _keeper(front, names)
    given = [
        *((text, place in odd) for place, text in _given(front, names, elsewhere=elsewhere)),
        *((text, bool({"$", "`"} & set(text.partition("=")[2]))) for text in listed),
    ]
    for one, computed in given:
        name, equals, value = one.partition("=")
        if equals:
            assigned[name] = None if computed else value
        else:
            handed.add(name)
    for name in _files(front, names):
        found = text(name)
        if found is None:
            causes.append(f"{name} sets variables, and can't be read here")
        else:
            _take(found, assigned, handed)
    causes += _unknown(front, names, odd)
    unset = _unset(front) if "env" in names else frozenset()
    doubted = "tmux" in names
    if doubted:
        causes.append("a tmux server that runs already hands on the variables it was started with")
    return Changes(assigned, frozenset(handed), keeper, unset, tuple(causes), doubted)


def _given(
    front: Sequence[str], names: Sequence[str], *, elsewhere: bool
) -> Iterator[tuple[int, str]]:
    """Places and texts of what is set one by one, and of names that are handed on."""
    options: frozenset[str] = frozenset()
    setter = not elsewhere
    taken = False
    for place, (word, name) in enumerate(zip(front, names, strict=True)):
        if taken:
            yield place, word
            taken = False
        elif word in options:
            taken = True
        elif word.startswith(tuple(f"{one}=" for one in options if one[:2] == "--")):
            yield place, word.partition("=")[2]
        elif any(
            word.startswith(one) and ASSIGNMENT.match(word[2:]) for one in options if len(one) == 2
        ):
            yield place, word[2:]
        elif ASSIGNMENT.match(word) and setter:
            yield place, word
        elif name in _SETS:
            options = _SETS[name]
        elif name == "env":
            options, setter = frozenset(), True


def _keeper(front: Sequence[str], names: Sequence[str]) -> tuple[str, list[str]]:
    """The program that keeps variables from vLLM, and the list of those that it hands on."""
    words = set(front)
    lists = {found[1]: found[2].split(",") for word in front if (found := _LISTS.fullmatch(word))}
    for option, following in itertools.pairwise(front):
        if option in ("-w", "--whitelist-environment") and {"su", "runuser"} & set(names):
            lists["--whitelist-environment"] = following.split(",")
        elif option == "--export" and "srun" in names:
            lists["--export"] = following.split(",")
    if "env" in names and {"-i", "-", "--ignore-environment"} & words:
        return "env", []
    if names[:1] == ["exec"] and any(re.match(r"-[a-z]*c", word) for word in front[1:2]):
        return "exec", []
    keeps = any(re.match(r"-[A-Za-z]*E", word) or word == "--preserve-env" for word in front)
    if "sudo" in names and not keeps:
        return "sudo", lists.get("--preserve-env", [])
    login = next((name for name in names if name in ("su", "runuser")), "")
    if login and _LOGIN & words:
        return login, lists.get("--whitelist-environment", [])
    if "srun" in names and "--export" in lists:
        listed = [one for one in lists["--export"] if one not in ("ALL", "NONE", "NIL", "")]
        return ("" if "ALL" in lists["--export"] else "srun"), listed
    return ("systemd-run" if "systemd-run" in names else ""), []


def _files(front: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    if not {*_CONTAINERS, "apptainer", "singularity"} & set(names):
        return
    for place, word in enumerate(front):
        if word == "--env-file":
            yield from front[place + 1 : place + 2]
        elif word.startswith("--env-file="):
            yield word.partition("=")[2]


def _take(text: str, assigned: dict[str, str | None], handed: set[str]) -> None:
    """The lines of a container's file, of which quotes are part of the value."""
    for line in text.lstrip("\ufeff").splitlines():
        name, equals, value = line.lstrip().partition("=")
        if not name or name.startswith("#"):
            continue
        if equals:
            # An option of the command stands above the file.
            assigned.setdefault(name, value)
        else:
            handed.add(name.strip())


def _unknown(front: Sequence[str], names: Sequence[str], odd: Collection[int]) -> Iterator[str]:
    """What may be a variable that is set, among words that are not known."""
    usual, by = values(front, names), ""
    for place, (word, name) in enumerate(zip(front, names, strict=True)):
        if name == "env" or name in _SETS:
            by = name
        if place not in odd or not by or ASSIGNMENT.match(word) or word[:1] not in "$`":
            continue
        before = front[place - 1]
        container = by in _CONTAINERS
        # What stands last is the image.
        other = place in usual or (container and (before in _OTHERS or place == len(front) - 1))
        if before in _SETS.get(by, ()) or before == "--env-file" or not other:
            yield f"{by} is given words that the shell puts together"


def _unset(front: Sequence[str]) -> frozenset[str]:
    """The variables that ``env`` takes away."""
    found: list[str] = []
    for place, word in enumerate(front):
        if word in ("-u", "--unset"):
            found += front[place + 1 : place + 2]
        elif word.startswith("--unset="):
            found.append(word.partition("=")[2])
        elif word.startswith("-u"):
            found.append(word[2:])
    return frozenset(found)
