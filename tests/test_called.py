from __future__ import annotations

import ast

import pytest
from kvpatch.called import happenings, names_used, relevant_inside


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("f(g())", ["g", "f"]),
        ("f() and g()", ["f", "g?"]),
        ("f() or g() or h()", ["f", "g?", "h?"]),
        ("f() if g() else h()", ["g", "f?", "h?"]),
        ("[f() for x in g()]", ["f?", "g?"]),
        ("{f(): g() for x in y}", ["f?", "g?"]),
        ("f() < g() < h()", ["f", "g", "h?"]),
        ("(f() and g(h()))", ["f", "h?", "g?"]),
        ("x.f(y.g())", ["g", "f"]),
        ("1 + 2", []),
    ],
)
def test_calls_come_inside_out_and_say_whether_they_surely_happen(
    text: str, calls: list[str]
) -> None:
    found = []
    for node, certain in happenings(_expression(text)):
        assert isinstance(node, ast.Call)
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        found.append(name if certain else f"{name}?")
    assert sorted(found) == sorted(calls)
    assert [name for name in found if "?" not in name] == [n for n in calls if "?" not in n]


def test_a_walrus_happens_after_the_call_it_binds() -> None:
    kinds = [type(node).__name__ for node, _ in happenings(_expression("(x := f())"))]
    assert kinds == ["Call", "NamedExpr"]


def test_a_lambda_is_told_and_not_looked_into() -> None:
    found = list(happenings(_expression("map(lambda: f(), y)")))
    assert [type(node).__name__ for node, _ in found] == ["Lambda", "Call"]
    assert [certain for _, certain in found] == [False, True]


def test_names_are_those_read_called_or_passed_on() -> None:
    node = ast.parse("a.b(c, key=self.d.e)[f] = g")
    assert names_used(node) == {"a", "b", "c", "self", "d", "e", "f", "g"}
    assert names_used(node, own=True) == {"a", "c", "self", "d", "f", "g"}


@pytest.mark.parametrize(
    ("text", "found"),
    [("lambda: mark()", True), ("lambda: other(mark)", True), ("lambda: other()", False)],
)
def test_what_matters_inside_a_lambda_is_found(text: str, found: bool) -> None:
    assert relevant_inside(_expression(text), "mark".__eq__) is found


def test_what_stands_outside_an_inner_function_is_not_inside_one() -> None:
    assert not relevant_inside(_expression("mark()"), "mark".__eq__)
