"""Files of real releases, read from the configured index by ranges and kept outside the checkout.

Nothing here is skipped where a download fails: the error goes up and fails the test, or the
collection that needs the list of releases.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path

from kvpatch.index import Wheel, releases
from kvpatch.ranged import read_members
from packaging.version import Version

LIST_LIVES = 3600
FIRST = {"vllm": "0.8.5", "lmcache": "0.3.3"}


def cache_folder() -> Path:
    """Where downloads are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvpatch" / "releases"


def vllm_releases() -> tuple[str, ...]:
    """Every final release from 0.8.5 to the newest on the index."""
    return _final("vllm")


def lmcache_releases(*, pre: bool = False) -> tuple[str, ...]:
    """Every release from 0.3.3 to the newest on the index; final ones alone unless told."""
    if not pre:
        return _final("lmcache")
    first = Version(FIRST["lmcache"])
    return tuple(version for version in _wheels("lmcache") if Version(version) >= first)


def release_file(distribution: str, version: str, path: str) -> bytes:
    """One file of one release."""
    wheel = _wheels(distribution)[version]
    content = read_members(wheel, [path], cache_folder())[path]
    assert content is not None, f"{distribution} {version} has no {path}"
    return content


def _final(distribution: str) -> tuple[str, ...]:
    first = Version(FIRST[distribution])
    return tuple(
        text
        for text in _wheels(distribution)
        if (version := Version(text)) >= first and not version.is_prerelease
    )


@functools.cache
def _wheels(distribution: str) -> dict[str, Wheel]:
    """By version, oldest first; asked of the index at most once an hour."""
    kept = cache_folder() / f"{distribution}.json"
    if not kept.exists() or time.time() - kept.stat().st_mtime > LIST_LIVES:
        rows = [
            {**vars(wheel), "version": str(wheel.version)}
            for wheel in releases(distribution, pre=True)
        ]
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
        fresh.write_text(json.dumps(rows))
        fresh.replace(kept)
    rows = json.loads(kept.read_text())
    return {row["version"]: Wheel(**{**row, "version": Version(row["version"])}) for row in rows}
