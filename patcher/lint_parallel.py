"""Rules about blending in an engine of several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from . import rules
from .lint_context import PIPELINE, TENSOR, Context
from .rules import Finding, Level, Rule

_RULES = ((TENSOR, rules.TENSOR_PARALLEL), (PIPELINE, rules.PIPELINE_PARALLEL))
_TODO = (
    "give 1 (--data-parallel-size takes more GPUs: each of its engines blends by itself), or turn "
    "enable_blending off"
)


def ranks(context: Context) -> Iterator[Finding]:
    """What the command says of ranks, where blending is on."""
    given = context.launch
    if given is None or not context.blends:
        return
    for option, rule in _RULES:
        count = context.parallel(option)
        if count > 1:
            yield _found(context, rule, f"--{option} is {count}, and LMCache blends on one rank")
        elif given.is_unread(option):
            told = f"--{option} is not known here, and LMCache blends on one rank"
            yield _found(context, rule, told, Level.WARNING)


def _found(context: Context, rule: Rule, told: str, lower: Level | None = None) -> Finding:
    found = Finding(rule, f"{told}: {_TODO}", "", "launch", lower=lower, todo=_TODO)
    option = next(option for option, one in _RULES if one is rule)
    origin = context.launch.origin(option) if context.launch else None
    if origin is None or not origin.path:
        return found
    return replace(found, path=origin.path, line=origin.line, column=origin.column)
