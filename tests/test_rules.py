"""Rules: ids that stay, sentences, and values as they are shown."""

from __future__ import annotations

import re

import pytest
from kvpatch import rules
from kvpatch.rules import Finding, Fix, Level, spelt


def test_ids_and_names_are_each_there_once_and_in_order() -> None:
    ids = [rule.id for rule in rules.ALL]
    assert len({rule.name for rule in rules.ALL}) == len(ids) == len(set(ids))
    assert ids == sorted(ids)
    assert all(re.fullmatch(r"LM\d{3}", one) for one in ids)
    assert all(rule.why.endswith(".") for rule in rules.ALL)


def test_every_rule_of_the_module_is_listed() -> None:
    there = {one.id for one in vars(rules).values() if isinstance(one, rules.Rule)}
    assert there == {rule.id for rule in rules.ALL}


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


def test_fixes_say_what_they_do() -> None:
    assert Fix("rename", "a", "b").sentence == "rename a to b"
    assert Fix("set", "a", value=" # ").sentence == 'write a: " # "'
    assert Fix("remove", "a").sentence == "remove a"


def test_a_finding_can_be_less_bad_than_its_rule() -> None:
    assert Finding(rules.SEED, "x").level is Level.ERROR
    assert Finding(rules.SEED, "x", lower=Level.NOTE).level is Level.NOTE
