"""What vLLM's options for compiling come to: ``-O``, ``-cc`` and ``--compilation-config``.

Read from ``FlexibleArgumentParser.parse_args`` and ``engine/arg_utils.py`` of every release from
0.8.5 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from .dotted_options import NotReadError, Pairs, json_of, merged
from .vllm_options import full_name

CONFIG = "compilation-config"
NAMES = frozenset({CONFIG, "cc", "O"})
_DOTTED_LEVEL = Version("0.9.2")
"""From here on -O3 is -O.level=3; before, it is --compilation-config 3, which a level may be."""
_CC = Version("0.12.0")
"""From here on -cc is the short name of --compilation-config; before, -O is."""
_NO_DOTS = Version("0.13.0")
"""From here on what stands behind -O is a level, dots and all; in 0.12 -O.KEY is -cc.KEY."""
_LEVELS = ("0", "1", "2", "3")


@dataclass(frozen=True)
class Compiling:
    """What they come to.

    Attributes:
        mode: the CUDA graph mode that they name, in capitals; None for none.
        stops: why vLLM stops at them; empty where it does not.
        option: the one at which it stops.
        objects: all that vLLM reads for the configuration, the last of which counts.
    """

    mode: str | None = None
    stops: str = ""
    option: str = ""
    objects: tuple[Mapping[str, Any], ...] = ()


def compiling(pairs: Pairs, vllm: Version | None) -> Compiling:
    """What the flags of a command come to, in the order in which vLLM has them.

    Args:
        pairs: names without dashes in front, and values.
        vllm: its release; None where it is not known, of which what any release takes is taken.
    """
    objects: list[Any] = []
    try:
        taken = list(_taken(pairs, vllm))
        for name, text in taken:
            if name in NAMES:
                objects.append(_object(name, text, vllm))
        objects += merged(taken, NAMES).values()
    except _StopsError as error:
        return Compiling(stops=error.told, option=error.option)
    except NotReadError as error:
        return Compiling(stops=f"vLLM stops at --{CONFIG}: {error}", option=CONFIG)
    mode = objects[-1].get("cudagraph_mode") if objects else None
    return Compiling(None if mode is None else str(mode).upper(), objects=tuple(objects))


class _StopsError(Exception):
    def __init__(self, option: str, told: str) -> None:
        super().__init__(told)
        self.option = option
        self.told = told


def _taken(pairs: Pairs, vllm: Version | None) -> Iterator[tuple[str, str | bool]]:
    """The options by the names that this release has for them; levels of its own left out."""
    for given, value in pairs:
        head, dot, rest = given.partition(".")
        name = full_name(head)
        if name == CONFIG:
            yield f"{head if dot else name}{dot}{rest}", value
        elif head == "cc":
            if vllm is not None and vllm < _CC:
                told = f"vLLM {vllm} has no -cc, and stops: write --{CONFIG}"
                raise _StopsError("cc", told)
            yield given, value
        elif head == "O" and dot:
            yield from _dotted(given, rest, value, vllm)
        elif head.startswith("O"):
            yield from _level(given, value, vllm)


def _dotted(
    given: str, rest: str, value: str | bool, vllm: Version | None
) -> Iterator[tuple[str, str | bool]]:
    if vllm is not None and vllm >= _NO_DOTS:
        told = f"vLLM {vllm} takes what stands behind -O for a level, and stops: write -cc.{rest}"
        raise _StopsError("O", told)
    if vllm is not None and vllm < _DOTTED_LEVEL:
        told = f"vLLM {vllm} has no dotted form of -O, and stops: write --{CONFIG} as JSON"
        raise _StopsError("O", told)
    yield given if vllm is None or vllm < _CC else f"cc.{rest}", value


def _level(given: str, value: str | bool, vllm: Version | None) -> Iterator[tuple[str, str | bool]]:
    """-O with what stands behind it, joined or apart."""
    joined = given[1:] or None
    level = joined if joined is not None else value
    if vllm is None:
        if isinstance(level, str) and level.startswith("{"):
            yield "O", level
    elif vllm < _DOTTED_LEVEL:
        yield "O", level
    elif level in _LEVELS or (joined is not None and joined.isdigit() and vllm < _CC):
        # From 0.12 on a level is no part of the configuration.
        if vllm < _CC:
            yield "O.level", level
    elif vllm < _CC and joined is None:
        yield "O", level
    else:
        right = f"-cc or --{CONFIG}" if vllm >= _CC else f"--{CONFIG}"
        told = f"vLLM {vllm} takes a level from 0 to 3 behind -O alone, and stops: write JSON "
        raise _StopsError("O", f"{told}behind {right}")


def _object(name: str, text: str | bool, vllm: Version | None) -> Any:
    shown = f"--{name}" if name == CONFIG else f"-{name}"
    if text in _LEVELS and (vllm is None or vllm < _DOTTED_LEVEL):
        return {}
    told = f"vLLM stops at {shown}"
    if not isinstance(text, str):
        raise _StopsError(name, f"{told} without a value")
    right = """write '{"cudagraph_mode": "PIECEWISE"}' or so"""
    if text in _LEVELS:
        raise _StopsError(name, f"{told} {text}: a level is -O{text}")
    try:
        found = json_of(text)
    except NotReadError as error:
        raise _StopsError(name, f"{told}: {error}; {right}") from None
    if not isinstance(found, dict):
        raise _StopsError(name, f"{told}: it is not a JSON object; {right}")
    return found
