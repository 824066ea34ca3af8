from __future__ import annotations

import pytest
from kvpatch.diagnosis import State, fail, not_checked, ok, warn


@pytest.mark.parametrize(
    ("check", "word", "todo"),
    [
        (ok("file", "it is there"), "ok", ""),
        (warn("file", "it is old", "renew it"), "warn", "renew it"),
        (fail("file", "it is gone", "write it"), "fail", "write it"),
        (not_checked("file", "none was named"), "not checked", ""),
        (not_checked("file", "none was named", "name one"), "not checked", "name one"),
    ],
)
def test_a_check_says_how_it_stands_and_what_to_do(check, word: str, todo: str) -> None:  # type: ignore[no-untyped-def]
    assert (check.name, check.state, check.todo) == ("file", word, todo)
    assert State(word) is check.state
