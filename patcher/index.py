"""Releases of a distribution at the places that pip and uv are configured with."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from . import body
from .connection import TIMEOUT_S, connection, missing_extra, no_network
from .digest import sha256
from .index_config import Index as Index
from .index_config import configured as configured
from .index_config import first_only, places, refuse_plain, trusted
from .index_page import ACCEPT, files_in, files_of, require_page
from .index_page import Wheel as Wheel
from .kept_files import kept_file as kept_file
from .kept_files import no_cache as no_cache
from .kept_files import write_atomically as write_atomically
from .outcome import ExitCode, KvpatchError

if TYPE_CHECKING:
    import requests

DEFAULT_URL = "https://pypi.org/simple/"
"""The index of pip and of uv where none is named."""

MOST_PAGE = 64 * 1024 * 1024
"""The most bytes that a list of releases may have; that of vLLM has less than one million."""

_SCHEMA = 3
_ABSENT = "no-such-distribution"
_MISSING = 404
_MOST_REASON = 64 * 1024


@dataclass(frozen=True)
class Listing:
    """One wheel of each release, by version.

    ``lost`` says which places could not be read, and ``stop`` which of them uv would stop at.
    """

    wheels: tuple[Wheel, ...]
    lost: tuple[KvpatchError, ...] = ()
    stop: KvpatchError | None = None


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
    """The wheels of :func:`listing`, which has the same arguments.

    Raises:
        KvpatchError: as there; or uv would stop at a place that can't be read.
    """
    told = listing(
        distribution, spec, pre=pre, index=index, cache=cache, max_age_s=max_age_s, sdists=sdists
    )
    if told.stop is not None:
        raise told.stop
    return told.wheels


def listing(
    distribution: str,
    spec: str = "",
    *,
    pre: bool = False,
    index: Index | None = None,
    cache: Path | None = None,
    max_age_s: float = 3600.0,
    sdists: bool = False,
) -> Listing:
    """One wheel of each release, by version; a wheel for x86_64 Linux where there is one.

    Of a release that is at several places it is that which pip or uv would install.

    Args:
        distribution: its name on the index.
        spec: a PEP 440 specifier set that the releases are in.
        pre: whether pre-releases and development releases count.
        index: the one to ask, and further places with it; None for what pip and uv are configured
            with.
        cache: a folder that keeps the list; None keeps nothing.
        max_age_s: how many seconds a kept list is good for.
        sdists: whether releases without any wheel are listed too.

    Raises:
        KvpatchError: ``no-network``, ``no-such-distribution``, ``untrusted-index``, where no place
            has any; ``no-validate-extra``; exit 4.
    """
    asked = configured() if index is None else index
    name = canonicalize_name(distribution)

    def found(place: Index) -> tuple[Wheel, ...]:
        kept = None if cache is None else _kept_place(cache, place, name)
        wheels = None if kept is None else _kept(kept, max_age_s)
        if wheels is None:
            wheels = _one_each([_files(place, name)])
            if kept is not None:
                _keep(kept, wheels)
        return wheels

    by_place, lost, stop = _everywhere(asked, name, found)
    every = by_place[0] if len(by_place) == 1 else _one_each(by_place)
    wanted = SpecifierSet(spec)
    wheels = tuple(
        wheel
        for wheel in every
        if wanted.contains(wheel.version, prereleases=True)
        and (pre or not wheel.version.is_prerelease)
        and (sdists or not wheel.sdist)
    )
    return Listing(wheels, lost, stop)


def wheels_of(
    distribution: str, version: Version, *, index: Index | None = None
) -> tuple[Wheel, ...]:
    """Every wheel of one release, for whatever platform and Python.

    Of wheels that are as good as each other the first is that which pip or uv would install.

    Raises:
        KvpatchError: ``no-network``, ``no-such-distribution``, ``no-validate-extra``; exit 4.
    """
    asked = configured() if index is None else index
    name = canonicalize_name(distribution)
    by_place, lost, stop = _everywhere(asked, name, lambda place: _files(place, name))
    if stop is not None:
        raise stop
    every = [wheel for found in by_place for wheel in found]
    wheels = tuple(wheel for wheel in every if wheel.version == version and not wheel.sdist)
    if lost and not wheels:
        raise lost[0]
    return wheels


def kept_releases(distribution: str, *, cache: Path) -> tuple[Wheel, ...]:
    """What an earlier run kept, however old, pre-releases included; empty where nothing is."""
    name, asked = canonicalize_name(distribution), configured()
    ordered = [_kept(_kept_place(cache, place, name), None) or () for place in places(asked)]
    return tuple(wheel for wheel in _one_each(ordered) if not wheel.sdist)


def _everywhere(
    asked: Index, name: str, found: Callable[[Index], Sequence[Wheel]]
) -> tuple[list[Sequence[Wheel]], tuple[KvpatchError, ...], KvpatchError | None]:
    """The files of each place that counts, in the order of the places; and what can't be read.

    As pip does, the others are asked where one can't be read. The last is what uv would stop at.

    Raises:
        KvpatchError: nothing was found.
    """
    by_place: list[Sequence[Wheel]] = []
    lost: list[KvpatchError] = []
    stop: KvpatchError | None = None
    decided, first = False, first_only(asked)
    for place in places(asked):
        # uv takes nothing of an index that comes after the first which has the name.
        if decided and first and not place.beside:
            continue
        try:
            files = found(place)
        except KvpatchError as error:
            if error.code not in (_ABSENT, "untrusted-index", "no-network"):
                raise
            if error.code == "no-network" and asked.tool == "uv" and (first or place.flat):
                stop = stop or error
            # pip leaves out further places that it is not told to trust.
            if error.code != _ABSENT and (error.code == "no-network" or place == asked):
                lost.append(error)
            continue
        by_place.append(files)
        decided = decided or not (place.beside or (place.flat and not files))
    if not any(by_place):
        raise lost[0] if lost else _no_such(name, asked)
    return by_place, tuple(lost), stop


def _no_such(name: str, asked: Index) -> KvpatchError:
    if asked.absent:
        return KvpatchError(
            _ABSENT,
            f"{asked.tool} is configured with no-index, and find-links has no {name}",
            f"put wheels of {name} into a folder of find-links, or take no-index away",
            ExitCode.ENVIRONMENT,
        )
    return KvpatchError(
        _ABSENT,
        f"the package index has no distribution {name}",
        "check the name, and the index that pip or uv is configured with",
        ExitCode.ENVIRONMENT,
    )


def _files(place: Index, name: str) -> list[Wheel]:
    """The files that one place lists, each name once: of several pip takes the last, uv the first.

    Raises:
        KvpatchError: as :func:`_fetch`.
    """
    taken: dict[str, Wheel] = {}
    for wheel in _fetch(place, name):
        if place.tool != "uv" or wheel.filename not in taken:
            taken[wheel.filename] = wheel
    return list(taken.values())


def _fetch(place: Index, name: str) -> list[Wheel]:
    """The files that one place lists.

    Raises:
        KvpatchError: ``no-such-distribution``, ``untrusted-index``, ``no-network``,
            ``no-validate-extra``; exit 4.
    """
    what = f"the list of releases of {name}"
    where = _where(place)
    if place.folder is not None:
        try:
            return files_in(place.folder, name)
        except OSError as error:
            raise no_network(what, error, where) from None
    refuse_plain(place)
    try:
        from requests import HTTPError
        from urllib3.exceptions import HTTPError as LowerError
    except ImportError:
        raise missing_extra() from None
    url = place.url or DEFAULT_URL
    if not place.flat:
        url = f"{url.rstrip('/')}/{name}/"
    elif urlsplit(url).path.endswith(".whl"):
        return files_of(f'<a href="{escape(url)}">'.encode(), "text/html", url, name)
    try:
        with connection(place) as session, _asked(session, url) as answer:
            kind = answer.headers.get("Content-Type", "")
            require_page(kind)
            return files_of(body.read(answer.raw, MOST_PAGE), kind, answer.url, name)
    except HTTPError as error:
        status = None if error.response is None else error.response.status_code
        if not place.flat and status in (_MISSING, *place.passed):
            raise _no_such(name, place) from None
        raise no_network(what, error, where) from None
    # Besides what requests has a name for, it is a certificate that is not there, or a page that is
    # not what it says it is.
    except (OSError, LowerError, ValueError, RecursionError) as error:
        raise no_network(what, error, where) from None


@contextlib.contextmanager
def _asked(session: requests.Session, url: str) -> Iterator[requests.Response]:
    headers = {"Accept": ACCEPT, "Cache-Control": "max-age=0"}
    with session.get(url, headers=headers, stream=True, timeout=TIMEOUT_S) as answer:
        if not answer.ok:
            # Left unread, it would be the server that is told of a broken connection.
            with contextlib.suppress(OSError, ValueError):
                body.read(answer.raw, _MOST_REASON)
        answer.raise_for_status()
        yield answer


def _where(place: Index) -> str:
    """A place in words. Of its URL only the host: there can be a secret in the rest too."""
    parts = urlsplit(place.url or DEFAULT_URL)
    if parts.scheme == "file":
        return f"{'find-links' if place.beside else 'the package index'} at {parts.path}"
    return f"{'the page of links' if place.beside else 'the package index'} of {parts.netloc}"


def _one_each(by_place: Sequence[Sequence[Wheel]]) -> tuple[Wheel, ...]:
    chosen: dict[Version, tuple[tuple[tuple[bool, bool, int], int, str], Wheel]] = {}
    for number, wheels in enumerate(by_place):
        for wheel in wheels:
            key = _preference(wheel), number, wheel.filename
            other = chosen.get(wheel.version)
            if other is None or key < other[0]:
                chosen[wheel.version] = key, wheel
    return tuple(chosen[version][1] for version in sorted(chosen))


def _preference(wheel: Wheel) -> tuple[bool, bool, int]:
    """Which of a release's files to read: a wheel, not yanked, then by platform."""
    if wheel.sdist:
        return True, wheel.yanked, 0
    _, _, _, tags = parse_wheel_filename(wheel.filename)
    platforms = {tag.platform for tag in tags}
    if any("linux" in platform and "x86_64" in platform for platform in platforms):
        rank = 0
    elif "any" in platforms:
        rank = 1
    else:
        rank = 2 if any("linux" in platform for platform in platforms) else 3
    return False, wheel.yanked, rank


def _kept_place(cache: Path, place: Index, name: str) -> Path | None:
    """Where the list of a place is kept; None for what is on this host, which is read anew."""
    if urlsplit(place.url or "").scheme == "file":
        return None
    about = [str(place.url)]
    # The tool tells which of several files of one name it is.
    about += [word for word, so in (("flat", place.flat), ("uv", place.tool == "uv")) if so]
    # What a host told that was not verified is not for a run that verifies it.
    if hosts := trusted(place):
        about.append(hosts.key)
    return cache / "index" / sha256(" ".join(about).encode())[:12] / f"{name}.json"


def _kept(place: Path | None, max_age_s: float | None) -> tuple[Wheel, ...] | None:
    if place is None:
        return None
    try:
        data = json.loads(kept_file(place))
        age = time.time() - data["asked"]
        if data["schema"] != _SCHEMA or (max_age_s is not None and not 0 <= age <= max_age_s):
            return None
        return tuple(Wheel.of(entry) for entry in data["wheels"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(place: Path, wheels: Sequence[Wheel]) -> None:
    # A file can be had but with the login in its URL: the list is asked for again.
    if any(wheel.login for wheel in wheels):
        return
    data = {"schema": _SCHEMA, "asked": time.time(), "wheels": [wheel.data for wheel in wheels]}
    write_atomically(place, json.dumps(data).encode())
