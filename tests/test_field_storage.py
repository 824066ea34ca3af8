"""Faults that people met with GDS storage, each with what it means, by the real probes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import kvpatch
from kvpatch import stack_probe, storage_probe
from kvpatch.diagnosis import Check, State
from kvpatch.host_checks import library_check
from kvpatch.probe import Answer, probe
from kvpatch.storage_checks import storage_checks

TABLE = """\
22 1 0:20 / / rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b
24 22 0:21 / {there}/memory rw - tmpfs tmpfs rw,size=1g
25 22 259:1 / {there}/nvme rw,noatime - xfs /dev/nvme0n1p1 rw
26 22 0:61 / {there}/tcp rw - nfs4 server:/a rw,hard,proto=tcp,rsize=65536
27 22 0:62 / {there}/rdma rw - nfs4 server:/a rw,hard,proto=rdma,rsize=65536,wsize=65536
"""
SMALL_MIB = 1


def seen(folder: Path, table: str, buffer_mib: int = SMALL_MIB) -> dict[str, Check]:
    """The rows of a folder of this disk, as a mount table of another host has it."""
    mounts = next(one for one in folder.parents if one.is_dir()) / "mountinfo"
    mounts.write_text(table)
    answer = probe("storage_probe", [str(folder), str(mounts), "write"], limit=20.0)
    return {row.name: row for row in storage_checks(answer, buffer_mib, "0.5.6")}


@pytest.mark.parametrize(
    ("name", "state", "told", "todo"),
    [
        ("plain", State.FAIL, "a container's own layer, which has no GDS", "into the container"),
        ("memory", State.FAIL, "that is memory, gone at a restart", "on storage"),
        ("tcp", State.WARN, "proto=tcp: cuFile has only its compat mode", "proto=rdma"),
        ("rdma", State.OK, "by RDMA, hard", ""),
        ("nvme", State.OK, "xfs (/dev/nvme0n1p1)", ""),
    ],
)
def test_30_overlay_tmpfs_and_nfs_over_tcp_are_told_apart(
    tmp_path: Path, name: str, state: State, told: str, todo: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    row = seen(folder, TABLE.format(there=tmp_path))["gds mount"]
    assert row.state is state
    assert told in row.reason
    assert todo in row.todo


def test_30_a_folder_that_is_not_mounted_is_told_before_lmcache_makes_it(tmp_path: Path) -> None:
    row = seen(tmp_path / "nvme", TABLE.format(there=tmp_path / "elsewhere"))["gds mount"]
    assert row.state is State.FAIL
    assert "is not there: LMCache would make it on overlay at /" in row.reason
    assert not (tmp_path / "nvme").exists()


def test_30_memory_of_this_very_host_is_told() -> None:
    shared = Path("/dev/shm")
    mount = storage_probe.mount_of(str(shared), Path("/proc/self/mountinfo").read_text())
    if mount is None or mount["type"] != "tmpfs":
        pytest.skip("this host has no tmpfs at /dev/shm")
    answer = probe("storage_probe", [str(shared), "/proc/self/mountinfo", "look"], limit=20.0)
    assert storage_checks(answer, 1, "0.5.6")[0].state is State.FAIL


def test_31_a_library_without_its_plain_name_is_said_with_the_fix(tmp_path: Path) -> None:
    folder = tmp_path / "nvidia" / "cufile" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcufile.so.0").write_bytes(b"")
    argv = [sys.executable, "-I", stack_probe.__file__, "cufile", str(tmp_path)]
    facts: dict[str, Any] = json.loads(
        subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    )
    if facts["loads"]["libcufile.so"] == "ok":
        pytest.skip("this host has libcufile.so")
    row = library_check(Answer(facts))
    assert row.state is State.FAIL
    assert "libcufile.so is missing although there is" in row.reason
    assert "LMCache needs it even with use_gds: false" in row.reason
    assert "make a link libcufile.so to it" in row.todo


def test_32_free_space_is_measured_against_the_longest_prompts(tmp_path: Path) -> None:
    folder = tmp_path / "nvme"
    folder.mkdir()
    table = TABLE.format(there=tmp_path)
    free = storage_probe.look(str(folder), table, write=False)["free_bytes"]
    least = free // 10 // 2**20
    assert seen(folder, table, SMALL_MIB)["gds space"].state is State.OK
    full = seen(folder, table, int(least * 2))["gds space"]
    assert full.state is State.WARN
    assert "no quota" in full.todo


@pytest.mark.releases
@pytest.mark.parametrize("profile", ["gds", "gds-blend"])
def test_32_a_profile_says_that_nothing_is_ever_deleted(profile: str) -> None:
    ended = kvpatch("profile", profile, "--lmcache", "0.5.6", "--vllm", "0.32.0")
    assert ended.code == 0
    told = "LMCache deletes nothing from GDS storage and has no quota"
    said = " ".join(line.removeprefix("#").strip() for line in ended.out.splitlines())
    assert told in said
    assert told in ended.err
