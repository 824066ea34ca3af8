"""Rules: ids that stay, and sentences."""

from __future__ import annotations

import re

from kvpatch import rules
from kvpatch.rules import Finding, Fix, Level


def test_ids_and_names_are_each_there_once_and_in_order() -> None:
    ids = [rule.id for rule in rules.ALL]
    assert len({rule.name for rule in rules.ALL}) == len(ids) == len(set(ids))
    assert ids == sorted(ids)
    assert all(re.fullmatch(r"LM\d{3}", one) for one in ids)
    assert all(rule.why.endswith(".") for rule in rules.ALL)


def test_every_rule_of_the_module_is_listed() -> None:
    there = {one.id for one in vars(rules).values() if isinstance(one, rules.Rule)}
    assert there == {rule.id for rule in rules.ALL}


def test_fixes_say_what_they_do() -> None:
    assert Fix("rename", "a", "b").sentence == "rename a to b"
    assert Fix("set", "a", value=" # ").sentence == 'write a: " # "'
    assert Fix("remove", "a").sentence == "remove a"
    assert Fix("set", "remote_url", value="redis://u:p@h").sentence.endswith('"redis://***@h"')


def test_a_finding_can_be_less_bad_than_its_rule() -> None:
    assert Finding(rules.SEED, "x").level is Level.ERROR
    assert Finding(rules.SEED, "x", lower=Level.NOTE).level is Level.NOTE
