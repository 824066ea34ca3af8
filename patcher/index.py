"""Releases of a distribution on the package index that pip and uv are configured with."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from . import body
from .connection import TIMEOUT_S, connection, missing_extra, no_network
from .digest import sha256
from .index_config import Index as Index
from .index_config import configured as configured
from .index_config import extras, refuse_plain, trusted
from .leftovers import PREFIX, locked
from .links import read_regular
from .outcome import ExitCode, KvpatchError

if TYPE_CHECKING:
    import requests

MOST_PAGE = 64 * 1024 * 1024
"""The most bytes that a list of releases may have; that of vLLM has less than one million."""

_SCHEMA = 2
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A name goes into names of the cache folder; the tags of a wheel's may be anything to its parser.
_NO_NAME = re.compile(r"[/\\\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Wheel:
    """One wheel of one release: what the index says of it. ``size`` is in bytes.

    Where a release has but a source distribution, it is that, and ``sdist`` is true.
    """

    distribution: str
    version: Version
    filename: str
    url: str
    size: int | None
    sha256: str | None
    yanked: bool
    sdist: bool = False

    @property
    def data(self) -> dict[str, Any]:
        """The wheel as JSON has it."""
        return {**asdict(self), "version": str(self.version)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Wheel:
        """The wheel that :attr:`data` is of.

        Raises:
            KeyError, TypeError, ValueError: it is of none.
        """
        return cls(**{**data, "version": Version(data["version"])})


def releases(
    distribution: str,
    spec: str = "",
    *,
    pre: bool = False,
    index: Index | None = None,
    cache: Path | None = None,
    max_age_s: float = 3600.0,
    sdists: bool = False,
) -> tuple[Wheel, ...]:
    """One wheel of each release, by version; a wheel for x86_64 Linux where there is one.

    Args:
        distribution: its name on the index.
        spec: a PEP 440 specifier set that the releases are in.
        pre: whether pre-releases and development releases count.
        index: the one to ask; None for the one pip and uv are configured with.
        cache: a folder that keeps the list; None keeps nothing.
        max_age_s: how many seconds a kept list is good for.
        sdists: whether releases without any wheel are listed too.

    Raises:
        KvpatchError: ``no-network``, ``no-such-distribution``, ``untrusted-index``,
            ``no-validate-extra``; exit 4.
    """
    asked = configured() if index is None else index
    name = canonicalize_name(distribution)
    place = None if cache is None else _kept_place(cache, asked, name)
    wheels = None if place is None else _kept(place, max_age_s)
    if wheels is None:
        wheels = _one_each(_everywhere(asked, name))
        if place is not None:
            _keep(place, wheels)
    wanted = SpecifierSet(spec)
    return tuple(
        wheel
        for wheel in wheels
        if wanted.contains(wheel.version, prereleases=True)
        and (pre or not wheel.version.is_prerelease)
        and (sdists or not wheel.sdist)
    )


def wheels_of(
    distribution: str, version: Version, *, index: Index | None = None
) -> tuple[Wheel, ...]:
    """Every wheel of one release, for whatever platform and Python.

    Raises:
        KvpatchError: ``no-network``, ``no-such-distribution``, ``no-validate-extra``; exit 4.
    """
    asked = configured() if index is None else index
    found = _everywhere(asked, canonicalize_name(distribution))
    return tuple(wheel for wheel in found if wheel.version == version and not wheel.sdist)


def kept_releases(distribution: str, *, cache: Path) -> tuple[Wheel, ...]:
    """What an earlier run kept, however old, pre-releases included; empty where nothing is."""
    found = _kept(_kept_place(cache, configured(), canonicalize_name(distribution)), None) or ()
    return tuple(wheel for wheel in found if not wheel.sdist)


def write_atomically(path: Path, data: bytes) -> None:
    """Puts a file of the cache in place whole, so that other processes may read at any moment.

    Raises:
        KvpatchError: ``no-cache``, exit 4.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=PREFIX)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                # So that no other run takes it for what a killed one left.
                locked(descriptor, fcntl.LOCK_EX)
                stream.write(data)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise no_cache(path.parent, error) from None


def kept_file(path: Path) -> bytes:
    """The bytes of a file of the cache; a pipe in its place keeps nobody waiting.

    Raises:
        OSError: there is no regular file, or it can't be read.
    """
    found = read_regular(str(path))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return found


def no_cache(folder: Path, error: OSError) -> KvpatchError:
    """What to say of a cache folder that can't be written."""
    return KvpatchError(
        "no-cache",
        f"{folder} can't be written: {error.strerror}",
        "make room, or set XDG_CACHE_HOME to a folder that can be written",
        ExitCode.ENVIRONMENT,
    )


def _everywhere(index: Index, name: str) -> list[Wheel]:
    """The files of the index, and of further places those of releases that the index lacks.

    A release that is in both is the index's: another place may have another build of it.
    """
    further = extras(index)
    try:
        found = _fetch(index, name)
    except KvpatchError as error:
        if error.code != "no-such-distribution" or not further.indexes:
            raise
        found = []
    there = {wheel.version for wheel in found}
    for place in further.indexes:
        try:
            more = _fetch(place, name)
        except KvpatchError as error:
            if error.code not in ("no-such-distribution", "untrusted-index"):
                raise
            continue
        found += [wheel for wheel in more if wheel.version not in there]
        there |= {wheel.version for wheel in more}
    if not found:
        raise _no_such(name)
    return found


def _no_such(name: str) -> KvpatchError:
    return KvpatchError(
        "no-such-distribution",
        f"the package index has no distribution {name}",
        "check the name, and the index that pip or uv is configured with",
        ExitCode.ENVIRONMENT,
    )


def _fetch(index: Index, name: str) -> list[Wheel]:
    refuse_plain(index)
    try:
        from pypi_simple import (
            PYPI_SIMPLE_ENDPOINT,
            NoSuchProjectError,
            PyPISimple,
            UnsupportedContentTypeError,
            UnsupportedRepoVersionError,
        )
        from urllib3.exceptions import HTTPError
    except ImportError:
        raise missing_extra() from None
    what = f"the list of releases of {name}"
    try:
        with connection(index) as session:
            # Streamed, so that the hook reads it.
            session.stream = True
            session.hooks["response"] = [_held]
            client = PyPISimple(index.url or PYPI_SIMPLE_ENDPOINT, session=session)
            packages = client.get_project_page(name, timeout=TIMEOUT_S).packages
    except NoSuchProjectError:
        raise _no_such(name) from None
    except (
        # Besides what requests has a name for, it is a certificate that is not there.
        OSError,
        HTTPError,
        UnsupportedContentTypeError,
        UnsupportedRepoVersionError,
        # A page that is not what it says it is.
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ) as error:
        raise no_network(what, error) from None
    wheels = []
    for package in packages:
        sdist = package.package_type == "sdist"
        if package.package_type != "wheel" and not sdist:
            continue
        if _NO_NAME.search(package.filename):
            continue
        try:
            if sdist:
                _, version = parse_sdist_filename(package.filename)
            else:
                _, version, _, _ = parse_wheel_filename(package.filename)
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
            continue
        stated = package.digests.get("sha256", "").lower()
        digest = stated if _SHA256.fullmatch(stated) else None
        yanked = bool(package.is_yanked)
        file = (package.filename, package.url, package.size, digest, yanked, sdist)
        wheels.append(Wheel(name, version, *file))
    return wheels


def _held(answer: requests.Response, **_: Any) -> None:
    """Read the answer now, as far as a list of releases may go."""
    answer.raw = io.BytesIO(body.read(answer.raw, MOST_PAGE))


def _one_each(wheels: list[Wheel]) -> tuple[Wheel, ...]:
    chosen: dict[Version, Wheel] = {}
    for wheel in wheels:
        other = chosen.get(wheel.version)
        if other is None or _preference(wheel) < _preference(other):
            chosen[wheel.version] = wheel
    return tuple(chosen[version] for version in sorted(chosen))


def _preference(wheel: Wheel) -> tuple[bool, bool, int, str]:
    """Which of a release's files to read: a wheel, not yanked, then by platform, then by name."""
    if wheel.sdist:
        return True, wheel.yanked, 0, wheel.filename
    _, _, _, tags = parse_wheel_filename(wheel.filename)
    platforms = {tag.platform for tag in tags}
    if any("linux" in platform and "x86_64" in platform for platform in platforms):
        rank = 0
    elif "any" in platforms:
        rank = 1
    else:
        rank = 2 if any("linux" in platform for platform in platforms) else 3
    return False, wheel.yanked, rank, wheel.filename


def _kept_place(cache: Path, index: Index, name: str) -> Path:
    places = [index.url, *(place.url for place in extras(index).indexes)]
    # What a host told that was not verified is not for a run that verifies it.
    if hosts := trusted(index):
        places.append(hosts.key)
    digest = sha256(" ".join(map(str, places)).encode())[:12]
    return cache / "index" / digest / f"{name}.json"


def _kept(place: Path, max_age_s: float | None) -> tuple[Wheel, ...] | None:
    try:
        data = json.loads(kept_file(place))
        age = time.time() - data["asked"]
        if data["schema"] != _SCHEMA or (max_age_s is not None and not 0 <= age <= max_age_s):
            return None
        return tuple(Wheel.of(entry) for entry in data["wheels"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(place: Path, wheels: tuple[Wheel, ...]) -> None:
    data = {"schema": _SCHEMA, "asked": time.time(), "wheels": [wheel.data for wheel in wheels]}
    write_atomically(place, json.dumps(data).encode())
