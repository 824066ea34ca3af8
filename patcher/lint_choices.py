"""Rules about keys that take one of a few words, and stop LMCache at any other.

Read from the code that takes them in every LMCache from 0.3.3 to 0.5.7rc2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from packaging.version import Version

from . import rules
from .key_history import nearest
from .lint_context import Context
from .rules import Finding, Fix, Level


@dataclass(frozen=True)
class Choice:
    """The words of a key.

    Attributes:
        words: those that are taken.
        used: whether a configuration comes to the code that takes them.
        any_case: whether capitals make no difference.
        since: the first release that takes these, where one before takes others; empty for none.
        later: words that a later release takes too, with that release.
        plugins: words that another package makes LMCache take, with its name.
    """

    words: tuple[str, ...]
    used: Callable[[Context], bool]
    any_case: bool = False
    since: str = ""
    later: Mapping[str, str] = field(default_factory=dict)
    plugins: Mapping[str, str] = field(default_factory=dict)

    def taken(self, lmcache: Version) -> tuple[str, ...]:
        """The words of a release."""
        return tuple(one for one in self.words if Version(self.later.get(one, "0")) <= lmcache)


def _gds(context: Context) -> bool:
    return context.gds and bool(context.value("use_gds"))


def _remote(context: Context) -> bool:
    return any(context.value(name) for name in ("remote_url", "remote_storage_plugins"))


def _channel(context: Context) -> bool:
    return any(context.value(name) for name in ("enable_p2p", "enable_pd"))


def _always(_: Context) -> bool:
    return True


CHOICES: Mapping[str, Choice] = {
    "gds_backend": Choice(("cufile", "hipfile"), _gds),
    "gds_path_sharding": Choice(("by_gpu",), lambda context: context.gds),
    "local_disk_path_sharding": Choice(("by_gpu",), lambda context: context.disk),
    "remote_serde": Choice(("naive", "kivi", "cachegen"), _remote),
    "cache_policy": Choice(("LRU", "LFU", "FIFO", "MRU"), _always, any_case=True, since="0.3.7"),
    "transfer_channel": Choice(
        ("nixl", "mock_memory"),
        _channel,
        later={"mock_memory": "0.3.10"},
        plugins={"hccl": "LMCache-Ascend"},
    ),
}


def choices(context: Context) -> Iterator[Finding]:
    """Words that are none of their key's."""
    for name, choice in CHOICES.items():
        value = context.value(name)
        if name not in context.schema.keys or not context.is_set(name) or value is None:
            continue
        taken = str(value).upper() if choice.any_case else value
        newer = not choice.since or context.lmcache >= Version(choice.since)
        words = choice.taken(context.lmcache)
        if not newer or taken in words or not choice.used(context):
            continue
        told = f"LMCache {context.schema.version} stops at {name}: {context.shown(name, value)}; "
        right = _meant(str(value), words)
        plugin = choice.plugins.get(str(value))
        if plugin:
            told += f"{plugin} alone takes it"
        elif right:
            told += f"write {right}"
        else:
            close = nearest(str(value), [word.lower() for word in words])
            told += f"the nearest is {close}" if close else f"it takes {' or '.join(words)}"
        fix = Fix("set", name, value=right) if right else None
        lower = Level.WARNING if plugin else None
        yield context.found(rules.STOPS, told, name, fix=fix, lower=lower)


def _meant(value: str, words: tuple[str, ...]) -> str:
    """The word that differs in capitals and hyphens alone; empty for none."""
    plain = value.strip().lower().replace("-", "_")
    return next((word for word in words if word.lower() == plain), "")
