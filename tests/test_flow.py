from __future__ import annotations

from kvpatch.flow import Flow, State


def test_a_name_is_known_until_it_is_bound_to_something_unknown() -> None:
    state = State().bind("model", "bare model")
    assert state.value("model") == "bare model"
    assert state.bind("model", None).value("model") is None
    assert State().value("model") is None


def test_adding_a_fact_twice_is_adding_it_once() -> None:
    state = State().add("created")
    assert state.add("created") is state
    assert state.facts == {"created"}


def test_states_are_equal_whatever_the_order_in_which_they_came_to_be() -> None:
    one = State().bind("a", "1").bind("b", "2").add("x").add("y")
    other = State().add("y").add("x").bind("b", "2").bind("a", "1")
    assert one == other
    assert len({one, other}) == 1


def test_merging_takes_all_ways_to_end_and_leaving_all_but_the_last_statement() -> None:
    a, b, c, d = (State().add(name) for name in "abcd")
    other = Flow(falls={a}, returns={b}, breaks={c}, continues={d})
    merged, left = Flow(), Flow()
    merged.merge(other)
    left.leave(other)
    assert merged == other
    assert left == Flow(returns={b}, breaks={c}, continues={d})
