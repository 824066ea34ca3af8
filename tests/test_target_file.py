from __future__ import annotations

from pathlib import Path

import pytest
from kvpatch.fsops import Disk, sha256
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.target_file import look


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
