from __future__ import annotations

from pathlib import Path

import pytest
from hosts import WORKER, make
from kvpatch.fsops import Disk
from kvpatch.owners import Owners
from kvpatch.standing import Standing, standing_of


@pytest.mark.parametrize(
    ("state", "ours", "comes_back"),
    [
        ("ours", True, True),
        ("reinstalled", False, False),
        ("stale", False, False),
        ("changed", False, False),
        ("missing", False, True),
    ],
)
def test_every_standing_has_a_sentence_and_says_whether_a_revert_brings_it_back(
    state: str, ours: bool, comes_back: bool
) -> None:
    standing = Standing("vllm/a.py", state)
    assert (standing.ours, standing.comes_back) == (ours, comes_back)
    assert standing.sentence


def test_a_file_whose_folder_is_gone_does_not_come_back(tmp_path: Path) -> None:
    host = make(tmp_path)
    host.apply({WORKER: b"patched\n"})
    site, journal = host.sites["vllm"], host.store("vllm", Disk()).read()
    assert journal is not None
    host.path(WORKER).unlink()
    there = standing_of(site, journal, WORKER, "missing", Owners(site))
    assert (there.comes_back, there.remains) == (True, True)
    (site / WORKER).parent.rmdir()
    gone = standing_of(site, journal, WORKER, "missing", Owners(site))
    assert (gone.comes_back, gone.remains) == (False, False)
