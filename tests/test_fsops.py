from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvpatch.fsops import Disk, fresh_mtime
from kvpatch.links import LARGEST
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


@pytest.mark.parametrize("kind", ["hard", "fifo"])
def test_a_lock_that_is_no_file_of_its_own_is_refused_and_left_as_it_is(
    tmp_path: Path, kind: str
) -> None:
    lock, other = tmp_path / "lock", tmp_path / "other"
    if kind == "fifo":
        os.mkfifo(lock)
    else:
        other.write_text("theirs")
        other.chmod(0o400)
        lock.hardlink_to(other)
    before = lock.stat()
    with pytest.raises(KvpatchError) as caught:
        Disk().lock(lock)
    assert (caught.value.code, caught.value.exit_code) == ("state-linked", ExitCode.REFUSED)
    assert stat.S_IMODE(lock.stat().st_mode) == stat.S_IMODE(before.st_mode)
    assert lock.stat().st_size == before.st_size


def test_a_folder_keeps_the_group_bit_of_the_one_above(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    Disk().mkdir(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o2755


def test_a_file_too_large_to_be_read_whole_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    with path.open("wb") as stream:
        stream.truncate(LARGEST + 1)
    with pytest.raises(OSError, match="MB are too much") as caught:
        Disk().read(path)
    assert caught.value.filename == str(path)


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give away")
NOBODY = 65534


@AS_ROOT
def test_root_gives_away_what_it_made_and_nothing_else(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    made, moved = tmp_path / "made", tmp_path / "lock"
    moved.write_text("roots own")
    Disk().write_new(made, b"")
    Disk().lock(moved).close()
    assert (made.stat().st_uid, moved.stat().st_uid) == (NOBODY, 0)
    Disk().lock(tmp_path / "new").close()
    assert (tmp_path / "new").stat().st_uid == NOBODY


@AS_ROOT
def test_a_folder_put_in_the_place_of_the_new_one_stays_as_it_is(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    others, new = tmp_path / "others", tmp_path / "new"
    others.mkdir(0o700)
    (others / "secret").touch()

    class Swapping(type(new)):  # type: ignore[misc]
        def mkdir(self, *_: object, **__: object) -> None:
            Path(others).rename(new)

    Disk().mkdir(Swapping(new))
    assert (new.stat().st_uid, stat.S_IMODE(new.stat().st_mode)) == (0, 0o700)


@AS_ROOT
def test_an_empty_folder_that_a_killed_run_left_is_handed_over(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    for name in ("empty", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "link").symlink_to("empty")
    disk = Disk()
    for name in ("link", "full", "gone"):
        disk.adopt(tmp_path / name)
    assert {(tmp_path / name).stat().st_uid for name in ("empty", "full")} == {0}
    disk.adopt(tmp_path / "empty")
    assert (tmp_path / "empty").stat().st_uid == NOBODY
