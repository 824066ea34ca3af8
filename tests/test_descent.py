"""The way down into folders: by no link and into no mount."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from kvpatch.descent import RANDOM, entered, files, folders, opened


def test_a_folder_is_entered_and_its_files_and_folders_are_told_apart(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    (inner / "ab").mkdir(parents=True)
    (inner / "abc").mkdir()
    (inner / "file").touch()
    (inner / "link").symlink_to(inner / "file")
    (inner / "cd").symlink_to(inner / "ab")
    with opened(tmp_path) as top, entered("inner", top) as place:
        assert files(place) == ["file"]
        assert folders(place, "[a-d]{2}") == ["ab"]


@pytest.mark.parametrize("name", ["link", "file", "none"])
def test_nothing_else_is_entered(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    (tmp_path / "file").touch()
    with opened(tmp_path) as top, pytest.raises(OSError, match=r"Errno"), entered(name, top):
        pass


def test_what_is_mounted_is_not_entered() -> None:
    # That of processes is mounted wherever there is Linux.
    with (
        opened(Path("/")) as top,
        pytest.raises(OSError, match="proc") as caught,
        entered("proc", top),
    ):
        pass
    assert caught.value.errno == errno.EXDEV


def test_the_names_that_tempfile_makes_have_the_shape(tmp_path: Path) -> None:
    for _ in range(20):
        tempfile.mkdtemp(prefix="x", dir=tmp_path)
    with opened(tmp_path) as top:
        assert len(folders(top, f"x{RANDOM}")) == 20
