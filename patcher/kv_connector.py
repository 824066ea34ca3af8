"""The KV connector's configuration: ``--kv-transfer-config`` in one piece or in dotted forms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_TRANSFER = "kv-transfer-config"
_NOTHING = ("", "None")


def transfer_of(flags: Mapping[str, str | bool]) -> tuple[Mapping[str, Any], str]:
    """The connector's configuration by the flags of a command, and why it can't be read."""
    found: dict[str, Any] = {}
    dotted = {name: value for name, value in flags.items() if name.startswith(f"{_TRANSFER}.")}
    text = flags.get(_TRANSFER)
    # vLLM puts what the dotted forms say behind the rest as one object, which beats the other.
    if text is not None and text not in _NOTHING and not dotted:
        try:
            read = json.loads(text) if isinstance(text, str) else None
        except ValueError as error:
            return {}, f"it is not JSON: {error}"
        if not isinstance(read, dict):
            return {}, "it is not a JSON object"
        found.update(read)
    for name, value in dotted.items():
        if isinstance(value, str):
            path = name.split(".")[1:]
            into = found
            for part in path[:-1]:
                if not isinstance(into.get(part), dict):
                    into[part] = {}
                into = into[part]
            try:
                into[path[-1]] = json.loads(value)
            except ValueError:
                into[path[-1]] = value
    return found, ""


def connectors(transfer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A connector with those inside it."""
    yield transfer
    extra = transfer.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, dict) else None
    for one in inner if isinstance(inner, list) else []:
        if isinstance(one, dict):
            yield from connectors(one)


def is_in_process(transfer: Mapping[str, Any]) -> bool:
    """Whether that is LMCache's in-process connector."""
    name = str(transfer.get("kv_connector") or "")
    module = str(transfer.get("kv_connector_module_path") or "")
    if name == "LMCacheMPConnector":
        return False
    return name.startswith("LMCacheConnector") or f"{module}.".startswith("lmcache.")
