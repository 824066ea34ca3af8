"""What options of vLLM's that bear on LMCache come to, by release.

Read from ``engine/arg_utils.py``, ``config/cache.py`` and ``config/vllm.py`` of every release from
0.8.5 to 0.33.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

Flags = Mapping[str, "str | bool"]

OFFLOADING = ("kv-offloading-backend", "kv-offloading-size")
UTILIZATION = ("gpu-memory-utilization", "device-memory-utilization")
VALUELESS = (
    "enable-prefix-caching",
    "no-enable-prefix-caching",
    "enforce-eager",
    "no-enforce-eager",
)
_OFFLOADING_SINCE = Version("0.11.1")
_SIZE_ALONE = Version("0.14.0")
"""From here on the size turns it on; before, the backend does and then wants the size."""
_OWN_SERVER = Version("0.23.0")
"""From here on the backend lmcache is LMCache's server, before its connector in vLLM's process."""
_LEVELS = Version("0.12.0")
"""From here on a level chooses the graphs: 0 none, 1 piecewise; before, it is one of compiling."""
_ALIAS = Version("0.31.0")
_HIGHER = Version("0.20.0")


SHORTEST = {
    "kv-transfer-config": "kv-t",
    "compilation-config": "com",
    "tensor-parallel-size": "te",
    "pipeline-parallel-size": "pi",
    "gpu-memory-utilization": "gp",
    "enable-prefix-caching": "enable-pre",
    "no-enable-prefix-caching": "no-enable-pre",
    "enforce-eager": "enf",
    "no-enforce-eager": "no-enf",
    "kv-offloading-size": "kv-offloading-s",
    "kv-offloading-backend": "kv-offloading-b",
    "optimization-level": "op",
    "attention-backend": "attention-b",
    "attention-config": "attention-c",
}
"""So much of a name is no other option's in any release, which argparse takes for the whole."""


@dataclass(frozen=True)
class Offloads:
    """What the options for offloading come to.

    Attributes:
        chooses: whether they choose a connector; None where that hangs on vLLM's release.
        lmcache: whether that may be LMCache's in vLLM's process.
        stops: why vLLM stops at them; empty where it does not.
    """

    chooses: bool | None = False
    lmcache: bool = False
    stops: str = ""


def full_name(name: str) -> str:
    """An option by the beginning of its name, what stands behind a dot left as it is.

    Args:
        name: without dashes in front, and with none of underscores before the dot.
    """
    head, dot, tail = name.partition(".")
    for option, shortest in SHORTEST.items():
        if option.startswith(head) and head.startswith(shortest):
            return option + dot + tail
    return name


def offloads(flags: Flags, vllm: Version | None) -> Offloads:
    """What ``--kv-offloading-backend`` and ``--kv-offloading-size`` come to."""
    backend, size = (flags.get(name) for name in OFFLOADING)
    if backend in (None, "None") and size in (None, "None"):
        return Offloads()
    if vllm is not None and vllm < _OFFLOADING_SINCE:
        told = f"vLLM {vllm} has no such option: give --kv-transfer-config alone"
        return Offloads(stops=told)
    both = backend not in (None, "None") and size not in (None, "None")
    in_process = backend == "lmcache" and (vllm is None or vllm < _OWN_SERVER)
    if both:
        return Offloads(True, in_process)
    if vllm is None:
        return Offloads(None, in_process)
    if vllm >= _SIZE_ALONE:
        return Offloads(size not in (None, "None"))
    if size in (None, "None"):
        told = f"vLLM {vllm} stops at --{OFFLOADING[0]} without --{OFFLOADING[1]}"
        return Offloads(stops=f"{told}: give --kv-transfer-config alone")
    return Offloads()


def level(flags: Flags) -> str | None:
    """The optimization level that was given last, in any form."""
    found = None
    for name, value in flags.items():
        joined = re.fullmatch(r"O(\d)", name)
        if joined:
            found = joined[1]
        elif name in ("O", "optimization-level") and re.fullmatch(r"\d", str(value)):
            found = str(value)
    return found


def level_is_safe(level: str | None, vllm: Version | None) -> bool | None:
    """Whether that level leaves no full CUDA graphs; None where that can't be said."""
    if level not in ("0", "1"):
        return None if level == "2" and vllm is not None and vllm < _LEVELS else False
    return True if vllm is not None and vllm >= _LEVELS else None


def utilization(flags: Flags, vllm: Version | None) -> tuple[str, str | None]:
    """The option for the share of the GPU's memory, as it was given last, and its text."""
    names = UTILIZATION if vllm is None or vllm >= _ALIAS else UTILIZATION[:1]
    given = [(name, text) for name, text in flags.items() if name in names]
    name, text = given[-1] if given else (UTILIZATION[0], None)
    return name, text if isinstance(text, str) else None


def default_utilization(vllm: Version | None) -> float:
    """The share that vLLM takes where none is given; a newer one's where it is not known."""
    return 0.9 if vllm is not None and vllm < _HIGHER else 0.92


def is_no_number(text: str) -> bool:
    """Whether Python makes no float of a text which no shell has still to put together."""
    if re.search(r"[$`]", text):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False
