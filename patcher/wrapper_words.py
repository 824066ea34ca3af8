"""Which words in front of a program belong to those that start it, and are no program."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


@dataclass(frozen=True)
class _Usage:
    """How a program is given another one.

    Attributes:
        takes: its options with a word behind.
        operands: how many words stand between its options and the other program.
    """

    takes: frozenset[str] = frozenset()
    operands: int = 0


def _usage(takes: str = "", operands: int = 0) -> _Usage:
    return _Usage(frozenset(takes.split()), operands)


_USAGES: Mapping[str, _Usage] = {
    "chrt": _usage("-T -P -D", 1),
    "command": _usage(),
    "builtin": _usage(),
    "env": _usage("-u --unset -C --chdir"),
    "exec": _usage("-a"),
    "flock": _usage("-w --timeout -E --conflict-exit-code", 1),
    "gdb": _usage("-ex -x"),
    "ionice": _usage("-c --class -n --classdata"),
    "mpirun": _usage("-n -np -c -H --host -hostfile --hostfile -x --bind-to --map-by"),
    "mpiexec": _usage("-n -np -c -H --host -hostfile --hostfile -x --bind-to --map-by"),
    "nice": _usage("-n --adjustment"),
    "nohup": _usage(),
    "nsys": _usage("-o -t -w -s -c"),
    "numactl": _usage(
        "-i --interleave -w --weighted-interleave -p --preferred -P --preferred-many -m --membind "
        "-N --cpunodebind -C --physcpubind -L --localalloc"
    ),
    "prlimit": _usage(),
    "setsid": _usage(),
    "srun": _usage(
        "-A -c -D -J -N -n -o -e -i -p -q -t -w -x --account --cpus-per-task --gres --gpus --nodes "
        "--ntasks --partition --time --export --job-name --nodelist --output --error --chdir"
    ),
    "stdbuf": _usage("-i -o -e"),
    "strace": _usage("-e -o -p"),
    "sudo": _usage("-u --user -g --group -D --chdir -h -p -C -T -U -R -r -t"),
    "systemd-run": _usage("-E --setenv -p --property -u --unit --slice --uid --gid -M -H"),
    "taskset": _usage("", 1),
    "time": _usage("-o -f --output --format"),
    "timeout": _usage("-k --kill-after -s --signal", 1),
    "xargs": _usage("-a -d -E -I -i -L -n -P -s"),
}


def values(front: Sequence[str], names: Sequence[str]) -> frozenset[int]:
    """Places of the options, their values, operands and assignments of known programs.

    Args:
        front: the words.
        names: the same without the folders of programs.
    """
    found: set[int] = set()
    usage: _Usage | None = None
    left, taken = 0, False
    for place, (word, name) in enumerate(zip(front, names, strict=True)):
        if taken or ASSIGNMENT.match(word) or (word[:1] == "-" and usage is not None):
            found.add(place)
            taken = not taken and usage is not None and word in usage.takes
        elif left:
            found.add(place)
            left -= 1
        else:
            usage = _USAGES.get(name)
            left = usage.operands if usage else 0
    return frozenset(found)
