"""The KV connectors that vLLM knows by name, by release.

Read from what ``kv_connector/factory.py`` of every release from 0.8.5 to 0.33.0 registers. Those
whose name says LMCache, and the one that holds others: plugins can add more of other names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from .lifespan import Lifespan, lives

KNOWN: Mapping[str, Lifespan] = {
    "LMCacheConnector": (None, Version("0.10.1")),
    "LMCacheConnectorV1": (None, None),
    "LMCacheMPConnector": (Version("0.11.1"), None),
    "MultiConnector": (Version("0.9.0"), None),
}
"""Each with the release that brought it and the one that has it no longer."""
_OLD = Version("0.9.0")
"""A release that nobody has who does not say which one."""
OLD_ENGINE = "LMCacheConnector"
"""The one of vLLM's old engine (V0), at which the newer one stops."""


def is_judged(name: str) -> bool:
    """Whether :data:`KNOWN` says all of that name: one of LMCache, or in the table."""
    return name in KNOWN or "lmcache" in name.lower()


def is_known(name: str, vllm: Version | None) -> bool | None:
    """Whether that vLLM has registered a connector; None where that hangs on its release."""
    if name not in KNOWN:
        return False
    since, until = KNOWN[name]
    if vllm is None:
        return True if until is None and (since is None or since <= _OLD) else None
    return lives(KNOWN[name], vllm)


def foreign(transfer: Mapping[str, Any], vllm: Version | None) -> str:
    """The connector that a configuration names, where that may be one of vLLM's; empty for none."""
    name = transfer.get("kv_connector")
    if not isinstance(name, str):
        return ""
    named = bool(transfer.get("kv_connector_module_path")) or not is_judged(name)
    return name if named or is_known(name, vllm) is not False else ""


def span(name: str) -> str:
    """The releases that have it, for a sentence."""
    since, until = KNOWN[name]
    if since is not None:
        return f"from {since} on"
    return f"before {until}" if until is not None else "each"
