"""The LMCache release that a configuration is for: installed on this host, or on the index."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import source_hash
from pathlib import Path

from packaging.version import InvalidVersion, Version

from .absence import Absence, Installed, absence, mark
from .cache import default_cache
from .deduction import deduced
from .links import content_of
from .model_runner import built_for_cpu
from .outcome import ExitCode, KvpatchError
from .schema import FILES, READERS, Schema
from .schema_code import keep, kept

FIRST = Version("0.3.3")
_GDS_PATCH = mark("KV009")
_RANKS_PATCH = mark("KV012")
_BLENDER = "lmcache/v1/compute/blend/blender.py"
_GDS_FILES = (*READERS, "lmcache/v1/storage_backend/storage_manager.py")

Read = Callable[[str], bytes | None]


@dataclass(frozen=True, eq=False, repr=False)
class Release:
    """An LMCache release with its configuration.

    Attributes:
        lmcache: its version.
        schema: what it reads.
        vllm: release of the vLLM beside it; None where there is none, or none was named.
        python: version of the Python it runs on; None where it is not known.
        gds_blends: whether kvpatch's patch for GDS with blending is there; None as before.
        absence: tells which patches that blending needs are not there; None for a release that is
            not installed.
        ranks_agree: tells whether the patch for several ranks is there; None as before.
        on_cpu: whether the vLLM is known to be one for CPUs.
    """

    lmcache: Version
    schema: Schema
    vllm: Version | None = None
    python: tuple[int, ...] | None = None
    gds_blends: bool | None = None
    absence: Callable[[], Absence] | None = None
    ranks_agree: Callable[[], bool | None] | None = None
    on_cpu: bool = False


def find_release(
    python: Path | None, site: Path | None, lmcache: str | None, vllm: str | None
) -> Release:
    """The named release, or the installed one.

    Args:
        python: as for :func:`kvpatch.locate.locate`.
        site: the same.
        lmcache: a release on the index, beside the vLLM of the environment where one is named; None
            for the installed one.
        vllm: a release of vLLM to take instead of the installed one.

    Raises:
        KvpatchError: ``bad-version`` (exit 2), ``no-release`` (exit 3), what locating an
            environment and reading the index raise.
    """
    beside = version_of("--vllm", vllm)
    named = version_of("--lmcache", lmcache)
    if named is None:
        return _installed(_packages(python, site, "lmcache"), beside)
    there: dict[str, _Package] = {}
    running = None
    if python is not None or site is not None:
        there, running = _packages(python, site, None)
    if (found := there.get("lmcache")) and version_of("lmcache", found.version) == named:
        return _installed((there, running), beside)
    schema = schema_from_index(named, default_cache())
    on_cpu = False
    if beside is None and (other := there.get("vllm")):
        beside = version_of(other.distribution, other.version)
        on_cpu = built_for_cpu(other.distribution, beside)
    return Release(named, schema, beside, running, on_cpu=on_cpu)


@dataclass(frozen=True, eq=False, repr=False)
class _Package:
    """One installed package."""

    distribution: str
    version: str
    site: Path


def _installed(
    environment: tuple[dict[str, _Package], tuple[int, ...] | None], vllm: Version | None
) -> Release:
    packages, running = environment
    found = packages["lmcache"]

    read = partial(_content, found.site)
    version = version_of(found.distribution, found.version) or FIRST
    beside = packages.get("vllm")
    there = version_of(beside.distribution, beside.version) if beside else None
    looked_at, on_cpu = [Installed("lmcache", version, read)], False
    if beside is not None and there is not None and vllm in (None, there):
        looked_at.append(Installed("vllm", there, partial(_content, beside.site)))
        on_cpu = built_for_cpu(beside.distribution, there)
    return Release(
        version,
        schema_of_files(read, version, default_cache()),
        vllm or there,
        running,
        all(_GDS_PATCH in (read(path) or b"") for path in _GDS_FILES),
        partial(absence, tuple(looked_at), vllm or there),
        lambda: _RANKS_PATCH in (read(_BLENDER) or b""),
        on_cpu,
    )


def _content(site: Path, path: str) -> bytes | None:
    """A file of an installed package; None where it is not there.

    Raises:
        KvpatchError: ``unreadable``, exit 4.
    """
    return content_of(f"{site}/{path}")


def _packages(
    python: Path | None, site: Path | None, needs: str | None
) -> tuple[dict[str, _Package], tuple[int, ...] | None]:
    """The packages of an environment that has what it needs, and the version of its Python."""
    known = deduced(python, site, os.environ, needs or "vllm")
    if known is not None:
        return {
            name: _Package(one["distribution"], one["version"], Path(one["site"]))
            for name, one in known.packages.items()
        }, known.python
    from .locate import locate

    try:
        environment = locate(python, site, needs=needs)
    except KvpatchError as error:
        error.hint += "; or name a release: --lmcache 0.5.6"
        raise
    asked = environment.interpreter
    return {
        name: _Package(one.distribution, one.version, one.site)
        for name, one in environment.packages.items()
    }, asked.version[:2] if asked else None


def schema_of_files(read: Read, version: Version, cache: Path) -> Schema:
    """The schema of a release whose files are at hand; parsed once for the same bytes.

    Raises:
        KvpatchError: ``unknown-layout``, exit 3.
    """
    files = {path: read(path) for path in FILES}
    # The hash by which Python knows a source: hashlib would load OpenSSL, which takes longer.
    told = "".join(f"{path} {source_hash(text or b'').hex()}\n" for path, text in files.items())
    place = cache / "schema" / f"lmcache-{version}-{source_hash(told.encode()).hex()}.json"
    found = kept(place)
    if found is None:
        from .schema_source import read_schema

        found = read_schema(files.get, str(version))
        keep(found, place)
    return found


def schema_from_index(version: Version, cache: Path) -> Schema:
    """The schema of a release on the index. A release never changes, so it is read once.

    Raises:
        KvpatchError: as :func:`read_from_index`; ``unknown-layout``.
    """
    place = cache / "schema" / f"lmcache-{version}.json"
    found = kept(place)
    if found is None:
        from .schema_source import read_schema

        found = read_schema(read_from_index(version, cache), str(version))
        keep(found, place)
    return found


def read_from_index(version: Version, cache: Path, paths: Sequence[str] = FILES) -> Read:
    """How files of an LMCache release are read from the package index, by way of the cache.

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
    return read_members(wheel, paths, cache).get


def version_of(option: str, text: str | None) -> Version | None:
    """A version that was given; None for none.

    Raises:
        KvpatchError: ``bad-version``, exit 2.
    """
    if text is None:
        return None
    example = "0.32.0" if option == "--vllm" else "0.5.6"
    try:
        return Version(text)
    except InvalidVersion:
        raise KvpatchError(
            "bad-version",
            f"{option} {text!r} is not a version",
            f"give a release number, such as {option} {example}",
            ExitCode.USAGE,
        ) from None
