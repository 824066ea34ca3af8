"""Tables that share what their copies do not change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kvpatch.shell_map import SharedMap

STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef"), st.integers(0, 3)))


def test_a_name_that_is_not_there_has_nothing() -> None:
    found = SharedMap({"a": 1})
    assert (found.get("a"), found.get("b"), "a" in found, "b" in found) == (1, None, True, False)


@given(STEPS, STEPS)
def test_copies_are_as_dictionaries_are(
    before: list[tuple[bool, str, int]], after: list[tuple[bool, str, int]]
) -> None:
    one: SharedMap[int] = SharedMap()
    plain: dict[str, int] = {}
    for _, name, number in before:
        one[name] = plain[name] = number
    two, other = one.copy(), dict(plain)
    for first, name, number in after:
        (one if first else two)[name] = number
        (plain if first else other)[name] = number
    assert (dict(one.items()), dict(two.items())) == (plain, other)
    assert one.same(two) is (plain == other)
    met = one.met(two, lambda _, a, b: (a or 0) + 10 * (b or 0) if a != b else a or 0)
    for name in {*plain, *other}:
        a, b = plain.get(name), other.get(name)
        assert met.get(name) == ((a or 0) + 10 * (b or 0) if a != b else a or 0)
