"""What machines are told of plans, standings and pairs, apart from any host."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kvpatch import pairs
from kvpatch.digest import sha256
from kvpatch.host import Standing
from kvpatch.locate import FileFacts, LinkKind
from kvpatch.outcome import Outcome
from kvpatch.plan import Plan, TargetPlan
from kvpatch.processes import Running
from kvpatch.report_data import (
    file_data,
    link_data,
    member_data,
    pair_data,
    patch_data,
    patched,
    plan_data,
    revertible,
)
from kvpatch.series import Member, discover
from packaging.version import Version
from views import file, patch, view


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([Outcome.ALREADY], True),
        ([Outcome.APPLIED], True),
        ([Outcome.ABSORBED], True),
        ([Outcome.ALREADY, Outcome.OUT_OF_RANGE], True),
        ([Outcome.ALREADY, Outcome.NOT_NEEDED], True),
        ([Outcome.ALREADY, Outcome.PENDING], False),
        ([Outcome.ALREADY, Outcome.FOREIGN], False),
        ([Outcome.PENDING], False),
        ([Outcome.ALREADY, Outcome.MISSING], False),
        ([Outcome.OUT_OF_RANGE], False),
        ([Outcome.NOT_INSTALLED], False),
        ([], False),
    ],
)
def test_a_host_is_patched_when_every_cure_that_is_meant_for_it_is_in_place(
    outcomes: list[Outcome], expected: bool
) -> None:
    patches = tuple(patch(outcome, f"KV00{n}") for n, outcome in enumerate(outcomes))
    assert patched(Plan(patches, ())) is expected


def test_a_host_is_not_patched_where_one_is_pending_that_no_letter_tells_of() -> None:
    beside = replace(patch(Outcome.PENDING, "KV010"), cures=())
    assert not patched(Plan((patch(Outcome.ALREADY), beside), ()))
    done = replace(beside, outcome=Outcome.ALREADY)
    assert patched(Plan((patch(Outcome.ALREADY), done), ()))


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], False),
        (["ours"], True),
        (["ours", "reinstalled"], True),
        (["reinstalled"], False),
        (["ours", "changed"], False),
        (["stale"], False),
        (["stale", "reinstalled"], False),
        (["ours", "stale"], True),
        (["ours", "stale", "changed"], False),
        (["missing"], False),
    ],
)
def test_a_host_can_be_taken_back_when_nothing_stands_in_the_way(
    states: list[str], expected: bool
) -> None:
    assert revertible([Standing("vllm/a.py", state) for state in states]) is expected


def test_the_data_names_what_came_along_and_what_is_running() -> None:
    data = plan_data(view(patch(Outcome.PENDING), running=(Running(7, "vllm serve"),)))
    assert data["taken_along"] == ["KV001"]
    assert data["running"] == [{"pid": 7, "command": "vllm serve"}]


def test_the_data_answers_what_the_operator_asks() -> None:
    other = replace(patch(Outcome.FOREIGN, "KV900"), cures=())
    ours = (Standing("vllm/a.py", "ours"),)
    data = plan_data(view(patch(Outcome.ALREADY), other, standings=ours, interrupted=True))
    assert (data["patched"], data["revertible"], data["interrupted"]) == (True, True, True)
    data = plan_data(view(patch(Outcome.PENDING)))
    assert (data["patched"], data["revertible"], data["interrupted"]) == (False, False, False)


def test_the_data_names_the_packages_and_is_json() -> None:
    data = plan_data(view(patch(Outcome.PENDING), files=(file(),)))
    assert json.loads(json.dumps(data)) == data
    packages = data["environment"]["packages"]
    assert {name: found["version"] for name, found in packages.items()} == {
        "vllm": "0.32.0",
        "lmcache": "0.5.6",
    }
    assert data["environment"]["python"] is None
    assert list(plan_data(view(lmcache=None))["environment"]["packages"]) == ["vllm"]


def test_a_patch_is_told_with_each_of_its_files() -> None:
    target = TargetPlan("vllm/a.py", Outcome.MISSING, "no anchor")
    data = patch_data(replace(patch(Outcome.MISSING, tested=False), targets=(target,)))
    assert (data["id"], data["outcome"], data["tested"]) == ("KV001", "missing", False)
    assert data["targets"] == [{"path": "vllm/a.py", "outcome": "missing", "reason": "no anchor"}]


def test_a_file_is_told_by_its_digests() -> None:
    assert file_data(file("ours", b"other")) == {
        "path": "vllm/a.py",
        "state": "ours",
        "before": sha256(b"old"),
        "after": sha256(b"other"),
    }


def test_a_link_is_told_with_what_keeps_it_from_being_replaced() -> None:
    plain = FileFacts(Path("/x"), LinkKind.PLAIN, 1, None, 0o644, 0, 0, True, None)
    told = link_data("vllm/a.py", replace(plain, writable=False, reason="it is immutable"))
    assert (told["link"], told["writable"]) == (LinkKind.PLAIN.value, False)
    assert told["reason"] == "it is immutable"
    seen = replace(view(), facts={"vllm/a.py": replace(plain, link=LinkKind.HARD, count=3)})
    (link,) = plan_data(seen)["links"]
    assert (link["path"], link["link"], link["count"]) == ("vllm/a.py", LinkKind.HARD.value, 3)


def test_a_pair_is_told_by_the_catalogue() -> None:
    (vllm, lmcache), known = next(
        (pair, known) for pair, known in pairs.load().known.items() if known.ok
    )
    data = pair_data({"vllm": Version(vllm), "lmcache": Version(lmcache)})
    assert data is not None
    assert (data["tested"], data["ok"], data["nearest"]) == (True, True, [])
    assert (data["before"], data["after"]) == (list(known.before), list(known.after))


def test_a_pair_that_does_not_blend_comes_with_pairs_to_take_instead() -> None:
    shipped = pairs.load()
    vllm, lmcache = next(pair for pair, known in shipped.known.items() if not known.ok)
    data = pair_data({"vllm": Version(vllm), "lmcache": Version(lmcache)})
    assert data is not None
    assert data["ok"] is False
    assert data["nearest"]


def test_a_pair_that_the_catalogue_lacks_has_no_letters_and_half_a_pair_no_data() -> None:
    data = pair_data({"vllm": Version("99.0"), "lmcache": Version("0.5.6")})
    assert data is not None
    assert (data["tested"], data["before"], data["after"], data["ok"]) == (False, None, None, None)
    assert pair_data({"vllm": Version("0.32.0")}) is None


@pytest.mark.parametrize("member", discover().members, ids=lambda member: member.id)
def test_a_member_of_the_series_is_told_in_full(member: Member) -> None:
    data = member_data(member)
    assert json.loads(json.dumps(data)) == data
    assert (data["id"], data["digest"]) == (member.id, member.digest)
    assert [target["path"] for target in data["targets"]] == [
        target.path for target in member.patch.targets
    ]
