"""Links followed below another root."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from kvpatch.process_path import changed_since, found, is_newer, shown, started


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "root"
    (inside / "mnt/deep").mkdir(parents=True)
    (inside / "mnt/real.yaml").write_text("a: 1\n")
    return inside


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("mnt/cur.yaml", "/mnt/real.yaml"),
        ("mnt/cur.yaml", "real.yaml"),
        ("mnt/cur.yaml", "../../../../mnt/./real.yaml"),
        ("mnt/deep/cur.yaml", "../real.yaml"),
    ],
)
def test_links_stay_inside_the_root(root: Path, link: str, target: str) -> None:
    (root / link).symlink_to(target)
    assert found(f"/{link}", str(root)).path == str(root / "mnt/real.yaml")


def test_a_link_to_a_folder_and_one_to_a_link_are_followed(root: Path) -> None:
    (root / "data").symlink_to("/mnt")
    (root / "mnt/cur.yaml").symlink_to("/data/real.yaml")
    assert found("/data/cur.yaml", str(root)).path == str(root / "mnt/real.yaml")


def test_a_relative_name_begins_at_the_folder(root: Path) -> None:
    (root.parent / "cwd").symlink_to(root / "mnt")
    at = found("real.yaml", str(root), str(root.parent / "cwd"))
    assert Path(at.path).read_text() == "a: 1\n"
    above = found("../mnt/real.yaml", str(root), str(root.parent / "cwd"))
    assert Path(above.path).samefile(root / "mnt/real.yaml")
    assert shown("real.yaml", str(root.parent / "cwd")) == str(root / "mnt/real.yaml")
    assert shown("/a", "/gone") == "/a"
    assert shown("a", "/gone") == "/gone/a"


@pytest.mark.parametrize(
    ("name", "number"),
    [("/loop", errno.ELOOP), ("/gone", errno.ENOENT), ("/mnt/real.yaml/x", errno.ENOTDIR)],
)
def test_what_leads_nowhere_is_an_error(root: Path, name: str, number: int) -> None:
    (root / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        found(name, str(root))
    assert caught.value.errno == number


def test_a_link_that_is_newer_than_its_file_counts(root: Path) -> None:
    os.utime(root / "mnt/real.yaml", (1, 1))
    later = (root / "mnt/real.yaml").stat().st_ctime + 1000
    assert found("/mnt/real.yaml", str(root)).changed < later
    (root / "cur").symlink_to("/mnt/real.yaml")
    os.utime(root / "cur", (later, later), follow_symlinks=False)
    assert found("/cur", str(root)).changed == later


def test_a_file_that_was_put_there_with_an_old_time_is_new(root: Path) -> None:
    os.utime(root / "mnt/real.yaml", (1, 1))
    assert found("/mnt/real.yaml", str(root)).changed > 1000


def test_what_was_changed_after_the_start_of_a_process_is_told(root: Path) -> None:
    since = started(Path("/proc/self"))
    assert since is not None
    assert [is_newer(at, since) for at in (since - 9, since + 1, since + 3)] == [False, False, True]
    assert not is_newer(since, None)
    file = root / "mnt/real.yaml"
    os.utime(file, (since + 99, since + 99))
    assert changed_since(os.getpid(), str(file))
    # It is not there, or nobody knows when the process was started.
    assert not changed_since(os.getpid(), str(root / "gone"))
    assert not changed_since(7, str(file), root)
