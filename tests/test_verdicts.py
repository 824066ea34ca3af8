"""What earlier runs found, as it is kept."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kvpatch.matrix import Release, Row
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.series import Series, discover
from kvpatch.sources import Folder
from kvpatch.verdicts import Kept, recalled, remembered
from packaging.version import Version

KEY = "74bfe92953bee126" * 4
PATCHES = ({"id": "KV001", "outcome": "pending", "reason": "apply would put it in"},)


def release(key: str | None = KEY) -> Release:
    return Release("vllm", Version("0.25.1"), Folder(Path()), "vllm-0.25.1.whl", key)


def beside(version: str) -> Release:
    return Release("lmcache", Version(version), Folder(Path()), "lmcache.whl")


def row() -> Row:
    return Row("vllm", "0.25.1", "vllm-0.25.1.whl", PATCHES, registered=False, key=KEY)


def test_what_was_kept_is_there_for_the_same_bytes_alone(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "verdicts")
    assert kept.of(release()) == {}
    kept.keep(release(), remembered(row(), beside("0.5.6"), {}))
    assert recalled(release(), beside("0.5.6"), kept.of(release())) == row()
    assert kept.of(release("0" * 64)) == {}


def test_of_bytes_without_a_name_nothing_is_kept(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "verdicts")
    kept.keep(release(None), {"rows": {}})
    assert (kept.of(release(None)), list(tmp_path.iterdir())) == ({}, [])


def test_a_verdict_with_another_byte_in_it_is_found_out_anew(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keep(release(), remembered(row(), beside("0.5.6"), {}))
    (place,) = tmp_path.iterdir()
    place.write_bytes(place.read_bytes().replace(b"pending", b"applied"))
    assert kept.of(release()) == {}


@pytest.mark.parametrize("damaged", [b"", b"[]", b"{", b"\xff"])
def test_what_is_damaged_is_found_out_anew(tmp_path: Path, damaged: bytes) -> None:
    kept = Kept(tmp_path)
    kept.keep(release(), {"rows": {}})
    (place,) = tmp_path.iterdir()
    place.write_bytes(damaged)
    assert kept.of(release()) == {}


def test_a_pipe_in_the_place_of_a_verdict_is_none(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keep(release(), {"rows": {}})
    (place,) = tmp_path.iterdir()
    place.unlink()
    os.mkfifo(place)
    assert kept.of(release()) == {}
    kept.keep(release(), {"rows": {}})
    assert kept.of(release()) == {"rows": {}}


def test_other_patches_have_other_verdicts(tmp_path: Path) -> None:
    series = discover()
    first, *others = series.members
    changed = Series((replace(first, digest="0" * 64), *others))
    assert Kept.by(series, tmp_path) == Kept.by(series, tmp_path)
    assert Kept.by(series, tmp_path) != Kept.by(changed, tmp_path)


NAME = f"vllm-0.25.1-{KEY[:16]}.json"
DAY_S = 24 * 3600.0
USE = """
import sys
from pathlib import Path
from kvpatch.verdicts import Kept

with Kept(Path(sys.argv[1])).in_use():
    print("in use", flush=True)
    sys.stdin.read()
"""


def several(root: Path) -> list[Path]:
    """Folders of verdicts, the one used last first, all of them old."""
    folders = [root / f"{number:016x}" for number in range(6)]
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True)
        (folder / NAME).write_text("{}")
        os.utime(folder, (1_000_000 - number, 1_000_000 - number))
    return folders


def left(root: Path) -> list[Path]:
    return sorted(root.iterdir())


def test_of_other_kvpatch_those_last_used_are_kept_and_older_ones_removed(tmp_path: Path) -> None:
    folders = several(tmp_path)
    # Its own is the one that was used least.
    own = Kept(folders[-1])
    own.prune(1_000_000 + 100)
    assert left(tmp_path) == folders
    own.prune(1_000_000 + DAY_S)
    assert left(tmp_path) == [*folders[:3], folders[-1]]
    assert all(list(folder.iterdir()) for folder in left(tmp_path))


def test_verdicts_that_a_running_kvpatch_uses_are_not_removed(tmp_path: Path) -> None:
    folders = several(tmp_path)
    command = [sys.executable, "-c", USE, str(folders[4])]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"in use\n"
    # To be used makes them the youngest; it's the lock that is looked at here.
    os.utime(folders[4], (1_000_000 - 4, 1_000_000 - 4))
    own = Kept(folders[-1])
    own.prune(1_000_000 + DAY_S)
    assert left(tmp_path) == [*folders[:3], folders[4], folders[-1]]
    child.kill()
    child.communicate()
    own.prune(1_000_000 + DAY_S)
    assert left(tmp_path) == [*folders[:3], folders[-1]]


def test_to_be_used_counts_though_nothing_is_written(tmp_path: Path) -> None:
    folders = several(tmp_path)
    with Kept(folders[4]).in_use():
        pass
    Kept(folders[-1]).prune(time.time() + DAY_S + 60)
    assert left(tmp_path) == [*folders[:2], *folders[4:]]


def test_neither_links_nor_what_is_not_kvpatchs_are_removed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "verdicts", tmp_path / "elsewhere"
    folders = several(root)
    several(elsewhere)
    link, odd = root / ("f" * 16), root / "notes"
    link.symlink_to(elsewhere / f"{0:016x}")
    odd.mkdir()
    (folders[4] / "folder").mkdir()
    (folders[3] / f"link-{NAME}").symlink_to(elsewhere / f"{1:016x}" / NAME)
    (folders[2] / "notes.json").touch()
    (folders[1] / ".new-abcd_123").touch()
    os.utime(odd, (1, 1))
    for number, folder in enumerate(folders[1:5]):
        os.utime(folder, (number, number))
    for number in range(3):
        (root / f"{number + 6:016x}").mkdir()
    Kept(folders[-1]).prune(1_000_000 + DAY_S)
    fresh = [root / f"{number + 6:016x}" for number in range(3)]
    assert left(root) == [*folders[2:], *fresh, link, odd]
    assert (folders[2] / NAME).exists()
    assert len([*elsewhere.rglob("*.json")]) == 6
    linked = tmp_path / "linked"
    linked.symlink_to(elsewhere)
    Kept(linked / f"{5:016x}").prune(1_000_000 + DAY_S)
    assert len([*elsewhere.rglob("*.json")]) == 6


def test_a_folder_that_is_removed_while_one_starts_to_use_it_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = several(tmp_path)
    descriptor = os.open(folders[0], os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    def removed(_: float) -> None:
        (folders[0] / NAME).unlink(missing_ok=True)
        folders[0].rmdir()
        os.close(descriptor)

    monkeypatch.setattr("kvpatch.verdicts.time.sleep", removed)
    kept = Kept(folders[0])
    with kept.in_use():
        kept.keep(release(), {"rows": {}})
        assert kept.of(release()) == {"rows": {}}
        Kept(folders[1]).prune(time.time() + 2 * DAY_S)
        assert kept.of(release()) == {"rows": {}}


def test_where_nothing_can_be_written_nothing_is_said() -> None:
    kept = Kept(Path("/proc/kvpatch/verdicts/0"))
    with kept.in_use():
        kept.prune()
    assert kept.of(release()) == {}


def test_a_row_of_an_error_is_not_remembered() -> None:
    error = KvpatchError("no-network", "it is down", "try again", ExitCode.ENVIRONMENT)
    known = remembered(row(), beside("0.5.6"), {})
    assert remembered(replace(row(), error=error), beside("0.5.5"), known) == known
    assert recalled(release(), beside("0.5.5"), known) is None


def test_rows_are_kept_by_the_release_that_they_were_planned_beside() -> None:
    other = replace(row(), registered=True)
    known = remembered(other, beside("0.5.5"), remembered(row(), beside("0.5.6"), {"pair": 1}))
    assert [recalled(release(), beside(v), known) for v in ("0.5.6", "0.5.5")] == [row(), other]
    assert known["pair"] == 1
