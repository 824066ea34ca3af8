from __future__ import annotations

from pathlib import Path

import pytest
from kvpatch import series
from kvpatch.readme import BEGIN, END, patch_table, with_patch_table

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_readme_holds_the_table_of_the_patches_as_they_are() -> None:
    text = README.read_text()
    assert with_patch_table(text, series.discover()) == text, "run `make generate`"


def test_the_table_has_a_row_for_each_patch_with_its_reasons() -> None:
    members = series.discover().members
    rows = patch_table(series.discover()).splitlines()
    assert len(rows) == 2 + len(members)
    for member, row in zip(members, rows[2:], strict=True):
        for value in (member.id, member.patch.versions, member.patch.why, member.patch.how):
            assert value in row


def test_the_table_is_put_between_the_marks_and_nothing_else_changes() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    made = with_patch_table(text, series.discover())
    assert made.startswith(f"before\n{BEGIN}\n| patch")
    assert made.endswith(f"{END}\nafter\n")
    assert "\nold\n" not in made


@pytest.mark.parametrize("text", ["", BEGIN, f"{BEGIN}{BEGIN}{END}"])
def test_a_readme_without_its_marks_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="each mark"):
        with_patch_table(text, series.discover())
