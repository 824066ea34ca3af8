"""Access control lists and extended attributes: a file that takes another's place has the same."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from access import access_list, shown
from commands import on
from fake_site import make_site
from kvpatch.attributes import ACCESS_LIST, LABEL, attributes_of, give, surplus
from kvpatch.fsops import Disk
from kvpatch.mend import write_over

DEFAULT_LIST = "system.posix_acl_default"
LIST = access_list(user=6, group=4, mask=6, other=4)


def marked(path: Path) -> dict[str, bytes]:
    """The attributes of a file that somebody gave a list and a note."""
    os.setxattr(path, ACCESS_LIST, LIST)
    os.setxattr(path, "user.note", b"of the operator")
    return shown(path)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "new", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


def test_apply_and_revert_leave_list_note_and_mode_as_they_were(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    before = marked(site.worker)
    mode = site.worker.stat().st_mode
    # The bits for the group are those of the list's mask: on their own they would let it write.
    assert stat.S_IMODE(mode) == 0o664
    for verb in ("apply", "revert"):
        assert on(site, verb).code == 0
        assert (shown(site.worker), site.worker.stat().st_mode) == (before, mode)


def test_a_list_that_the_folder_gives_to_new_files_is_not_taken_on(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    os.setxattr(site.worker.parent, DEFAULT_LIST, access_list(user=7, group=7, mask=7, other=0))
    (site.worker.parent / "new").touch()
    assert ACCESS_LIST in shown(site.worker.parent / "new")
    mode = site.worker.stat().st_mode
    for verb in ("apply", "revert"):
        assert on(site, verb).code == 0
        assert (shown(site.worker), site.worker.stat().st_mode) == ({}, mode)


def test_where_a_list_cant_be_kept_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path)
    before, content = marked(site.worker), site.worker.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "setxattr", refuse)
    ran = on(site, "apply", "--json")
    assert (ran.code, ran.error["code"]) == (4, "no-permission")
    assert (shown(site.worker), site.worker.read_bytes()) == (before, content)


def test_a_label_that_the_policy_withholds_is_left_and_others_are_given(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_for_real = os.setxattr

    def policy(file: int, name: str, value: bytes) -> None:
        if name == LABEL:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        set_for_real(file, name, value)

    monkeypatch.setattr(os, "setxattr", policy)
    give(descriptor, {LABEL: b"system_u:object_r:lib_t:s0", "user.note": b"x"})
    assert attributes_of(descriptor) == {"user.note": b"x"}


def test_the_marks_of_the_bytes_are_not_for_others(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"security.ima": b"1", "security.evm": b"2", LABEL: b"3", "user.a": b"4"}
    monkeypatch.setattr(os, "listxattr", lambda _: list(there))
    monkeypatch.setattr(os, "getxattr", lambda _, name: there[name])
    assert attributes_of(descriptor) == {LABEL: b"3", "user.a": b"4"}
    # A label can't be taken away, only changed.
    assert surplus(descriptor, {}) == ["user.a"]


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENODATA])
def test_a_file_system_without_any_has_none(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_: object) -> list[str]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "listxattr", refuse)
    assert attributes_of(descriptor) == {}
    monkeypatch.delattr(os, "listxattr")
    assert attributes_of(descriptor) == {}


def test_a_new_file_keeps_what_its_folder_gives_where_nothing_is_said(tmp_path: Path) -> None:
    os.setxattr(tmp_path, DEFAULT_LIST, access_list(user=6, group=4, mask=6, other=0))
    Disk().write_new(tmp_path / "new", b"x", mode=0o640)
    assert ACCESS_LIST in shown(tmp_path / "new")


def test_a_mended_configuration_keeps_them(tmp_path: Path) -> None:
    file = tmp_path / "lmcache.yaml"
    file.write_text("a: 1\n")
    before = marked(file)
    write_over(file, "a: 2\n")
    assert (shown(file), file.read_text()) == (before, "a: 2\n")
