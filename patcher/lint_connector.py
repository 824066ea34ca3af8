"""Rules about what vLLM is told and LMCache's in-process connector can't take.

Read from ``lmcache/integration/vllm/vllm_v1_adapter.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from . import rules
from .lint_context import Context, placed
from .rules import Finding

LOAD_CAP = "max_tokens_per_load"
_CAPS_SINCE = Version("0.4.7.dev0")
_EMBEDS = "enable-prompt-embeds"
_TRANSFER = "kv-transfer-config"


def reads_itself(context: Context, name: str) -> bool:
    """Whether the connector reads ``lmcache.NAME`` by itself, though it is no key."""
    return name == LOAD_CAP and context.lmcache >= _CAPS_SINCE


def requests(context: Context) -> Iterator[Finding]:
    """Requests that end the engine, of those that the command lets in."""
    given = context.launch
    if given is None or not given.in_process:
        return
    if given.on(_EMBEDS):
        told = f"--{_EMBEDS} lets in requests that end the engine with LMCache: leave it out"
        yield placed(Finding(rules.EMBEDS, told, "", "launch"), given.origin(_EMBEDS))
    cap = given.overrides.get(LOAD_CAP)
    if context.blends and cap and reads_itself(context, LOAD_CAP):
        told = f"lmcache.{LOAD_CAP} cuts hits inside of a segment, which blending can't load"
        todo = "take it out of kv_connector_extra_config"
        found = Finding(rules.LOAD_CAP, f"{told}: {todo}", "", "launch", todo=todo)
        yield placed(found, given.origin(_TRANSFER))
