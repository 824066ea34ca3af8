from __future__ import annotations

from pathlib import Path

import pytest
from hosts import WORKER, Host, make
from kvpatch.fsops import Disk, sha256
from kvpatch.ledger import temporary
from kvpatch.outcome import KvpatchError
from kvpatch.steps import SiteState, stage, switch, unstage
from kvpatch.target_file import Shape, look


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return make(tmp_path)


def place_of(host: Host) -> SiteState:
    return host.places(Disk())[0]


def test_a_staged_file_changes_nothing_until_it_is_switched(host: Host) -> None:
    before, disk, place = host.read(WORKER), Disk(), place_of(host)
    shape = Shape(sha256(b"new\n"), 0o640)
    stage(disk, place, WORKER, shape, "t1", lambda _: b"new\n")
    assert host.read(WORKER) == before
    staged = host.path(WORKER).with_name(temporary(WORKER, "t1"))
    assert staged.read_bytes() == b"new\n"
    was = look(disk, place.real, WORKER)
    assert was is not None
    switch(disk, place, WORKER, was.shape, "t1")
    now = look(disk, place.real, WORKER)
    assert now is not None
    assert (now.content, now.shape) == (b"new\n", shape)
    assert not staged.exists()


def test_what_was_left_staged_is_replaced_or_removed(host: Host) -> None:
    disk, place = Disk(), place_of(host)
    staged = host.path(WORKER).with_name(temporary(WORKER, "t1"))
    staged.write_bytes(b"half")
    stage(disk, place, WORKER, Shape(sha256(b"new\n"), 0o600), "t1", lambda _: b"new\n")
    assert staged.read_bytes() == b"new\n"
    unstage(disk, place, WORKER, "t1")
    assert not staged.exists()


def test_a_target_that_changed_is_not_switched(host: Host) -> None:
    disk, place = Disk(), place_of(host)
    stage(disk, place, WORKER, Shape(sha256(b"new\n"), 0o600), "t1", lambda _: b"new\n")
    for was in (Shape("0" * 64, 0o644), None):
        with pytest.raises(KvpatchError) as caught:
            switch(disk, place, WORKER, was, "t1")
        assert caught.value.code == "changed-meanwhile"


def test_a_temporary_file_is_no_module_and_is_hidden() -> None:
    name = temporary("vllm/a/gpu_worker.py", "20250101T000000Z-00aa")
    assert name.startswith(".gpu_worker.py.")
    assert not name.endswith(".py")
