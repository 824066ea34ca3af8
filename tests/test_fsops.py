from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvpatch.fsops import Disk, fresh_mtime, look, sha256
from kvpatch.outcome import ExitCode, KvpatchError

SECOND = 1_000_000_000


def test_the_hook_is_called_before_each_operation(tmp_path: Path) -> None:
    seen: list[str] = []
    disk = Disk(lambda op, _: seen.append(op))
    disk.write_new(tmp_path / "a", b"x" * 100_000, mode=0o600, mtime=SECOND)
    assert seen == ["create", "write", "write", "chmod", "utime", "fsync"]
    assert (tmp_path / "a").stat().st_mtime_ns == SECOND
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_file_that_is_there_is_never_written_into(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to("b")
    for name in ("a", "link"):
        with pytest.raises(FileExistsError):
            Disk().write_new(tmp_path / name, b"ours")
    assert (tmp_path / "a").read_bytes() == b"theirs"
    assert not (tmp_path / "b").exists()


def test_writing_takes_the_place_of_a_link_and_of_what_a_crash_left(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"theirs")
    (tmp_path / "a").symlink_to("target")
    (tmp_path / "a.new").write_bytes(b"half")
    Disk().write(tmp_path / "a", b"ours")
    assert (tmp_path / "a").read_bytes() == b"ours"
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "target"]


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_a_fresh_time_is_later_in_whole_seconds(now: int, old: int) -> None:
    fresh = fresh_mtime(now, old)
    assert fresh // SECOND > old // SECOND
    assert fresh == now or fresh - old <= SECOND


def test_a_folder_with_something_in_it_stays(tmp_path: Path) -> None:
    disk = Disk()
    disk.mkdir(tmp_path / "a" / "b")
    assert disk.rmdir(tmp_path / "a") is False
    assert disk.rmdir(tmp_path / "a" / "b") is True
    assert disk.rmdir(tmp_path / "nowhere") is False
    assert disk.discard(tmp_path / "nowhere") is False


def test_a_folder_that_cant_be_synced_is_no_failure_but_an_io_error_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(number: int) -> None:
        def fsync(_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    refuse(errno.EINVAL)
    Disk().fsync_dir(tmp_path)
    refuse(errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        Disk().fsync_dir(tmp_path)


def test_the_lock_excludes_others_until_closed_and_names_the_pid(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    lock = Disk().lock(path)
    with pytest.raises(KvpatchError) as caught:
        Disk().lock(path)
    assert caught.value.code == "locked"
    assert caught.value.exit_code == ExitCode.ENVIRONMENT
    assert str(os.getpid()) in caught.value.message
    lock.close()
    Disk().lock(path).close()


def test_a_lock_file_removed_by_the_run_before_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    removed: list[Path] = []

    def hook(op: str, where: Path) -> None:
        if op == "lock" and not removed:
            removed.append(where)
            path.parent.rmdir()

    lock = Disk(hook).lock(path)
    assert path.is_file()
    lock.close()


@pytest.mark.parametrize("mask", [0o777, 0o277, 0o077, 0o022])
def test_whoever_made_a_lock_can_take_it_again_whatever_the_umask(
    tmp_path: Path, mask: int
) -> None:
    path = tmp_path / "state" / "lock"
    before = os.umask(mask)
    try:
        Disk().lock(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    Disk().lock(path).close()


@pytest.mark.parametrize(("op", "at"), [("mkdir", 2), ("fsync", 2), ("fsync", 1), ("mkdir", 1)])
def test_a_folder_removed_by_the_run_before_while_it_is_made_is_made_anew(
    tmp_path: Path, op: str, at: int
) -> None:
    path = tmp_path / "home" / "state" / "lock"
    seen: list[str] = []
    gone: list[bool] = []

    def hook(now: str, where: Path) -> None:
        seen.append(now)
        if now == op and seen.count(op) == at and not gone:
            gone.append(True)
            for folder in (path.parent, path.parent.parent):
                if folder.is_dir():
                    folder.rmdir()

    lock = Disk(hook).lock(path)
    assert gone
    assert path.is_file()
    lock.close()


def test_a_folder_made_by_another_run_just_now_is_no_failure(tmp_path: Path) -> None:
    made: list[Path] = []

    def hook(op: str, where: Path) -> None:
        if op == "mkdir" and not made:
            made.append(where)
            where.mkdir()

    Disk(hook).mkdir(tmp_path / "state")
    assert made == [tmp_path / "state"]
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        Disk().mkdir(tmp_path / "file")


def test_a_folder_that_can_never_be_made_is_not_said_to_be_locked() -> None:
    with pytest.raises(FileNotFoundError):
        Disk().lock(Path("/proc/kvpatch/lock"))


def test_what_is_no_file_reads_as_nothing_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as heard:
        here = os.open(tmp_path, os.O_RDONLY)
        heard.bind(f"/proc/self/fd/{here}/socket")  # a path of its own may be too long
        os.close(here)
        read = {path.name: Disk().read(path) for path in (*tmp_path.iterdir(), tmp_path)}
    assert read == {"file": b"bytes", "pipe": b"", "socket": b"", tmp_path.name: b""}
    with pytest.raises(FileNotFoundError):
        Disk().read(tmp_path / "gone")


def test_a_lock_on_a_file_that_is_no_longer_there_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    path = tmp_path / "lock"
    real, calls = fcntl.flock, []

    def flock(descriptor: int, flags: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            path.rename(tmp_path / "old")  # the inode stays in use
            path.touch()
        real(descriptor, flags)

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = Disk().lock(path)
    assert len(calls) == 2
    with pytest.raises(KvpatchError):
        Disk().lock(path)
    lock.close()


def test_a_probe_tells_a_read_only_file_system_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    before = path.stat()
    Disk().probe(path)
    assert (path.stat().st_mtime_ns, path.read_bytes()) == (before.st_mtime_ns, b"x")

    def refuse(number: int) -> None:
        def opened(*_: object) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "open", opened)

    refuse(errno.EACCES)
    Disk().probe(path)
    refuse(errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        Disk().probe(path)


def test_a_target_is_seen_through_a_link_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "a").symlink_to("real")
    found = look(Disk(), tmp_path, "a")
    assert found is not None
    assert (found.shape.digest, found.shape.mode, found.shape.link) == (
        sha256(b"x"),
        0o640,
        "real",
    )


def test_what_is_not_there_is_none_and_what_is_odd_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked").symlink_to("folder")
    (tmp_path / "loop").symlink_to("loop")
    assert look(Disk(), tmp_path, "folder/a") is None
    assert look(Disk(), tmp_path, "nowhere/a") is None
    for path, code in {
        "folder": "target-folder",
        "linked": "target-folder",
        "linked/a": "linked-folder",
        "file/a": "target-odd",
        "loop": "dangling-link",
    }.items():
        with pytest.raises(KvpatchError) as caught:
            look(Disk(), tmp_path, path)
        assert (caught.value.code, caught.value.exit_code) == (code, ExitCode.REFUSED)
