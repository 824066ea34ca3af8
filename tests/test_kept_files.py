"""Files of the cache: written whole, read without waiting, and what is said where neither goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kvpatch.kept_files import kept_file, write_atomically
from kvpatch.outcome import ExitCode, KvpatchError


def test_what_is_written_is_read_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    for content in (b"one", b"other"):
        write_atomically(tmp_path / "deep" / "file.json", content)
        assert kept_file(tmp_path / "deep" / "file.json") == content
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file.json"]


def test_a_folder_that_cant_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvpatchError, match="can't be written") as caught:
        write_atomically(tmp_path / "file" / "x.json", b"")
    assert (caught.value.code, caught.value.exit_code) == ("no-cache", ExitCode.ENVIRONMENT)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path)])
def test_what_is_no_file_in_the_place_of_one_keeps_nobody_waiting(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "list.json")
    with pytest.raises(OSError, match=r"list\.json"):
        kept_file(tmp_path / "list.json")
