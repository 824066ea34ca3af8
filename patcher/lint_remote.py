"""Rules about the URL of remote storage, by the adapters that a release has.

Read from ``storage_backend/connector`` of every LMCache from 0.3.3 to 0.5.7rc2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.version import Version

from . import rules
from .key_history import nearest
from .lifespan import Lifespan, lives
from .lint_context import Context
from .rules import Finding

SCHEMES: Mapping[str, Lifespan] = {
    "audit": (None, None),
    "blackhole": (None, None),
    "external": (None, None),
    "fs": (None, None),
    "infinistore": (None, None),
    "lm": (None, Version("0.5.7rc2")),
    "mooncakestore": (None, None),
    "redis": (None, None),
    "rediss": (None, None),
    "redis-sentinel": (None, None),
    "unix": (None, None),
    "s3": (Version("0.3.4"), None),
    "mock": (Version("0.3.6"), None),
    "redis-cluster": (Version("0.3.9"), None),
    "valkey": (Version("0.3.9"), None),
    "sagemaker-hyperpod": (Version("0.3.9.post1"), None),
    "eic": (Version("0.3.10"), None),
    "resp": (Version("0.3.15"), None),
    "plugin": (Version("0.4.4"), None),
    "hf3fs": (Version("0.4.5"), None),
    "bigtable": (Version("0.4.7"), None),
    "azure": (Version("0.5.2rc1"), None),
}
"""What a URL begins with, each with the release that brought it and the one without it again."""
NEWEST = Version("0.5.7rc2")
"""The newest release that was looked at; a newer one may have more."""
_KEY = "remote_url"
_PLUGINS = "remote_storage_plugins"


def schemes(lmcache: Version) -> frozenset[str]:
    """Those that a release has an adapter for."""
    return frozenset(name for name, span in SCHEMES.items() if lives(span, lmcache))


def url(context: Context) -> Iterator[Finding]:
    """A URL that no adapter of the release takes."""
    given = context.value(_KEY)
    # A plugin may bring an adapter for any URL.
    if not isinstance(given, str) or not given or context.value(_PLUGINS):
        return
    known = schemes(context.lmcache)
    if context.lmcache > NEWEST or given.startswith(tuple(f"{one}://" for one in known)):
        return
    told = f"LMCache {context.schema.version} has no adapter for {_KEY} "
    told += context.shown(_KEY, given)
    word = given.strip().partition(":")[0].lower()
    since, until = SCHEMES.get(word, (None, None))
    if word in known:
        told += f"; write {word}:// in front of the host"
    elif since is not None or until is not None:
        told += f"; {word}:// is one {f'from {since} on' if since else f'before {until}'} alone"
    else:
        close = nearest(word, sorted(known))
        told += f"; the nearest is {close}://" if close else "; it begins with redis:// or so"
    yield context.found(rules.REMOTE_URL, told, _KEY)
