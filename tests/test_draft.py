from __future__ import annotations

from pathlib import Path

import pytest
from hosts import PARALLEL, VLLM, WORKER, Host, make
from kvpatch.draft import draft_commit, draft_revert, refuse
from kvpatch.fsops import Disk, sha256
from kvpatch.outcome import KvpatchError

FIRST = {WORKER: b"one\n", PARALLEL: b"two\n"}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return make(tmp_path)


def reading() -> Disk:
    """A disk on which nothing but reading and probing may happen."""

    def hook(op: str, path: Path) -> None:
        assert op in ("read", "probe"), f"{op} {path}"

    return Disk(hook)


def test_a_draft_touches_nothing(host: Host) -> None:
    disk = reading()
    draft = draft_commit(host.changes(disk, FIRST)[0], disk)
    assert draft.work
    assert set(draft.steps) == set(draft.entries) == set(FIRST)
    assert {draft.content(entry.original) for entry in draft.entries.values()} == {
        VLLM[WORKER],
        VLLM[PARALLEL],
    }


def test_an_update_drafts_only_the_files_that_change_and_keeps_originals(host: Host) -> None:
    host.apply(FIRST)
    disk = reading()
    draft = draft_commit(host.changes(disk, {**FIRST, WORKER: b"three\n"})[0], disk)
    assert set(draft.steps) == {WORKER}
    assert draft.entries[WORKER].original == sha256(VLLM[WORKER])
    assert not draft.superseded


def test_files_that_are_as_they_shall_be_are_no_work(host: Host) -> None:
    host.apply(FIRST)
    disk = reading()
    assert not draft_commit(host.changes(disk, FIRST)[0], disk).work


def test_entries_that_are_not_spoken_of_stay(host: Host) -> None:
    host.apply(FIRST)
    disk = reading()
    draft = draft_commit(host.changes(disk, {})[0], disk)
    assert set(draft.entries) == set(FIRST)
    assert not draft.work


def test_a_revert_is_refused_for_a_changed_file_unless_forced(host: Host) -> None:
    host.apply(FIRST)
    host.path(PARALLEL).write_bytes(b"by hand\n")
    disk = reading()
    draft = draft_revert(host.places(disk)[0], disk)
    with pytest.raises(KvpatchError) as caught:
        refuse([draft], force=False)
    assert caught.value.code == "changed-since"
    forced = draft_revert(host.places(disk)[0], disk, force=True)
    refuse([forced], force=True)
    assert forced.found == {PARALLEL: b"by hand\n"}
    assert set(forced.steps) == set(FIRST)


def test_a_site_folder_without_a_journal_has_nothing_to_revert(host: Host) -> None:
    draft = draft_revert(host.places(Disk())[0], reading())
    assert draft.former is None
    assert not draft.work
