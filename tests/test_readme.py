from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kvpatch import series
from kvpatch.compat import MEANINGS
from kvpatch.pairs import load
from kvpatch.patch import STATIC
from kvpatch.readme import (
    ABOUT_PAIRS,
    BEGIN,
    END,
    LETTERS_BEGIN,
    LETTERS_END,
    UNPATCHED,
    letter_table,
    patch_table,
    with_pair_table,
    with_tables,
)

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_readme_holds_the_table_of_the_patches_as_they_are() -> None:
    text = README.read_text()
    assert with_tables(text, series.discover()) == text, "run `make generate`"


def test_the_readme_holds_the_table_of_pairs_and_what_it_is_about() -> None:
    text = README.read_text()
    assert with_pair_table(text, load()) == text, "run `make generate`"
    assert ABOUT_PAIRS in text
    assert "needs another build of LMCache, or `--no-deps`" in ABOUT_PAIRS
    assert "only with GDS" in ABOUT_PAIRS


def test_the_table_has_a_row_for_each_patch_with_its_reasons() -> None:
    members = series.discover().members
    rows = patch_table(series.discover()).splitlines()
    assert len(rows) == 2 + len(members)
    for member, row in zip(members, rows[2:], strict=True):
        for value in (member.id, member.patch.versions, member.patch.why, member.patch.how):
            assert value in row


def test_every_letter_has_a_row_with_its_patches_or_why_there_is_none() -> None:
    members = series.discover().members
    rows = letter_table(series.discover()).splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(MEANINGS)
    for letter, row in zip(MEANINGS, rows, strict=True):
        cures = [member.patch for member in members if letter in member.patch.cures]
        assert UNPATCHED.get(letter, "") in row
        assert cures or UNPATCHED[letter]
        for patch in cures:
            assert f"{patch.id}: {patch.distribution} `{patch.versions}`" in row
            assert f"{patch.id}: {patch.proved}" in row


def test_a_letter_that_a_patch_cures_is_not_called_uncured() -> None:
    cured = {letter for m in series.discover().members for letter in m.patch.cures}
    assert not any(UNPATCHED[letter].startswith("no patch") for letter in cured & UNPATCHED.keys())


def test_a_letter_that_nothing_is_said_of_is_an_error() -> None:
    with pytest.raises(ValueError, match="what becomes of H"):
        letter_table(series.Series(()))


def test_what_was_not_run_is_called_static() -> None:
    table = letter_table(series.Series(tuple(_unproved())))
    assert f"| KV001: {STATIC}<br>KV002: {STATIC} |" in table


def _unproved() -> list[series.Member]:
    return [
        replace(member, patch=replace(member.patch, proved=STATIC))
        for member in series.discover().members
    ]


def test_the_tables_are_put_between_the_marks_and_nothing_else_changes() -> None:
    letters = f"{LETTERS_BEGIN}\nold\n{LETTERS_END}"
    made = with_tables(f"before\n{BEGIN}\nold\n{END}\nafter\n{letters}", series.discover())
    assert made.startswith(f"before\n{BEGIN}\n| patch")
    assert f"{END}\nafter\n{LETTERS_BEGIN}\n| letter" in made
    assert made.endswith(LETTERS_END)
    assert "\nold\n" not in made


@pytest.mark.parametrize("text", ["", BEGIN, f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}"])
def test_a_readme_without_its_marks_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="each mark"):
        with_tables(text, series.discover())
