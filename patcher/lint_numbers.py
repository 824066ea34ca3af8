"""Rules about numbers: the unit of a size, and what no key of its kind can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import rules
from .coercion import Seen
from .lint_context import Context
from .rules import Finding, Fix, Level
from .schema import Unknown
from .secrecy import shown

MIB = 2**20
GIB = 2**30
UNITS: Mapping[str, int] = {
    "gds_buffer_size": MIB,
    "cufile_buffer_size": MIB,
    "max_local_cpu_size": GIB,
    "max_local_disk_size": GIB,
    "reserve_local_cpu_size": GIB,
    "lazy_memory_safe_size": GIB,
    "max_hidden_state_cpu_size": GIB,
    "maru_pool_size": GIB,
    "nixl_buffer_size": 1,
    "pd_buffer_size": 1,
}
"""Bytes in the unit of each size, as the code of the releases multiplies it."""

_UNIT_NAMES = {1: "bytes", MIB: "MiB", GIB: "GiB"}
_ASKED = {MIB: "TiB", GIB: "PiB"}
# So many MiB or GiB have no GPU and no host: it is a number of bytes. So few bytes hold no chunk.
_MOST = 2**20
_SHARES = ("blend_recompute_ratios", "blend_recompute_ratio")
_LEAST = {"chunk_size": 1, "blend_check_layers": 0}
_PORTS = ("_port", "_ports", "_port_start")
_LAST_PORT = 65535
_PERCENT = 100
# As GiB these are a buffer's usual sizes. As MiB the first is less than a prompt of most models
# takes; shared out over ranks, short ones take less than that.
_FEW_MIB = 64
_FEWER_MIB = 16


def sizes(context: Context) -> Iterator[Finding]:
    """Sizes in another unit than the key's."""
    for seen in _written(context):
        unit = UNITS.get(seen.name)
        if unit is None or not _is_number(seen.value):
            continue
        number = shown(seen.name, seen.value)
        if unit == 1 and 0 < seen.value < _MOST:
            told = f"{seen.name} is in bytes: {number} bytes hold no chunk"
            yield context.found(rules.BYTES, told, seen.name)
        elif unit > 1 and seen.value >= _MOST:
            yield _bytes(context, seen, unit)
        elif unit == MIB and 0 < seen.value < _FEW_MIB:
            needed = context.prompt_mib() if context.prompt_mib else None
            if needed is None and seen.value < _FEWER_MIB:
                told = f"{seen.name} is in MiB, and {number} MiB hold but short prompts of most "
                told += f"models: write {seen.value * (GIB // MIB)} if {number} GiB are meant"
                yield context.found(rules.BYTES, told, seen.name, lower=Level.WARNING)
            elif needed is not None and seen.value < needed:
                told = f"{seen.name} is in MiB, and the longest prompt of the model takes {needed} "
                told += f"MiB on a rank: write {needed}"
                yield context.found(rules.BYTES, told, seen.name, lower=Level.WARNING)


def impossible(context: Context) -> Iterator[Finding]:
    """Numbers outside of what their key can be."""
    for seen in _written(context):
        numbers = seen.value if isinstance(seen.value, list) else [seen.value]
        for number in numbers:
            told = _refused(seen.name, number) if _is_number(number) else ""
            if told:
                yield context.found(rules.IMPOSSIBLE, told, seen.name)
                break


def blending(context: Context) -> Iterator[Finding]:
    """Numbers of blending that don't go together."""
    if not context.blends:
        return
    ratios, layers = (
        context.value(f"blend_{name}") for name in ("recompute_ratios", "check_layers")
    )
    if isinstance(ratios, list) and isinstance(layers, list) and len(ratios) > 1:
        plural = "s" * (len(layers) != 1)
        told = (
            f"blend_recompute_ratios has {len(ratios)} numbers for {len(layers)} check layer"
            f"{plural}: LMCache takes the first ({shown('', ratios[0])}) alone"
        )
        yield context.found(rules.APART, told, "blend_recompute_ratios")
    several = isinstance(layers, list) and len({one for one in layers if _is_number(one)}) > 1
    if several and not (isinstance(ratios, list) and ratios and ratios[0] == 1):
        told = (
            f"blend_check_layers is {shown('', layers)}: {rules.SECOND} that the model has; "
            "write one"
        )
        yield context.found(rules.TWO_LAYERS, told, "blend_check_layers")
    if context.is_set("blend_min_tokens"):
        told = "no LMCache up to 0.5.7rc2 looks at blend_min_tokens: leave it out"
        yield context.found(rules.NO_EFFECT, told, "blend_min_tokens", lower=Level.NOTE)


def _written(context: Context) -> Iterator[Seen]:
    for seen in context.effective.values.values():
        if seen.source != "default" and not isinstance(seen.value, Unknown):
            yield seen


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bytes(context: Context, seen: Seen, unit: int) -> Finding:
    name = _UNIT_NAMES[unit]
    whole = seen.value % unit == 0
    right = type(seen.value)(seen.value // unit)
    told = f"{seen.name} is in {name}: {seen.value:.0f} asks for {seen.value / MIB:,.0f} "
    told += f"{_ASKED[unit]}; "
    told += f"{seen.value:.0f} bytes are {right:.0f} {name}" if whole else f"give it in {name}"
    fix = Fix("set", seen.given_as or seen.name, value=right) if whole else None
    return context.found(rules.BYTES, told, seen.name, fix=fix)


def _refused(name: str, number: float) -> str:
    """Why a key can't be that number; empty where it can."""
    if name in _SHARES:
        if 0 <= number <= 1:
            return ""
        told = f"{name} takes shares from 0 to 1, and not {number:g}"
        percent = 1 < number <= _PERCENT
        return told + (f"; {number:g} % are {number / _PERCENT:g}" if percent else "")
    if name.endswith(_PORTS):
        return "" if 0 <= number <= _LAST_PORT else f"{name}: {shown(name, number)} is no port"
    least = 0 if name in UNITS else _LEAST.get(name)
    # Not less than would let a number through that is none.
    if least is None or number >= least:
        return ""
    return f"{name} must be {least} or more, and is {shown(name, number)}"
