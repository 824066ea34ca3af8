"""Which patches are made for a pair, and whether each is in place on a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_site import LATE, WORKER, install
from kvpatch.curing import curable, pair_on
from kvpatch.fsops import Disk
from kvpatch.host import Where, open_host
from kvpatch.series import discover
from packaging.version import Version


@pytest.mark.parametrize("release", ["0.3.3", "0.4.4", "0.5.6", "0.5.7rc2"])
@pytest.mark.parametrize("vllm", ["0.11.0", "0.32.0"])
def test_the_patches_of_a_pair_are_those_with_both_releases_in_range(
    release: str, vllm: str
) -> None:
    releases = {"lmcache": Version(release), "vllm": Version(vllm)}
    members = [one.patch for one in discover().members]
    expected = {one.id for one in members if one.in_range(releases[one.distribution])}
    pair = curable(releases["lmcache"], releases["vllm"])
    assert set(pair.cured) == expected
    assert set(pair.cured.values()) == {None}
    assert pair.registered is None
    for letter, patches in pair.curing.items():
        assert set(patches) == {one.id for one in members if letter in one.cures} & expected


def test_of_a_release_that_is_not_known_no_patch_is_named() -> None:
    alone = curable(Version("0.5.6"), None)
    assert alone.vllm is None
    assert not {"KV001", "KV002"} & set(alone.cured)
    assert "KV009" in alone.cured


def test_a_host_that_is_not_patched_has_none_in_place(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    install(site, "vllm", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    install(site, "lmcache", "0.5.6", {"lmcache/__init__.py": ""})
    host = open_host(Where(site=site), Disk())
    pair = pair_on(host, Version("0.5.6"), Version("0.32.0"))
    assert pair.registered is False
    assert set(pair.cured.values()) == {False}
    assert "KV001" in pair.cured
    assert pair_on(host, Version("0.5.6"), None).registered is None
