"""What apply would do, said without doing it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import kvpatch
from fake_site import FakeSite, make_site
from kvpatch.fsops import Disk
from kvpatch.host import Where
from kvpatch.remedy import RUN, Remedy, remedy

WORKER = "vllm/v1/worker/gpu_worker.py"


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path / "env")


def _of(site: FakeSite) -> Remedy:
    return remedy(Where(site=site.path), Disk())


def test_what_lacks_is_put_in_by_apply_and_nothing_is_written_to_know_it(site: FakeSite) -> None:
    before = (site.path / WORKER).read_bytes()
    assert _of(site) == Remedy(RUN, pending=True)
    assert (site.path / WORKER).read_bytes() == before


def test_where_all_is_in_place_apply_is_not_what_helps(site: FakeSite) -> None:
    assert kvpatch("apply", "--site", site.path).code == 0
    found = _of(site)
    assert (found.pending, found.settled) == (False, True)
    assert "has nothing to do here" in found.sentence
    assert ".pth" in found.sentence


def test_a_tree_that_apply_refuses_is_said_to_be_one_with_the_reason(site: FakeSite) -> None:
    assert kvpatch("apply", "--site", site.path).code == 0
    path = site.path / WORKER
    text = path.read_text().replace("load_model()", "load_model(1)")
    path.unlink()
    path.write_text(text)
    refused = kvpatch("apply", "--site", site.path, "--json")
    assert refused.code == 3
    found = _of(site)
    assert (found.pending, found.settled) == (False, False)
    assert found.sentence.startswith("`kvpatch apply` refuses here: ")
    assert refused.error["message"] in found.sentence


def test_an_environment_that_can_not_be_read_is_a_refusal_too(tmp_path: Path) -> None:
    assert remedy(Where(site=tmp_path), Disk()).sentence.startswith("`kvpatch apply` refuses here")
