"""Which patches an installed pair lacks: on files of real releases, as released and as patched."""

from __future__ import annotations

from functools import cache

import pytest
from kvpatch import catalogue, series
from kvpatch.absence import SINCE, Absence, Installed, absence
from kvpatch.fold import Memo
from kvpatch.plan import Options, plan
from kvpatch.tree import FolderTree, Package
from packaging.version import Version
from releases import release_file

pytestmark = pytest.mark.releases

PAIRS = [
    ("0.11.0", "0.3.9.post2"),
    ("0.11.1", "0.3.13"),
    ("0.25.0", "0.4.4"),
    ("0.32.0", "0.5.6"),
]


@cache
def files(package: str, version: str) -> dict[str, bytes]:
    paths = catalogue.load().releases[package][version]
    return {path: release_file(package, version, path) for path in paths}


def installed(package: str, version: str, found: dict[str, bytes]) -> Installed:
    return Installed(package, Version(version), found.get)


@cache
def planned(vllm: str, lmcache: str) -> tuple[dict[str, bytes], frozenset[str]]:
    """The files with all patches in, and the ids of those patches."""
    packages = {name: Package(name, Version(one)) for name, one in both(vllm, lmcache)}
    texts = {**files("vllm", vllm), **files("lmcache", lmcache)}
    made = plan(series.discover(), FolderTree(packages, texts), Options(memo=Memo()))
    after = {one.path: one.after for one in made.files if one.after is not None}
    ids = {one.id for one in made.patches if one.outcome.value == "pending"}
    return {**texts, **after}, frozenset(ids)


def both(vllm: str, lmcache: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("vllm", vllm), ("lmcache", lmcache)


def told(pair: tuple[str, str], found: dict[str, bytes]) -> Absence:
    there = tuple(installed(name, version, found) for name, version in both(*pair))
    return absence(there, Version(pair[0]))


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_as_released_lacks_what_apply_would_put_in(pair: tuple[str, str]) -> None:
    released = {**files("vllm", pair[0]), **files("lmcache", pair[1])}
    wanted = planned(*pair)[1] - {"KV008", "KV009", "KV012"}
    assert told(pair, released) == Absence(tuple(sorted(wanted)))


@pytest.mark.parametrize("pair", PAIRS)
def test_a_patched_pair_lacks_nothing(pair: tuple[str, str]) -> None:
    assert told(pair, planned(*pair)[0]) == Absence()


def test_a_file_that_somebody_edited_is_not_judged() -> None:
    patched = planned("0.32.0", "0.5.6")[0]
    path = "lmcache/v1/compute/blend/blender.py"
    edited = {**patched, path: files("lmcache", "0.5.6")[path] + b"# mine\n"}
    assert told(("0.32.0", "0.5.6"), edited) == Absence((), unsure=True)
    back = {**patched, path: files("lmcache", "0.5.6")[path]}
    assert told(("0.32.0", "0.5.6"), back) == Absence(("KV010", "KV015"))


def test_a_release_that_the_catalogue_lacks_is_not_judged() -> None:
    assert absence((installed("lmcache", "99.0", {}),), None) == Absence((), unsure=True)


def test_the_conditions_are_those_of_the_patches() -> None:
    meant = {one.patch.id: one.patch.when for one in series.discover().members}
    assert {name for name, when in meant.items() if when is not None} == set(SINCE)
    for release in map(Version, catalogue.load().releases["vllm"]):
        for name, first in SINCE.items():
            when = meant[name]
            assert when is not None
            assert when.holds({"vllm": release}) is (release >= first)
