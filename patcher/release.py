"""The LMCache release that a configuration is for: installed on this host, or on the index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from .outcome import ExitCode, KvpatchError
from .schema import Schema
from .schema_source import FILES, read_schema

if TYPE_CHECKING:
    from .fsops import Disk
    from .host import Host, Where

FIRST = Version("0.3.3")

Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Release:
    """An LMCache release with its configuration.

    Attributes:
        lmcache: its version.
        schema: what it reads.
        vllm: release of the vLLM beside it; None where there is none, or none was named.
        python: version of the Python it runs on; None where it is not known.
        host: the environment it was found in; None for a release on the index.
    """

    lmcache: Version
    schema: Schema
    vllm: Version | None = None
    python: tuple[int, ...] | None = None
    host: Host | None = None


def find_release(where: Where, disk: Disk, lmcache: str | None, vllm: str | None) -> Release:
    """The named release, or the installed one.

    Args:
        where: the environment to look in where no release is named.
        disk: how files are read.
        lmcache: a release on the index; None for the installed one.
        vllm: a release of vLLM to take instead of the installed one.

    Raises:
        KvpatchError: ``bad-version`` (exit 2), ``no-release`` (exit 3), what locating an
            environment and reading the index raise.
    """
    beside = _version("--vllm", vllm)
    named = _version("--lmcache", lmcache)
    if named is not None:
        from .stack import default_cache

        read = read_from_index(named, default_cache())
        return Release(named, read_schema(read, str(named)), beside)
    return _installed(where, disk, beside)


def _installed(where: Where, disk: Disk, vllm: Version | None) -> Release:
    from . import host as hosts

    try:
        host = hosts.open_host(where, disk, needs="lmcache")
    except KvpatchError as error:
        error.hint += "; or name a release: --lmcache 0.5.6"
        raise
    found = host.tree.package("lmcache")
    if found is None:
        raise RuntimeError("LMCache was located, and then was not")

    def read(path: str) -> bytes | None:
        source = host.tree.source("lmcache", path)
        return source.content if source else None

    beside = host.tree.package("vllm")
    interpreter = host.environment.interpreter
    python = interpreter.version[:2] if interpreter else None
    return Release(
        found.version,
        read_schema(read, str(found.version)),
        vllm or (beside.version if beside else None),
        python,
        host,
    )


def read_from_index(version: Version, cache: Path) -> Read:
    """How the files of an LMCache release are read from the package index, by way of the cache.

    Raises:
        KvpatchError: ``no-release`` (exit 3); ``no-network``, ``no-validate-extra`` (exit 4).
    """
    from .index import kept_releases, releases
    from .ranged import read_members

    wheels = {wheel.version: wheel for wheel in kept_releases("lmcache", cache=cache)}
    if version not in wheels:
        wheels = {wheel.version: wheel for wheel in releases("lmcache", pre=True, cache=cache)}
    wheel = wheels.get(version)
    if wheel is None or version < FIRST:
        newest = max((one for one in wheels if not one.is_prerelease), default=None)
        raise KvpatchError(
            "no-release",
            f"there is no LMCache {version} to read"
            if wheel is None
            else f"LMCache {version} is older than {FIRST}, the first with this configuration",
            f"name a release from {FIRST} to {newest}, such as --lmcache {newest}",
        )
    return read_members(wheel, FILES, cache).get


def _version(option: str, text: str | None) -> Version | None:
    if text is None:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        raise KvpatchError(
            "bad-version",
            f"{option} {text!r} is not a version",
            f"give a release number, such as {option} 0.5.6",
            ExitCode.USAGE,
        ) from None
