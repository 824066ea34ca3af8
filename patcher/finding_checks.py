"""A doctor's rows for what the rules of lint found in a configuration."""

from __future__ import annotations

from .diagnosis import Check, State
from .lint_combinations import NOT_LOOKED
from .rules import Finding, Level

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
    if finding.path:
        return f"change {f'line {finding.line} of ' if finding.line else ''}{finding.path}"
    if finding.source == "launch":
        return "change the command that starts vLLM"
    if finding.source == "environment":
        key = finding.key or "it"
        variable = f"LMCACHE_{key.upper()}" if key.islower() and finding.key else key
        return f"change {variable} in the environment that vLLM is started with"
    if finding.line:
        return f"change {finding.key or 'it'} in line {finding.line} of the file"
    return f"write {finding.key or 'it'} into the file"
