"""Files of real releases for the tests, read from the package index and kept in the cache folder.

Tests that use it are marked ``releases``. What can't be read fails them; nothing is skipped. The
list of releases is asked for at most once an hour, so that all workers of one run collect the same.
"""

from __future__ import annotations

import atexit
import re
import tempfile
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvpatch.connection import connection
from kvpatch.download import fetch
from kvpatch.index import Wheel, configured, kept_releases, releases
from kvpatch.key_history import variables_in
from kvpatch.outcome import KvpatchError
from kvpatch.ranged import read_members
from kvpatch.remote import RemoteWheel
from kvpatch.stack import default_cache
from packaging.version import Version

if TYPE_CHECKING:
    import requests

_NAMED: dict[tuple[str, int, int], frozenset[str]] = {}
"""LMCache's variables by path, CRC and size of the file that they stand in."""
FIRST = {"vllm": Version("0.8.5"), "lmcache": Version("0.3.3")}


class ReleaseFilesMissingError(Exception):
    """Real files could not be had, so the tests on them can't say anything."""


@dataclass(frozen=True)
class Release:
    """A release to run a test on, and whether it is a pre-release."""

    version: str
    pre: bool

    def __str__(self) -> str:
        return self.version


def vllm_releases() -> tuple[str, ...]:
    """Every final release since 0.8.5, post releases included, by version."""
    return tuple(
        str(wheel.version) for wheel in _since_first("vllm") if not wheel.version.is_prerelease
    )


def lmcache_releases() -> tuple[Release, ...]:
    """Every release since 0.3.3, pre-releases included and marked, by version."""
    return tuple(
        Release(str(wheel.version), wheel.version.is_prerelease)
        for wheel in _since_first("lmcache")
    )


def release_file(distribution: str, version: str, path: str) -> bytes:
    """The bytes of a file as released.

    Raises:
        ReleaseFilesMissingError: it can't be read, or that release has no such file.
    """
    found = {wheel.version: wheel for wheel in _wheels(distribution)}.get(Version(version))
    if found is None:
        raise ReleaseFilesMissingError(f"the package index has no {distribution} {version}")
    try:
        data = read_members(found, [path], default_cache(), session=_session())[path]
    except KvpatchError as error:
        raise _failed(error) from error
    if data is None:
        raise ReleaseFilesMissingError(f"{found.filename} has no {path}")
    return data


def whole_release(distribution: str, version: str) -> RemoteWheel:
    """A release as a folder, of which each file is read when it is asked for.

    Raises:
        ReleaseFilesMissingError: the index has no such release.
    """
    found = {wheel.version: wheel for wheel in _wheels(distribution)}.get(Version(version))
    if found is None:
        raise ReleaseFilesMissingError(f"the package index has no {distribution} {version}")
    return RemoteWheel(found, _session(), default_cache())


def variables_of(version: str) -> frozenset[str]:
    """LMCache's variables that stand in the code of a release of it.

    Raises:
        ReleaseFilesMissingError: the index has no such release.
    """
    wheel = whole_release("lmcache", version)
    # Most files are the same in the next release.
    members = {
        path: (path, one.crc, one.size)
        for path, one in wheel.entries.items()
        if re.match(r"lmcache/.*\.py$", path)
    }
    wheel.prefetch(path for path, member in members.items() if member not in _NAMED)
    for path, member in members.items():
        if member not in _NAMED:
            _NAMED[member] = variables_in(wheel.read(path) or b"")
    return frozenset().union(*(_NAMED[member] for member in members.values()))


@cache
def _wheels(distribution: str) -> tuple[Wheel, ...]:
    folder = default_cache()
    wheels: Iterable[Wheel]
    try:
        wheels = releases(distribution, pre=True, cache=folder)
    except KvpatchError as error:
        wheels = kept_releases(distribution, cache=folder)
        if not wheels:
            raise _failed(error) from error
        warnings.warn(f"an older list of releases is used: {error.message}", stacklevel=2)
    return tuple(wheels)


def whole_wheel(distribution: str, version: str) -> Path:
    """A wheel of a release as a file, kept in the cache folder.

    Raises:
        ReleaseFilesMissingError: it can't be had.
    """
    folder = default_cache() / "whole"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (wheel,) = [w for w in _wheels(distribution) if w.version == Version(version)]
        place = folder / wheel.filename
        if not place.is_file():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                fetch(wheel, Path(scratch), lambda _: None).replace(place)
    except KvpatchError as error:
        raise _failed(error) from error
    return place


def _since_first(distribution: str) -> Iterable[Wheel]:
    return (
        wheel
        for wheel in _wheels(distribution)
        if wheel.version >= FIRST[distribution] and not wheel.yanked
    )


@cache
def _session() -> requests.Session:
    # Open until the process ends: its connections are what it is kept for.
    opened = ExitStack()
    atexit.register(opened.close)
    return opened.enter_context(connection(configured()))


def _failed(error: KvpatchError) -> ReleaseFilesMissingError:
    return ReleaseFilesMissingError(f"{error.message}; {error.hint}")
