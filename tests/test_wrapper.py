"""Programs in front of vLLM."""

from __future__ import annotations

import shlex

import pytest
from kvpatch.script_path import UNKNOWN
from kvpatch.wrapper import start_of


@pytest.mark.parametrize(
    ("command", "at"),
    [
        ("vllm serve m", 0),
        ("nohup /opt/bin/vllm serve m", 1),
        ("python -m vllm.entrypoints.openai.api_server", 2),
        ("timeout 5 uv run vllm serve m", 4),
        ("echo vllm serve m", None),
        ("sudo pgrep -f vllm serve", None),
        ("vllm serve --help", None),
        ("vllm serve m --help=all", None),
        ("vllm serve m -h", None),
        ("vllm bench serve", None),
        ("trap 'vllm serve m' EXIT", None),
        ("git commit -m 'vllm serve m'", None),
    ],
)
def test_where_vllm_stands(command: str, at: int | None) -> None:
    found = start_of(shlex.split(command))
    assert (None if found is None else found.at) == at
    assert (found is None) is (at is None)


@pytest.mark.parametrize(
    ("command", "text", "elsewhere"),
    [
        ("bash -lc 'vllm serve m'", "vllm serve m", ""),
        ("bash -e -c 'vllm serve m' x", "vllm serve m", ""),
        ("su - x -c 'vllm serve m'", "vllm serve m", ""),
        ("tmux new -d 'vllm serve m'", "vllm serve m", ""),
        ("ssh h 'vllm serve m'", "vllm serve m", "ssh"),
        ("kubectl exec p -- sh -c 'vllm serve m'", "vllm serve m", "kubectl"),
        ("flock -n /tmp/lock -c 'vllm serve m'", "vllm serve m", ""),
        ("srun --container-image=i bash -c 'vllm serve m'", "vllm serve m", "srun"),
    ],
)
def test_a_shells_text_is_found(command: str, text: str, elsewhere: str) -> None:
    found = start_of(shlex.split(command))
    assert found is not None
    assert (found.at, found.text, found.elsewhere) == (None, text, elsewhere)
    assert start_of(shlex.split(command), texts=False) is None


@pytest.mark.parametrize(
    ("front", "folder"),
    [
        ("env -C sub", "sub"),
        ("env --chdir=sub", "sub"),
        ("env -Csub A=1", "sub"),
        ("sudo -D /srv", "/srv"),
        ("uv run --directory sub", "sub"),
        ("systemd-run --working-directory=/srv", UNKNOWN + "/srv"),
        ("systemd-run --user", UNKNOWN),
        ("sudo -i", UNKNOWN),
        ("env --chdir=$X", UNKNOWN),
        ("nohup", None),
        ("docker compose exec -T x", None),
    ],
)
def test_the_folder_in_which_it_starts(front: str, folder: str | None) -> None:
    found = start_of([*front.split(), "vllm", "serve"])
    assert found is not None
    assert found.folder == folder


def test_variables_reach_a_container_where_an_option_sets_them() -> None:
    here, there = (
        start_of(["env", "A=1", "vllm", "serve"]),
        start_of(["docker", "-e", "A=1", "vllm", "serve"]),
    )
    assert here is not None
    assert there is not None
    assert (here.assigned, there.assigned) == ({"A": "1"}, {"A": "1"})
    bare = start_of(["docker", "run", "-v", "A=1", "image", "vllm", "serve"])
    assert bare is not None
    assert bare.assigned == {}


@pytest.mark.parametrize(
    ("command", "odd"),
    [
        ("taskset -c $CPUS vllm serve m", None),
        ("numactl --cpunodebind=$NODE -m $NODE vllm serve m", None),
        ("timeout -k $K $T vllm serve m", None),
        ("env CUDA_VISIBLE_DEVICES=$GPU PATH=/opt/bin:$PATH vllm serve m", None),
        ("sudo -u $USER nice -n $N vllm serve m", None),
        ("$RUN vllm serve m", 0),
        ("timeout $T $RUN vllm serve m", 2),
        ("own $X vllm serve m", 1),
        ("vllm serve $M", None),
    ],
)
def test_a_word_that_is_put_together_may_be_a_program(command: str, odd: int | None) -> None:
    words = command.split()
    found = start_of(words, odd=[place for place, one in enumerate(words) if "$" in one])
    assert found is not None
    assert found.odd == odd


@pytest.mark.parametrize(
    ("command", "script", "by_shell"),
    [
        ("./run.sh --port 1", "./run.sh", False),
        ("exec /srv/run", "/srv/run", False),
        ("bash run.sh", "run.sh", True),
        ("bash -e -o pipefail run.sh", "run.sh", True),
        ("/usr/bin/env A=1 bash run.sh", "run.sh", True),
        ("sudo -E -u vllm ./run.sh", "./run.sh", False),
        ("nohup ./run.sh", "./run.sh", False),
        ("run.sh", None, False),
        ("bash", None, False),
        ("bash -s x", None, False),
        ("bash -c 'echo hello' x", None, False),
        ("chmod +x ./run.sh", None, False),
        ("cat ./run.sh", None, False),
        ("docker run image ./run.sh", None, False),
    ],
)
def test_the_script_that_a_command_starts(command: str, script: str | None, by_shell: bool) -> None:
    words = shlex.split(command)
    found = start_of(words)
    if script is None:
        assert found is None
    else:
        assert found is not None
        assert found.script is not None
        assert (words[found.script], found.by_shell, found.at) == (script, by_shell, None)
    assert start_of(words, texts=False) is None


def test_variables_and_folders_behind_a_script_are_its_own() -> None:
    found = start_of(shlex.split("env -C /srv A=1 ./run.sh B=2 -C x docker"))
    assert found is not None
    assert (found.assigned, found.folder, found.elsewhere) == ({"A": "1"}, "/srv", "")


def test_what_a_shell_is_given_is_no_variable_in_front() -> None:
    found = start_of(["bash", "-c", "A=1 vllm serve m"])
    assert found is not None
    assert (found.text, found.assigned) == ("A=1 vllm serve m", {})
