"""What vLLM's class KVTransferConfig takes, and stops at, by release.

Read from ``config/kv_transfer.py``, before 0.10.2 from ``config.py``, of every release from 0.8.5
to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from .connector_names import OLD_ENGINE, is_judged, is_known, span
from .kv_connector import children
from .lifespan import Lifespan, lives
from .rules import Level, one_line
from .secrecy import shown

ROLES = ("kv_producer", "kv_consumer", "kv_both")
FIELDS: Mapping[str, Lifespan] = {
    "kv_connector": (None, None),
    "kv_buffer_device": (None, None),
    "kv_role": (None, None),
    "kv_port": (None, None),
    "kv_connector_extra_config": (None, None),
    "engine_id": (Version("0.9.0"), None),
    "kv_connector_module_path": (Version("0.9.0"), None),
    "enable_permute_local_kv": (Version("0.11.1"), None),
    "kv_load_failure_policy": (Version("0.13.0"), None),
    "kv_buffer_size": (None, Version("0.32.0")),
    "kv_rank": (None, Version("0.32.0")),
    "kv_parallel_size": (None, Version("0.32.0")),
    "kv_ip": (None, Version("0.32.0")),
}
"""Each with the release that brought it and the one that has it no longer."""
FORBIDS = Version("0.16.0")
"""From here on vLLM stops at a field that it does not have; before, most leave it unread."""

_WHOLE = frozenset({"kv_port", "kv_rank", "kv_parallel_size"})
_TEXTS = frozenset({"kv_ip", "engine_id", "kv_buffer_device", "kv_connector_module_path"})
_EMPTY = frozenset({"engine_id", "kv_connector_module_path"})
"""Those that may be null."""
_POLICIES = ("recompute", "fail")
_TRUTHS = frozenset(
    {"true", "false", "t", "f", "1", "0", "yes", "no", "y", "n", "on", "off", "1.0", "0.0"}
)


@dataclass(frozen=True)
class Fault:
    """What is wrong with it; ``level`` is error where vLLM stops."""

    message: str
    level: Level = Level.ERROR


def faults(transfer: Mapping[str, Any], vllm: Version | None, within: str = "") -> Iterator[Fault]:
    """What vLLM stops at, or does not read, inside of MultiConnector too.

    Args:
        transfer: the connector's configuration; one without a connector is not looked at.
        vllm: its release; None where it is not known.
        within: names the connector inside another one.
    """
    name = transfer.get("kv_connector")
    if name is None:
        return
    if not isinstance(name, str):
        yield Fault(f"vLLM stops at kv_connector {shown('', name)}{within}: it is a name")
        return
    if not transfer.get("kv_connector_module_path") and is_judged(name):
        yield from _name(name, vllm, within)
    role = transfer.get("kv_role")
    right = 'write "kv_role": "kv_both"'
    if role is None:
        yield Fault(f"vLLM stops: kv_role is missing{within}; {right}")
    elif role not in ROLES:
        yield Fault(f"vLLM stops at kv_role {shown('', role)}{within}; {right}")
    extra = transfer.get("kv_connector_extra_config", {})
    if not isinstance(extra, dict):
        name = "kv_connector_extra_config"
        told = f"vLLM stops at {name} {shown(name, extra)}{within}"
        yield Fault(f"{told}: it is an object")
    for key, value in transfer.items():
        unknown = list(_unknown(str(key), vllm, within))
        yield from unknown
        right = "" if unknown else _wanted(str(key), value)
        if right:
            told = f"vLLM stops at {key} {shown(str(key), value)}{within}"
            yield Fault(f"{told}: it is {right}")
    for place, one in children(transfer):
        yield from faults(one, vllm, f" of the connector {place + 1} inside MultiConnector")


def _name(name: str, vllm: Version | None, within: str) -> Iterator[Fault]:
    """What is wrong with the name of a connector for which no module is named."""
    known = is_known(name, vllm)
    told = f"kv_connector {shown('', name)}{within}"
    right = "write LMCacheConnectorV1, or name its module in kv_connector_module_path"
    if known is None:
        lower = Level.WARNING if name == OLD_ENGINE else Level.NOTE
        yield Fault(f"{told} is one that vLLM knows {span(name)} alone", lower)
    elif not known:
        which = f"vLLM {vllm}" if vllm else "vLLM"
        yield Fault(f"{which} stops at {told}: it knows no connector of that name; {right}")
    elif name == OLD_ENGINE:
        told = f"{told} is for vLLM's old engine (V0), and the one of today stops at it"
        yield Fault(f"{told}; write LMCacheConnectorV1", Level.WARNING)


def _wanted(key: str, value: Any) -> str:
    """What a field has to be and is not, for certain; empty where it is, or may be."""
    if key in _WHOLE:
        return "" if _is_whole(value) or (value is None and key == "kv_rank") else "a whole number"
    if key in _TEXTS:
        return "" if isinstance(value, str) or (value is None and key in _EMPTY) else "a text"
    if key == "kv_load_failure_policy" and value not in _POLICIES:
        return " or ".join(_POLICIES)
    if key == "enable_permute_local_kv" and not _is_truth(value):
        return "true or false"
    return ""


def _is_whole(value: Any) -> bool:
    """Whether vLLM makes a whole number of it."""
    try:
        return isinstance(value, int | float | str) and float(value).is_integer()
    except (ValueError, OverflowError):
        return False


def _is_truth(value: Any) -> bool:
    return str(value).lower() in _TRUTHS


def _unknown(key: str, vllm: Version | None, within: str) -> Iterator[Fault]:
    since, until = FIELDS.get(key, (None, None))
    if key in FIELDS and vllm is None:
        if since is not None and since > Version("0.9.0"):
            told = f"{key}{within} is a field from vLLM {since} on alone"
            yield Fault(told, Level.NOTE)
        elif until is not None:
            yield Fault(f"{key}{within} is no field from vLLM {until} on", Level.NOTE)
        return
    if key in FIELDS and vllm is not None and lives(FIELDS[key], vllm):
        return
    shown = one_line(key)
    plain = key.replace("-", "_")
    hint = f"; it is {plain}" if plain != key and plain in FIELDS else ""
    hint = hint or "; leave it out"
    if vllm is None:
        told = f"vLLM has no field {shown}{within}, and stops at it from {FORBIDS} on"
        yield Fault(f"{told}{hint}", Level.WARNING)
    elif vllm >= FORBIDS:
        yield Fault(f"vLLM {vllm} stops at {shown}{within}: it has no such field{hint}")
    else:
        told = f"vLLM {vllm} has no field {shown}{within}: it stops at it, or does not read it"
        yield Fault(f"{told}{hint}", Level.WARNING)
