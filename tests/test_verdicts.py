"""What earlier runs found, as it is kept."""

from __future__ import annotations

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


def test_other_patches_have_other_verdicts(tmp_path: Path) -> None:
    series = discover()
    first, *others = series.members
    changed = Series((replace(first, digest="0" * 64), *others))
    assert Kept.by(series, tmp_path) == Kept.by(series, tmp_path)
    assert Kept.by(series, tmp_path) != Kept.by(changed, tmp_path)


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
