"""Files beside a report: seen to before the work, and whole or not at all after it."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kvpatch import outputs
from kvpatch.outcome import ExitCode, KvpatchError
from waiting import soon


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What a full disk does to whoever writes: the write fails after so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def refused(path: Path) -> str:
    with pytest.raises(KvpatchError) as caught:
        outputs.ready(path)
    assert (caught.value.code, caught.value.exit_code) == ("not-written", ExitCode.ENVIRONMENT)
    return caught.value.message


def test_what_can_not_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "away").symlink_to("nowhere/page.html")
    assert refused(tmp_path / "no" / "x.html").endswith("its folder is not there")
    assert refused(tmp_path / "file" / "x.html").endswith("its folder is not there")
    assert refused(tmp_path / "away").endswith("its folder is not there")
    assert refused(tmp_path).endswith("it is a folder")
    assert "can't be written" in refused(tmp_path / "round")
    assert refused(tmp_path / ("x" * 300)).endswith("File name too long")


def test_so_is_what_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    # Root may write everywhere, but for a read-only file system.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert refused(tmp_path / "file").endswith("the file that is there may not be written")
    assert refused(tmp_path / "new").endswith("its folder may not be written")


def test_looking_changes_nothing(tmp_path: Path) -> None:
    outputs.ready(None)
    outputs.ready(tmp_path / "new.html")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").write_text("old")
    outputs.ready(tmp_path / "old")
    assert (tmp_path / "old").read_text() == "old"


def test_a_file_is_put_there_with_the_mode_of_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o640)
    (tmp_path / "link").symlink_to("old")
    (tmp_path / "plain").write_text("")
    outputs.put(tmp_path / "link", "näu")
    outputs.put(tmp_path / "new", "new")
    assert (tmp_path / "old").read_text("utf-8") == "näu"
    assert (tmp_path / "link").is_symlink()
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("old", "new", "plain")]
    assert modes == [0o640, modes[2], modes[2]]
    assert {one.name for one in tmp_path.iterdir()} == {"old", "new", "link", "plain"}


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("old", "new"):
        with files_of_at_most(1000), pytest.raises(KvpatchError) as caught:
            outputs.put(tmp_path / name, "x" * 5000)
        assert (caught.value.code, caught.value.exit_code) == ("not-written", ExitCode.ENVIRONMENT)
    assert (tmp_path / "old").read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["old"]


def test_a_device_is_written_as_it_stands(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    outputs.ready(Path("/dev/full"))
    with pytest.raises(KvpatchError, match="No space left on device"):
        outputs.put(Path("/dev/full"), "text")
    ends = os.pipe()
    outputs.ready(Path(f"/proc/self/fd/{ends[1]}"))
    outputs.put(Path(f"/proc/self/fd/{ends[1]}"), "text")
    assert os.read(ends[0], 10) == b"text"
    for end in ends:
        os.close(end)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    outputs.put(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    with soon(), pytest.raises(KvpatchError, match="a pipe that nobody reads"):
        outputs.put(tmp_path / "pipe", "text")
    outputs.remove(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_file_that_is_a_mount_of_its_own_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounted").write_text("old")
    before = (tmp_path / "mounted").stat().st_ino

    def busy(*_: object) -> Path:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", busy)
    outputs.put(tmp_path / "mounted", "new")
    assert (tmp_path / "mounted").read_text() == "new"
    assert (tmp_path / "mounted").stat().st_ino == before
    assert [one.name for one in tmp_path.iterdir()] == ["mounted"]


def test_an_earlier_file_is_removed(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for _ in range(2):
        outputs.remove(tmp_path / "old")
        assert not (tmp_path / "old").exists()


def test_a_new_folder_stays_where_it_was_used_and_goes_where_it_was_not(tmp_path: Path) -> None:
    with outputs.new_folder(tmp_path / "a" / "b") as folder:
        assert list(folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with outputs.new_folder(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()
    with outputs.new_folder(tmp_path / "a" / "b") as folder:
        (folder / "result").write_text("kept")
    assert (tmp_path / "a" / "b" / "result").read_text() == "kept"


def test_a_folder_that_is_in_use_or_can_not_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, code, ends in (
        (tmp_path, "keep-not-empty", ExitCode.USAGE),
        (tmp_path / "file", "keep-not-empty", ExitCode.USAGE),
        (tmp_path / "file" / "below", "not-written", ExitCode.ENVIRONMENT),
        (Path("/proc/kvpatch/kept"), "not-written", ExitCode.ENVIRONMENT),
    ):
        with pytest.raises(KvpatchError) as caught, outputs.new_folder(path):
            pass
        assert (caught.value.code, caught.value.exit_code) == (code, ends)
        assert "--keep" in caught.value.hint
