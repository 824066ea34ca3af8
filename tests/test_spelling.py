"""Values and texts as messages have them."""

from __future__ import annotations

import pytest
from kvpatch.spelling import spelt


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true"),
        (None, "null"),
        ("plain", "plain"),
        (" # # ", '" # # "'),
        ("a\nb", '"a\\nb"'),
        (5.0, "5.0"),
        ([1], "[1]"),
        pytest.param(10**5000, "a number of too many digits", id="long"),
    ],
)
def test_a_value_is_shown_on_one_line(value: object, shown: str) -> None:
    assert spelt(value) == shown


def test_a_long_value_is_shortened() -> None:
    assert len(spelt("x" * 500)) == 80
    assert spelt("x" * 500).endswith("...")
