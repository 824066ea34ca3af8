"""How the pairs of a matrix are listed: in columns, in spans, with marks and numbered notes."""

from __future__ import annotations

from typing import Any

from kvpatch.listing import GDS, STARS, Listing, only_with_gds
from matrices import pair

TORCH = "LMCache's wheel is built for another torch"
PIP = "pip can't install both"


def grid(vllm: int, lmcache: int, *after: str) -> list[dict[str, Any]]:
    """Pairs of so many releases, ``after`` the letters that stay by the number of the LMCache."""
    left = dict(enumerate(after))
    return [
        pair(f"0.{v}.0", f"1.{number}", "H", left.get(number, ""))
        for number in range(lmcache)
        for v in range(vllm)
    ]


def test_few_pairs_are_a_line_each_and_the_columns_never_collide() -> None:
    long = "0.32.0+kvpatch.60.5.6"
    lines = Listing([pair(long, "0.5.6", "HR", "R"), pair("0.9.0", "0.5.6", "H", "V")]).text()
    assert lines[0].split() == ["vLLM", "LMCache", "as", "released", "after", "apply"]
    assert lines[1].split() == [long, "0.5.6", "H", "R", "R", "does", "not", "blend"]
    assert lines[2].endswith("blends with launch settings")
    column = lines[0].index("LMCache")
    assert [line[column : column + 5] for line in lines[1:]] == ["0.5.6", "0.5.6"]


def test_a_pair_with_notes_is_marked_and_each_sentence_is_said_once() -> None:
    pairs = [
        pair("0.1.0", "1.0", "H", "", notes=[TORCH, PIP]),
        pair("0.2.0", "1.0", "H", "", notes=[PIP]),
        pair("0.3.0", "1.0", "H", "R", notes=["of a pair that does not blend anyway"]),
    ]
    lines = Listing(pairs).text()
    assert lines[1].endswith("  blends [1 2]")
    assert lines[2].endswith("  blends [2]")
    assert lines[3].endswith("  does not blend")
    assert lines[4:] == [f"[1] {TORCH}", f"[2] {PIP}"]


def test_some_vllm_are_a_line_each_with_spans_of_neighbours_alike() -> None:
    pairs = grid(2, 30, "R", "", "", "R", "V", "V")
    pairs[-1]["notes"] = [TORCH]
    lines = Listing(pairs).text()
    assert lines == [
        "vLLM   LMCache that blends with it after apply",
        "0.0.0  1.1 to 1.2, 1.4 to 1.5*, 1.6 to 1.29",
        "0.1.0  1.1 to 1.2, 1.4 to 1.5*, 1.6 to 1.28, 1.29 [1]",
        STARS,
        f"[1] {TORCH}",
    ]


def test_many_vllm_with_few_lmcache_are_a_line_an_lmcache() -> None:
    lines = Listing(grid(45, 1)).text()
    assert lines == [
        "LMCache  vLLM that blends with it after apply",
        "1.0      0.0.0 to 0.44.0",
    ]


def test_of_more_it_is_said_where_they_are_to_be_seen() -> None:
    (line,) = Listing(grid(11, 11)).text()
    assert "--html" in line
    assert "--markdown" in line


def test_what_blends_with_nothing_is_none() -> None:
    assert Listing(grid(1, 1, "R")).green("vllm", "0.0.0") == "none"


def test_a_source_is_told_from_the_release_of_the_same_version() -> None:
    source = pair("0.1.0", "1.0", "H", "R", sources={"vllm": "/src/vllm"})
    listing = Listing([pair("0.1.0", "1.0", "H", ""), source])
    lines = listing.text()
    assert lines[1].startswith("0.1.0           ")
    assert lines[2].startswith("0.1.0 (source)  ")
    assert lines[3] == "(source) vLLM 0.1.0: /src/vllm"
    assert listing.green("vllm", "0.1.0") == "1.0"
    assert listing.green("vllm", "0.1.0 (source)") == "none"


def test_letter_s_on_a_pair_that_blends_is_explained() -> None:
    gds = pair("0.1.0", "1.0", "HS", "")
    gds |= {"after": ["S"]}
    gds["findings"] = [{"letter": "S", "scope": "with GDS", "before": True, "after": True}]
    assert only_with_gds(gds)
    assert not only_with_gds({**gds, "ok": False})
    assert GDS in Listing([gds]).text()
    assert GDS not in Listing([pair("0.1.0", "1.0", "HS", "")]).text()
