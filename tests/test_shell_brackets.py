"""Ends of what is opened; whole words are in test_shell_words."""

from __future__ import annotations

import pytest
from kvpatch.shell_brackets import closing, found_at


@pytest.mark.parametrize(
    "inner", ["a", "a (b) c", "')'", '")"', '"$(echo ")")"', "\\)", "`)`", '"a\\")"', "((x)(y))"]
)
def test_a_bracket_is_closed_by_its_own(inner: str) -> None:
    assert closing(f"({inner}) more)", 1, "(", ")") == len(inner) + 2


@pytest.mark.parametrize("text", ["(a", "('a)", '("a)', "((a)"])
def test_what_is_not_closed_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="No closing"):
        closing(text, 1, "(", ")")
    with pytest.raises(ValueError, match="No closing"):
        found_at(text, "|", 0)
