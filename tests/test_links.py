from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kvpatch.links import MOUNTED, LinkKind, file_facts, symlinked_folder, why_no_new_file
from kvpatch.outcome import ExitCode, KvpatchError


def _state(folder: Path) -> dict[str, tuple[int, int, int]]:
    paths = [folder, *folder.rglob("*")]
    facts = ((path, path.lstat()) for path in paths)
    return {str(path): (each.st_mtime_ns, each.st_size, each.st_mode) for path, each in facts}


def _refuse(monkeypatch: pytest.MonkeyPatch, refused: Path, number: int) -> None:
    """Makes opening a path for writing fail, as root meets no such path without a mount."""
    real = os.open

    def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if Path(path) == refused and flags & os.O_ACCMODE:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", opened)


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / "site" / "gpu_worker.py"
    path.parent.mkdir()
    path.write_text("class Worker: pass\n")
    path.chmod(0o640)
    return path


def test_a_plain_file_is_described_and_nothing_is_touched(worker: Path) -> None:
    before = _state(worker.parent)
    facts = file_facts(worker)
    assert (facts.link, facts.count, facts.target) == (LinkKind.PLAIN, 1, None)
    assert (facts.mode, facts.uid, facts.gid) == (0o640, os.getuid(), worker.stat().st_gid)
    assert (facts.writable, facts.reason) == (True, None)
    assert _state(worker.parent) == before


def test_a_hard_link_tells_its_count(worker: Path) -> None:
    os.link(worker, worker.with_name("other"))
    os.link(worker, worker.with_name("third"))
    facts = file_facts(worker)
    assert (facts.link, facts.count, facts.writable) == (LinkKind.HARD, 3, True)


def test_a_symbolic_link_tells_its_text_and_the_mode_of_its_content(worker: Path) -> None:
    link = worker.with_name("link.py")
    link.symlink_to("gpu_worker.py")
    facts = file_facts(link)
    assert (facts.link, facts.target, facts.mode) == (LinkKind.SYMBOLIC, "gpu_worker.py", 0o640)
    assert (facts.path, facts.writable) == (link, True)


def test_the_content_of_a_symbolic_link_need_not_be_writable(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = worker.with_name("link.py")
    link.symlink_to(worker)
    _refuse(monkeypatch, worker, errno.EROFS)
    assert file_facts(link).writable
    assert not file_facts(worker).writable


def test_a_dangling_link_is_not_writable_and_says_where_it_leads(worker: Path) -> None:
    link = worker.with_name("link.py")
    link.symlink_to("gone.py")
    facts = file_facts(link)
    assert (facts.link, facts.writable) == (LinkKind.SYMBOLIC, False)
    assert "gone.py" in str(facts.reason)


def test_a_missing_file_is_an_error_of_the_environment(tmp_path: Path) -> None:
    with pytest.raises(KvpatchError) as caught:
        file_facts(tmp_path / "gone.py")
    assert (caught.value.code, caught.value.exit_code) == ("no-file", ExitCode.ENVIRONMENT)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to a folder"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "gpu_worker.py"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path)
    with pytest.raises(KvpatchError) as caught:
        file_facts(path)
    assert (caught.value.code, caught.value.exit_code) == ("not-a-file", ExitCode.REFUSED)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EPERM, errno.ETXTBSY])
def test_a_file_that_does_not_open_for_writing_is_not_writable(
    worker: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _refuse(monkeypatch, worker, number)
    facts = file_facts(worker)
    assert not facts.writable
    assert os.strerror(number) in str(facts.reason)


def test_a_file_of_ours_whose_mode_forbids_writing_can_still_be_replaced(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse(monkeypatch, worker, errno.EACCES)
    assert file_facts(worker).writable


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC])
def test_a_folder_that_takes_no_new_file_is_the_reason(
    worker: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _refuse(monkeypatch, worker.parent, number)
    facts = file_facts(worker)
    assert not facts.writable
    assert str(facts.reason) == f"{worker.parent} takes no new file: {os.strerror(number)}"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_without_nameless_files_the_mount_and_the_mode_decide(
    worker: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _refuse(monkeypatch, worker.parent, number)
    before = _state(worker.parent)
    assert file_facts(worker).writable
    assert _state(worker.parent) == before
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert os.strerror(errno.EACCES) in str(file_facts(worker).reason)
    mounted = os.statvfs(worker)

    class ReadOnly:
        f_flag = mounted.f_flag | os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _: ReadOnly)
    assert os.strerror(errno.EROFS) in str(file_facts(worker).reason)


@pytest.mark.parametrize("kind", ["overlay", "fuse.fuse-overlayfs", "aufs", "fuse.unionfs"])
def test_on_image_layers_nothing_is_opened_for_writing(
    worker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    device = worker.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "garbage\n"
        f"21 1 254:99 / / rw - {'ext4' if kind == 'aufs' else 'overlay'} none rw\n"
        f"22 1 {number} / / rw,relatime shared:1 - {kind} none rw,lowerdir=/l\n"
    )
    for path in (worker, worker.parent):
        _refuse(monkeypatch, path, errno.EIO)
    assert file_facts(worker, mounts=mounts).writable
    assert not file_facts(worker, mounts=tmp_path / "none").writable


def test_a_file_that_something_is_mounted_over_cant_be_replaced(
    worker: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "a b\\c\té" / worker.name
    odd.parent.mkdir()
    odd.touch()
    link = tmp_path / "link"
    link.symlink_to(odd.parent)
    line = b"99 1 0:0 /x %b rw - ext4 /dev/x rw\n"
    escaped = os.fsencode(odd).replace(b"\\", b"\\134").replace(b" ", b"\\040")
    mounts = tmp_path / "mountinfo"
    mounts.write_bytes(b"short\n" + line % escaped.replace(b"\t", b"\\011"))
    for path in (odd, link / worker.name):
        facts = file_facts(path, mounts=mounts)
        assert (facts.writable, facts.reason) == (False, MOUNTED)
    assert file_facts(worker, mounts=mounts).writable
    assert file_facts(odd, mounts=tmp_path / "none").writable


def test_what_is_really_mounted_over_a_file_is_found(worker: Path, tmp_path: Path) -> None:
    (tmp_path / "one.py").touch()
    told = (
        "import sys; from pathlib import Path; from kvpatch.links import file_facts; "
        "print(file_facts(Path(sys.argv[1])).reason)"
    )
    script = f"mount --bind {tmp_path}/one.py {worker} && {sys.executable} -c '{told}' {worker}"
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if "denied" in ran.stderr or "permitted" in ran.stderr:
        pytest.skip(f"nothing can be mounted here: {ran.stderr}")
    assert (ran.returncode, ran.stdout.strip()) == (0, MOUNTED), ran.stderr


def test_a_folder_that_lets_no_name_go_is_the_reason(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_no_new_file(worker.parent) is None
    asked: list[int] = []

    def ioctl(descriptor: int, number: int, given: bytes) -> bytes:
        asked.append(number)
        return (0x20).to_bytes(4, sys.byteorder) + given[4:]

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert file_facts(worker).reason == f"{worker.parent} lets no file go: it is append-only"
    assert asked


def test_a_folder_that_really_lets_no_name_go_is_found(worker: Path) -> None:
    folder = worker.parent
    done = subprocess.run(["chattr", "+a", str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("the attributes of chattr can't be set here")
    try:
        assert not file_facts(worker).writable
    finally:
        subprocess.run(["chattr", "-a", str(folder)], check=True)
    assert file_facts(worker).writable


def test_an_owner_or_group_that_could_not_be_kept_is_the_reason(
    worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = worker.stat()
    monkeypatch.setattr(os, "geteuid", lambda: own.st_uid + 1)
    assert f"user {own.st_uid}" in str(file_facts(worker).reason)
    other = own.st_uid or 1000
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        fields = list(real(path))
        fields[stat.ST_UID] = other
        return os.stat_result(fields)

    monkeypatch.setattr(Path, "lstat", lstat)
    monkeypatch.setattr(os, "geteuid", lambda: other)
    monkeypatch.setattr(os, "getegid", lambda: own.st_gid + 1)
    monkeypatch.setattr(os, "getgroups", list)
    assert f"group {own.st_gid}" in str(file_facts(worker).reason)


def test_the_first_symbolic_link_among_the_folders_is_found(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "vllm" / "real").mkdir(parents=True)
    (site / "vllm" / "v1").symlink_to("real")
    (site / "vllm" / "real" / "worker").symlink_to(".")
    (site / "vllm" / "real" / "link.py").symlink_to("x.py")
    relative = "vllm/v1/worker/gpu_worker.py"
    assert symlinked_folder(site, relative) == site / "vllm" / "v1"
    assert symlinked_folder(site, "vllm/real/link.py") is None
    assert symlinked_folder(site, "vllm/gone/x.py") is None


def test_the_site_folder_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "lib" / "vllm").mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("lib")
    assert symlinked_folder(tmp_path / "lib64", "vllm/x.py") is None


@pytest.mark.parametrize("relative", ["/etc/passwd", "../x.py", "vllm/../../x.py", ""])
def test_a_path_that_leaves_the_site_folder_is_refused(tmp_path: Path, relative: str) -> None:
    with pytest.raises(KvpatchError) as caught:
        symlinked_folder(tmp_path, relative)
    assert (caught.value.code, caught.value.exit_code) == ("hostile-path", ExitCode.REFUSED)
