"""A doctor's rows for what the rules of lint found in a configuration."""

from __future__ import annotations

import re

from . import rules
from .diagnosis import Check, State
from .lint_hashing import NOT_LOOKED
from .rules import Finding, Level

_THERE = "in the environment that vLLM is started with"
# By what the rule is about, wherever the key that it names was written.
_BY_RULE = {
    rules.SEED: "start every vLLM process with PYTHONHASHSEED=0",
    rules.STOPS: "change the value that LMCache names there",
    rules.TURNED: "write what LMCache makes of it, or leave it out",
    rules.STRIPPED: f"set LMCACHE_BLEND_SPECIAL_STR so {_THERE}",
    rules.NO_TIER: "turn local_cpu on, or give another tier, such as gds_path",
    rules.OTHER_FILE: f"set LMCACHE_CONFIG_FILE to this file {_THERE}",
    rules.IGNORED: "write the key into the file instead",
    rules.LOOK_ALIKE: f"give the variable its right name {_THERE}, or leave it out",
    rules.WITHHELD: "export it to vLLM's own process in what starts vLLM",
    rules.SERVE_UNKNOWN: "write the options out, or look at them with `kvpatch lint --serve`",
}
# The key to set is the one that the message asks for, and often another than it is about.
_ASKING = (rules.LAYERWISE, rules.CHOICE, rules.UNFULL, rules.NO_BUFFER, rules.TWO_TIERS)
_ASKED = re.compile(r"\b(?:needs|set) (\w+)")
_STATES = {Level.ERROR: State.FAIL, Level.WARNING: State.WARN, Level.NOTE: State.NOTE}


def finding_check(finding: Finding) -> Check:
    """One finding as a row: what is wrong and what comes of it, and what to do."""
    name = f"{finding.rule.id} {finding.key}".strip()
    told = finding.message
    if told.endswith(NOT_LOOKED):
        told = f"{told.removesuffix(NOT_LOOKED)}. {finding.rule.why}"
        return Check(name, State.NOT_CHECKED, told, "give --pid PID to have it checked")
    if finding.todo:
        told = told.removesuffix(f": {finding.todo}")
    reason = f"{told}. {finding.rule.why}"
    return Check(name, _STATES[finding.level], reason, _todo(finding))


def _todo(finding: Finding) -> str:
    if finding.todo:
        return finding.todo
    if finding.fix:
        return finding.fix.sentence
    if finding.level is Level.NOTE:
        return ""
    if finding.rule in _BY_RULE:
        return _BY_RULE[finding.rule]
    asked = _ASKED.search(finding.message) if finding.rule in _ASKING else None
    if asked:
        return _set(asked[1], finding)
    if finding.rule is rules.UNFULL:
        return "take LMCache 0.3.9.post1 or newer"
    if finding.path:
        return f"change {f'line {finding.line} of ' if finding.line else ''}{finding.path}"
    if finding.source == "launch":
        return "change the command that starts vLLM"
    if finding.source == "environment":
        key = finding.key or "it"
        variable = f"LMCACHE_{key.upper()}" if key.islower() and finding.key else key
        return f"change {variable} in the environment that vLLM is started with"
    if finding.line:
        # Without a certain fix, what is there under another name has its value at the right place.
        verb = "remove" if finding.rule in (rules.DEPRECATED, rules.MISPLACED) else "change"
        return f"{verb} {finding.key or 'it'} in line {finding.line} of the file"
    if not finding.key:
        return "mend the file; `kvpatch profile` makes a right one"
    return f"write {finding.key} into the file"


def _set(name: str, finding: Finding) -> str:
    """To set a key, where the configuration that lacks it is written."""
    if finding.source == "environment":
        return f"set LMCACHE_{name.upper()} {_THERE}"
    if finding.source == "launch":
        return f"give lmcache.{name} where lmcache.{finding.key} is given"
    return f"write {name} into the file"
