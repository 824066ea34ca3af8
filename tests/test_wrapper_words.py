"""Words that belong to the programs in front."""

from __future__ import annotations

import pytest
from kvpatch.wrapper_words import values


@pytest.mark.parametrize(
    ("front", "found"),
    [
        ("timeout -s KILL 5", "-s KILL 5"),
        ("taskset -c 0-3", "-c 0-3"),
        ("env -u A B=1", "-u A B=1"),
        ("nohup setsid", ""),
        ("nice -n 5 own -n 5", "-n 5"),
        ("flock /lock timeout 5", "/lock 5"),
    ],
)
def test_options_operands_and_assignments_are_no_programs(front: str, found: str) -> None:
    words = front.split()
    assert " ".join(words[place] for place in sorted(values(words, words))) == found
