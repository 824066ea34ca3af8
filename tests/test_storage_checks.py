"""Each kind of storage is told apart, with what it means."""

from __future__ import annotations

from typing import Any

import pytest
from kvpatch.diagnosis import State
from kvpatch.probe import Answer
from kvpatch.storage_checks import storage_checks

FINE = dict.fromkeys(("write", "fsync", "O_DIRECT", "shared mmap", "rename"), "ok")


def facts(kind: str = "xfs", point: str = "/mnt/x", *options: str, **more: Any) -> Answer:
    found = {
        "folder": "/mnt/x/c",
        "real": "/mnt/x/c",
        "there": True,
        "mount": {"type": kind, "point": point, "source": "s", "options": list(options)},
        "free_bytes": 10**13,
        "free_inodes": 10**7,
        "read_only": False,
        "steps": FINE,
        "entries": [],
    }
    return Answer({**found, **more})


def states(answer: Answer) -> dict[str, tuple[State, str]]:
    return {one.name: (one.state, one.reason) for one in storage_checks(answer, 4096, "0.5.6")}


@pytest.mark.parametrize(
    ("kind", "point", "options", "state", "told"),
    [
        ("xfs", "/mnt/x", (), State.OK, "xfs"),
        ("ext4", "/mnt/x", (), State.OK, "ext4"),
        ("lustre", "/mnt/x", (), State.OK, "lustre"),
        ("ext4", "/", (), State.WARN, "root file system"),
        ("overlay", "/", (), State.FAIL, "container's own layer"),
        ("tmpfs", "/dev/shm", (), State.FAIL, "memory"),
        ("btrfs", "/mnt/x", (), State.WARN, "not one that GDS"),
        ("nfs4", "/mnt/x", ("proto=rdma", "hard"), State.OK, "RDMA"),
        ("nfs", "/mnt/x", ("proto=tcp", "hard"), State.WARN, "compat mode"),
        ("nfs", "/mnt/x", ("hard",), State.WARN, "proto=tcp"),
        ("nfs", "/mnt/x", ("proto=rdma", "soft"), State.WARN, "not mounted hard"),
        ("nfs", "/mnt/x", ("proto=rdma", "hard", "rsize=1048576"), State.WARN, "rsize=1048576"),
        ("nfs", "/mnt/x", ("proto=rdma", "hard", "wsize=65536"), State.OK, "RDMA"),
    ],
)
def test_every_kind_of_mount_is_told_apart(
    kind: str, point: str, options: tuple[str, ...], state: State, told: str
) -> None:
    found, reason = states(facts(kind, point, *options))["gds mount"]
    assert found is state
    assert told in reason


def test_a_folder_that_is_missing_or_hangs_is_a_failure_by_itself() -> None:
    missing = states(facts("ext4", "/", there=False))
    assert list(missing) == ["gds mount"]
    assert missing["gds mount"][0] is State.FAIL
    assert "LMCache would make it on ext4 at /" in missing["gds mount"][1]
    hung = states(Answer(None, "no answer within 10 s", hung=True))
    assert hung["gds mount"][0] is State.FAIL
    assert states(Answer(None, "odd"))["gds mount"][0] is State.NOT_CHECKED
    assert states(facts(mount=None))["gds mount"][0] is State.NOT_CHECKED


@pytest.mark.parametrize(
    ("kind", "state"), [("xfs", State.WARN), ("nfs4", State.WARN), ("tmpfs", State.FAIL)]
)
def test_a_folder_that_is_missing_on_mounted_storage_is_to_be_made(kind: str, state: State) -> None:
    (found,) = storage_checks(facts(kind, there=False), 4096, "0.5.6")
    assert found.state is state
    assert (found.todo == "make the folder before vLLM starts") is (state is State.WARN)


@pytest.mark.parametrize(
    ("more", "name", "state", "told"),
    [
        ({"steps": {"write": "Permission denied"}}, "gds access", State.FAIL, "Permission denied"),
        ({"steps": {**FINE, "O_DIRECT": "Invalid argument"}}, "gds access", State.FAIL, "O_DIRECT"),
        ({"steps": {}}, "gds access", State.NOT_CHECKED, "nothing was written"),
        ({"free_bytes": 10**9}, "gds space", State.WARN, "GiB that 10 of the"),
        ({"free_inodes": 7}, "gds space", State.WARN, "7 inodes"),
        ({"free_inodes": None}, "gds space", State.OK, "no quota"),
        ({"read_only": True}, "gds space", State.FAIL, "read-only"),
        ({"entries": ["notes.txt"]}, "gds keys", State.WARN, "other things"),
        ({"entries": ["0", "a7"]}, "gds keys", State.WARN, "already"),
        ({"real": "/mnt/x/m-tp1-lmcache0.5.4"}, "gds keys", State.FAIL, "LMCache 0.5.4"),
        ({"real": "/mnt/x/m-tp1-lmcache0.5.6"}, "gds keys", State.OK, "empty"),
    ],
)
def test_what_else_is_wrong_with_a_folder_is_told(
    more: dict[str, Any], name: str, state: State, told: str
) -> None:
    found, reason = states(facts(**more))[name]
    assert found is state
    assert told in reason
