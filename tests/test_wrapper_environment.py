"""Variables on their way through the programs in front of vLLM."""

from __future__ import annotations

import pytest
from kvpatch.wrapper_environment import Changes, changes


def told(command: str, *, elsewhere: bool = False) -> Changes:
    words = command.split()
    odd = [place for place, one in enumerate(words) if "$" in one]
    files = {"/d.env": "# x\nA=1\nQ='q'\nE\n"}
    return changes(words, words, odd, files.get, elsewhere=elsewhere)


@pytest.mark.parametrize(
    ("command", "assigned", "handed"),
    [
        ("docker run -e A=1 --env B=2 --env=C=3 -eD=4 -e E -v F=6 i", "A=1 B=2 C=3 D=4", "E"),
        ("docker run --env-file /d.env -e A=9 i", "A=9 Q='q'", "E"),
        ("docker run --env-file=/d.env i", "A=1 Q='q'", "E"),
        ("docker exec c env A=1", "A=1", ""),
        ("systemd-run --setenv=A=1 --setenv B=2 -E C=3 -E E", "A=1 B=2 C=3", "E"),
        ("srun --export=ALL,A=1", "A=1", ""),
        ("srun --export=A=1,E", "A=1", "E"),
        ("su - -w E u", "", "E"),
        ("sudo --preserve-env=E,F", "", "E F"),
        ("mpirun -np 2 -x A=1 -x E", "A=1", "E"),
        ("tmux new -e A=1", "A=1", ""),
        ("env A=1 nice B=2", "A=1 B=2", ""),
    ],
)
def test_what_is_set_and_handed_on(command: str, assigned: str, handed: str) -> None:
    found = told(command, elsewhere=command.startswith("docker"))
    assert found.assigned == dict(one.split("=", 1) for one in assigned.split())
    assert found.handed == set(handed.split())
    assert found.causes == () or found.doubted


@pytest.mark.parametrize(
    ("command", "keeper"),
    [
        ("su - u", "su"),
        ("su -l u", "su"),
        ("su u", ""),
        ("runuser --login u", "runuser"),
        ("sudo", "sudo"),
        ("sudo -E", ""),
        ("sudo --preserve-env", ""),
        ("sudo --preserve-env=E", "sudo"),
        ("srun --export=NONE", "srun"),
        ("srun --export=ALL,A=1", ""),
        ("srun -n 1", ""),
        ("env -i", "env"),
        ("systemd-run", "systemd-run"),
    ],
)
def test_what_keeps_all_others(command: str, keeper: str) -> None:
    assert told(command).keeper == keeper


@pytest.mark.parametrize(
    ("command", "unknown"),
    [
        ("env $VARS", True),
        ("env A=$X", False),
        ("env A=1 nice -n $N", False),
        ("docker run $OPTS image", True),
        ("docker run --rm $IMAGE", False),
        ("docker run -p $PORT:80 -v $X:/y image", False),
        ("docker run -e $X image", True),
        ("docker run --env-file /none image", True),
        ("docker run --env-file $F image", True),
        ("mpirun -np $N", False),
    ],
)
def test_what_may_set_any_variable(command: str, unknown: bool) -> None:
    assert bool(told(command, elsewhere=command.startswith("docker")).causes) is unknown


def test_a_value_that_is_put_together_is_not_known() -> None:
    assert told("env A=$X B=1").assigned == {"A": None, "B": "1"}


def test_a_server_of_tmux_may_hand_on_others() -> None:
    assert told("tmux new -d").doubted
    assert not told("nohup").doubted
