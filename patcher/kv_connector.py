"""The KV connector's configuration: ``--kv-transfer-config`` in one piece or in dotted forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .dotted_options import NotReadError, Pairs, json_of, merged
from .vllm_options import full_name

_TRANSFER = "kv-transfer-config"
_NOTHING = ("", "None")
_MULTI = "MultiConnector"


def transfers_of(
    flags: Mapping[str, str | bool] | Pairs,
) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """All that vLLM reads for it one after the other, of which the last counts; why it can't.

    It stops at each that is not right, also where another one counts. What the dotted forms say it
    puts behind the rest, as one object for each spelling of the option.
    """
    pairs = list(flags.items() if isinstance(flags, Mapping) else flags)
    found: list[Mapping[str, Any]] = []
    try:
        for name, text in pairs:
            if full_name(name) != _TRANSFER:
                continue
            read = None if text is True else {} if text in _NOTHING else json_of(str(text))
            if not isinstance(read, dict):
                return (), "it is not a JSON object"
            found.append(read)
        found += merged(pairs, frozenset({_TRANSFER})).values()
    except NotReadError as error:
        return (), str(error)
    return tuple(found), ""


def connectors(transfer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A connector with those inside it, which a MultiConnector alone has."""
    yield transfer
    for _, one in children(transfer):
        yield from connectors(one)


def children(transfer: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Those that stand inside a MultiConnector itself, with their places from 0."""
    extra = transfer.get("kv_connector_extra_config")
    if transfer.get("kv_connector") != _MULTI or not isinstance(extra, dict):
        return
    inner = extra.get("connectors")
    for place, one in enumerate(inner if isinstance(inner, list) else []):
        if isinstance(one, dict):
            yield place, one


def is_in_process(transfer: Mapping[str, Any]) -> bool:
    """Whether that is LMCache's in-process connector."""
    name = str(transfer.get("kv_connector") or "")
    module = str(transfer.get("kv_connector_module_path") or "")
    if name == "LMCacheMPConnector":
        return False
    return name.startswith("LMCacheConnector") or f"{module}.".startswith("lmcache.")
