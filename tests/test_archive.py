from __future__ import annotations

from pathlib import Path

import pytest
from hosts import WORKER, Dying, Killed, make
from kvpatch import archive
from kvpatch.fsops import Disk, sha256
from kvpatch.journal import JOURNAL, Store


def test_an_archive_holds_the_journal_the_originals_and_the_files_as_found(
    tmp_path: Path,
) -> None:
    host = make(tmp_path)
    original = host.read(WORKER)
    host.apply({WORKER: b"patched\n"})
    store = host.store("vllm", Disk())
    journal = store.read()
    assert journal is not None
    kept = archive.keep(store, journal, {WORKER: b"as found\n"})
    assert kept.parent == host.state() / "archive"
    assert (kept / "blobs" / sha256(original)).read_bytes() == original
    assert (kept / archive.FOUND / WORKER).read_bytes() == b"as found\n"
    assert Store(kept, Disk()).read() == journal
    assert Store(kept, Disk()).original(sha256(original)) == original


def test_the_same_contents_are_kept_once_and_others_beside_them(tmp_path: Path) -> None:
    host = make(tmp_path)
    host.apply({WORKER: b"patched\n"})
    store = host.store("vllm", Disk())
    journal = store.read()
    assert journal is not None
    first = archive.keep(store, journal)
    assert archive.keep(store, journal) == first
    second = archive.keep(store, journal, {WORKER: b"x"})
    assert second != first
    assert (archive.has_copy(first), archive.has_copy(second)) == (False, True)


def test_a_damaged_original_does_not_keep_the_journal_from_the_archive(tmp_path: Path) -> None:
    host = make(tmp_path)
    digest = sha256(host.read(WORKER))
    host.apply({WORKER: b"patched\n"})
    store = host.store("vllm", Disk())
    journal = store.read()
    assert journal is not None
    (host.state() / "blobs" / digest).write_bytes(b"spoiled")
    assert (archive.keep(store, journal) / JOURNAL).is_file()


@pytest.mark.crash
def test_killed_at_any_operation_an_archive_is_whole_or_not_there(tmp_path: Path) -> None:
    for n in range(1, 100):
        host = make(tmp_path / str(n))
        host.apply({WORKER: b"patched\n"})
        journal = host.store("vllm", Disk()).read()
        assert journal is not None
        try:
            archive.keep(host.store("vllm", Disk(Dying(n))), journal, {WORKER: b"x"})
        except Killed:
            for kept in (host.state() / "archive").glob("*"):
                assert (kept / JOURNAL).is_file()
                assert (kept / archive.FOUND / WORKER).read_bytes() == b"x"
            kept = archive.keep(host.store("vllm", Disk()), journal, {WORKER: b"x"})
            assert Store(kept, Disk()).read() == journal
            assert len(list((host.state() / "archive").iterdir())) == 1
            host.recover()
            assert not host.leftovers()
        else:
            assert n > 10
            return
    raise AssertionError("it never came to an end")
