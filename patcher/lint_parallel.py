"""Rules about an engine of several ranks, or of several adapters."""

from __future__ import annotations

from collections.abc import Iterator

from . import rules
from .lint_context import CONTEXT, PIPELINE, TENSOR, Context, placed
from .rules import Finding, Level, Rule

_ONE = (
    "give 1 (--data-parallel-size takes more GPUs: each of its engines blends by itself), or turn "
    "enable_blending off"
)
_UNKNOWN = "is not known here"
_LORA = "enable-lora"


def ranks(context: Context) -> Iterator[Finding]:
    """What the command says of ranks, where blending is on."""
    if context.launch is None or not context.blends:
        return
    tensor, pipeline = _told(context, TENSOR), _told(context, PIPELINE)
    if tensor:
        yield from _tensor(context, tensor)
    if pipeline:
        told = f"--{PIPELINE} {pipeline}, and LMCache blends a model in one piece alone"
        lower = Level.WARNING if pipeline == _UNKNOWN else None
        yield _found(context, rules.PIPELINE_PARALLEL, PIPELINE, told, _ONE, lower)


def slices(context: Context) -> Iterator[Finding]:
    """What the command says of ranks that each hold a part of a prompt, where LMCache is used."""
    if context.launch is None or not (context.blends or context.launch.in_process):
        return
    number = _told(context, CONTEXT)
    if number:
        told = f"--{CONTEXT} {number}, and LMCache's connector wants every token on each rank"
        lower = Level.WARNING if number == _UNKNOWN else None
        yield _found(context, rules.CONTEXT_PARALLEL, CONTEXT, told, "leave it out", lower)


def adapters(context: Context) -> Iterator[Finding]:
    """What the command says of LoRA, where LMCache is used."""
    given = context.launch
    if given is None or not given.on(_LORA) or not (context.blends or given.in_process):
        return
    if context.blends:
        told, todo = f"blending does not go with --{_LORA}", "leave one of the two out"
        yield _found(context, rules.LORA, _LORA, told, todo, None)
    else:
        told = f"with --{_LORA} adapters share what LMCache keeps"
        todo = "serve each adapter by an engine with a cache of its own, or none but one adapter"
        yield _found(context, rules.LORA, _LORA, told, todo, Level.WARNING)


def _tensor(context: Context, number: str) -> Iterator[Finding]:
    rule, agree = rules.TENSOR_PARALLEL, context.ranks_agree and context.ranks_agree()
    told = f"--{TENSOR} {number}"
    if context.ranks_agree is None or agree is None:
        told += ", and that ranks recompute the same tokens needs KV012"
        todo = "see `kvpatch status` whether it is in place"
        yield _found(context, rule, TENSOR, told, todo, Level.WARNING)
    elif not agree:
        told += ", and here the patch is missing by which ranks recompute the same tokens (KV012)"
        lower = Level.WARNING if number == _UNKNOWN else None
        yield _found(context, rule, TENSOR, told, "run `kvpatch apply`", lower)


def _told(context: Context, option: str) -> str:
    """What an option that counts ranks says; empty where it says one."""
    count = context.parallel(option)
    if count > 1:
        return f"is {count}"
    return _UNKNOWN if context.launch and context.launch.is_unread(option) else ""


def _found(
    context: Context, rule: Rule, option: str, told: str, todo: str, lower: Level | None
) -> Finding:
    found = Finding(rule, f"{told}: {todo}", "", "launch", lower=lower, todo=todo)
    return placed(found, context.launch.origin(option) if context.launch else None)
