"""The mount tables of hosts and containers, and what a folder really takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kvpatch import storage_probe
from kvpatch.storage_probe import look, mount_of, mounts

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
23 22 0:5 / /proc rw,nosuid - proc proc rw
24 22 0:20 / /dev/shm rw - tmpfs tmpfs rw,size=1g
25 22 259:1 / /mnt/nvme rw,noatime shared:2 - xfs /dev/nvme0n1p1 rw,attr2
26 25 0:60 / /mnt/nvme/over rw - overlay overlay rw,lowerdir=/a,upperdir=/b
27 22 0:61 / /mnt/with\\040space rw - nfs4 server:/export\\040x rw,hard,proto=rdma,rsize=65536
28 22 0:62 / /mnt/top rw - nfs server:/a rw,soft,proto=tcp
29 28 0:63 / /mnt/top rw - xfs /dev/sdb rw
broken line
30 22 0:64 / /mnt/none rw
"""


@pytest.mark.parametrize(
    ("path", "point", "kind"),
    [
        ("/", "/", "ext4"),
        ("/mnt", "/", "ext4"),
        ("/mnt/nvme", "/mnt/nvme", "xfs"),
        ("/mnt/nvme/cache/a", "/mnt/nvme", "xfs"),
        # By component: a longer name beside it is another folder.
        ("/mnt/nvme2/cache", "/", "ext4"),
        ("/mnt/nvme/over/x", "/mnt/nvme/over", "overlay"),
        ("/mnt/with space/x", "/mnt/with space", "nfs4"),
        ("/mnt/top/x", "/mnt/top", "xfs"),
        ("/dev/shm/x", "/dev/shm", "tmpfs"),
        ("/mnt/none", "/", "ext4"),
    ],
)
def test_a_path_lies_on_the_nearest_mount_above_it(path: str, point: str, kind: str) -> None:
    found = mount_of(path, TABLE)
    assert found is not None
    assert (found["point"], found["type"]) == (point, kind)


def test_options_of_mount_and_file_system_are_told_together() -> None:
    found = mounts(TABLE)["/mnt/with space"]
    assert found["source"] == "server:/export x"
    assert {"hard", "proto=rdma", "rsize=65536", "rw"} <= set(found["options"])


@pytest.mark.parametrize("table", ["", "\n\n", "garbage", "1 2 3 - x"])
def test_a_table_that_tells_nothing_gives_no_mount(table: str) -> None:
    assert mount_of("/mnt/x", table) is None


def test_a_real_folder_takes_all_of_it_and_keeps_nothing(tmp_path: Path) -> None:
    facts = look(str(tmp_path), TABLE, write=True)
    assert facts["there"]
    assert facts["steps"]["write"] == facts["steps"]["rename"] == facts["steps"]["fsync"] == "ok"
    assert set(facts["steps"]) == {"write", "fsync", "O_DIRECT", "shared mmap", "rename"}
    assert facts["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed_to_the_mount_of_its_target(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    link = tmp_path / "link"
    link.symlink_to(target)
    assert look(str(link), TABLE, write=False)["real"] == str(target.resolve())


def test_a_folder_that_is_not_there_is_told_with_the_mount_it_would_be_made_on(
    tmp_path: Path,
) -> None:
    facts = look(str(tmp_path / "none"), TABLE, write=True)
    assert not facts["there"]
    assert facts["mount"]["point"] == "/"
    assert "steps" not in facts


def test_a_folder_that_cannot_be_written_says_why() -> None:
    facts = look("/proc/self", TABLE, write=True)
    assert facts["steps"]["write"] != "ok"


def test_it_runs_alone_as_a_script_on_this_host(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", storage_probe.__file__, str(tmp_path), "/proc/self/mountinfo"]
    ended = subprocess.run([*argv, "write"], capture_output=True, text=True, check=True)
    facts = json.loads(ended.stdout)
    assert facts["mount"]["type"]
    assert facts["steps"]["write"] == "ok"
