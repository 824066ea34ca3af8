"""What is left of two places that lead to one."""

from __future__ import annotations

import pytest
from kvpatch.script_path import UNKNOWN
from kvpatch.shell_state import State, below, joined


def test_only_what_is_the_same_stays_known() -> None:
    one = State({"A": ("1",), "B": ("1",)}, folder="/a", exported=frozenset({"A", "B"}))
    two = State({"A": ("1",), "B": ("2",), "C": ("3",)}, folder="/b", exported=frozenset({"A"}))
    found = joined([one, two])
    assert (found.variables, found.folder, found.exported) == (
        {"A": ("1",)},
        UNKNOWN,
        frozenset({"A"}),
    )
    assert joined([one, one.copy()]).folder == "/a"


def test_a_copy_goes_on_alone() -> None:
    one = State({"A": ("1",)})
    one.copy().forget("A")
    assert one.environ == {"A": "1"}


@pytest.mark.parametrize(
    ("folder", "target", "found"),
    [
        (None, None, None),
        (None, "a", "a"),
        ("/s", "a", "/s/a"),
        (UNKNOWN, "a", UNKNOWN),
        (UNKNOWN, "/a", "/a"),
        ("/s", UNKNOWN, UNKNOWN),
    ],
)
def test_folders_are_joined_where_both_are_known(
    folder: str | None, target: str | None, found: str | None
) -> None:
    assert below(folder, target) == found
