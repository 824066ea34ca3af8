"""Rules about keys that take one of a few words, and stop LMCache at any other.

Read from the code that takes them in every LMCache from 0.3.3 to 0.5.7rc2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from packaging.version import Version

from . import rules
from .key_history import nearest
from .lint_context import Context
from .rules import Finding, Fix


@dataclass(frozen=True)
class Choice:
    """The words of a key.

    Attributes:
        words: those that are taken.
        used: whether a configuration comes to the code that takes them.
        any_case: whether capitals make no difference.
        since: the first release that takes these, where one before takes others; empty for none.
    """

    words: tuple[str, ...]
    used: Callable[[Context], bool]
    any_case: bool = False
    since: str = ""


def _gds(context: Context) -> bool:
    return context.gds and bool(context.value("use_gds"))


def _remote(context: Context) -> bool:
    return any(context.value(name) for name in ("remote_url", "remote_storage_plugins"))


def _always(_: Context) -> bool:
    return True


CHOICES: Mapping[str, Choice] = {
    "gds_backend": Choice(("cufile", "hipfile"), _gds),
    "gds_path_sharding": Choice(("by_gpu",), lambda context: context.gds),
    "local_disk_path_sharding": Choice(("by_gpu",), lambda context: context.disk),
    "remote_serde": Choice(("naive", "kivi", "cachegen"), _remote),
    "cache_policy": Choice(("LRU", "LFU", "FIFO", "MRU"), _always, any_case=True, since="0.3.7"),
}


def choices(context: Context) -> Iterator[Finding]:
    """Words that are none of their key's."""
    for name, choice in CHOICES.items():
        value = context.value(name)
        if name not in context.schema.keys or not context.is_set(name) or value is None:
            continue
        taken = str(value).upper() if choice.any_case else value
        newer = not choice.since or context.lmcache >= Version(choice.since)
        if not newer or taken in choice.words or not choice.used(context):
            continue
        told = f"LMCache {context.schema.version} stops at {name}: {context.shown(name, value)}; "
        right = _meant(str(value), choice)
        if right:
            told += f"write {right}"
        else:
            close = nearest(str(value), [word.lower() for word in choice.words])
            told += f"the nearest is {close}" if close else f"it takes {', '.join(choice.words)}"
        fix = Fix("set", name, value=right) if right else None
        yield context.found(rules.STOPS, told, name, fix=fix)


def _meant(value: str, choice: Choice) -> str:
    """The word that differs in capitals and hyphens alone; empty for none."""
    plain = value.strip().lower().replace("-", "_")
    return next((word for word in choice.words if word.lower() == plain), "")
