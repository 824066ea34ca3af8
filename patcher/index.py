"""Releases of a distribution on the package index that pip and uv are configured with."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from .digest import sha256
from .outcome import ExitCode, KvpatchError

if TYPE_CHECKING:
    import requests

TIMEOUT_S = 60.0
_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_SCHEMA = 1


@dataclass(frozen=True)
class Wheel:
    """One wheel of one release: what the index says of it. ``size`` is in bytes."""

    distribution: str
    version: Version
    filename: str
    url: str
    size: int | None
    sha256: str | None
    yanked: bool


@dataclass(frozen=True)
class Index:
    """Where to ask. ``login`` belongs to that host alone, and is never shown or stored.

    ``url`` is None for the index client's own default.
    """

    url: str | None
    login: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return f"Index({self.url!r}{', with a login' if self.login else ''})"


def configured(environ: Mapping[str, str] | None = None) -> Index:
    """The index that uv or pip is configured with: by a variable, else by pip's files.

    Further indexes (``extra-index-url``) are not asked: a release of theirs is another build.
    """
    given = os.environ if environ is None else environ
    for name in _VARIABLES:
        # uv also takes "name=url".
        value = given.get(name, "").strip()
        label, equals, rest = value.partition("=")
        if name == "UV_DEFAULT_INDEX" and equals and "/" not in label:
            value = rest
        if value:
            return _index(value)
    for path in _pip_files(given):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue
        if value := parser.get("global", "index-url", fallback="").strip():
            return _index(value)
    return Index(None)


@contextlib.contextmanager
def connection(index: Index, *, threads: int = 1) -> Iterator[requests.Session]:
    """A session that keeps its connections, tries again on a busy server, and knows the login.

    Raises:
        KvpatchError: ``no-validate-extra``, exit 4.
    """
    try:
        import requests
        from urllib3.util.retry import Retry
    except ImportError:
        raise missing_extra() from None
    busy = Retry(
        total=3, backoff_factor=0.3, status_forcelist=(429, 500, 502, 503, 504), redirect=10
    )
    with requests.Session() as session:
        for scheme in ("https://", "http://"):
            adapter = requests.adapters.HTTPAdapter(max_retries=busy, pool_maxsize=threads)
            session.mount(scheme, adapter)
        if index.url is not None and index.login is not None:
            session.auth = _login_for(index.url, index.login)
        yield session


def releases(
    distribution: str,
    spec: str = "",
    *,
    pre: bool = False,
    index: Index | None = None,
    cache: Path | None = None,
    max_age_s: float = 3600.0,
) -> tuple[Wheel, ...]:
    """One wheel of each release, by version; a wheel for x86_64 Linux where there is one.

    Args:
        distribution: its name on the index.
        spec: a PEP 440 specifier set that the releases are in.
        pre: whether pre-releases and development releases count.
        index: the one to ask; None for the one pip and uv are configured with.
        cache: a folder that keeps the list; None keeps nothing.
        max_age_s: how many seconds a kept list is good for.

    Raises:
        KvpatchError: ``no-network``, ``no-such-distribution``, ``no-validate-extra``; exit 4.
    """
    asked = configured() if index is None else index
    name = canonicalize_name(distribution)
    place = None if cache is None else _kept_place(cache, asked, name)
    wheels = None if place is None else _kept(place, max_age_s)
    if wheels is None:
        wheels = _one_each(_fetch(asked, name))
        if place is not None:
            _keep(place, wheels)
    wanted = SpecifierSet(spec)
    return tuple(
        wheel
        for wheel in wheels
        if wanted.contains(wheel.version, prereleases=True)
        and (pre or not wheel.version.is_prerelease)
    )


def wheels_of(
    distribution: str, version: Version, *, index: Index | None = None
) -> tuple[Wheel, ...]:
    """Every wheel of one release, for whatever platform and Python.

    Raises:
        KvpatchError: ``no-network``, ``no-such-distribution``, ``no-validate-extra``; exit 4.
    """
    asked = configured() if index is None else index
    found = _fetch(asked, canonicalize_name(distribution))
    return tuple(wheel for wheel in found if wheel.version == version)


def kept_releases(distribution: str, *, cache: Path) -> tuple[Wheel, ...]:
    """What an earlier run kept, however old, pre-releases included; empty where nothing is."""
    return _kept(_kept_place(cache, configured(), canonicalize_name(distribution)), None) or ()


def write_atomically(path: Path, data: bytes) -> None:
    """Puts a file of the cache in place whole, so that other processes may read at any moment.

    Raises:
        KvpatchError: ``no-cache``, exit 4.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise KvpatchError(
            "no-cache",
            f"{path.parent} can't be written: {error.strerror}",
            "make room, or set XDG_CACHE_HOME to a folder that can be written",
            ExitCode.ENVIRONMENT,
        ) from None


def missing_extra() -> KvpatchError:
    """What to say where the libraries of the extra are not installed."""
    return KvpatchError(
        "no-validate-extra",
        "reading releases from a package index needs libraries that are not installed",
        'run pip install "kvpatch[validate]"',
        ExitCode.ENVIRONMENT,
    )


def no_network(what: str, error: Exception) -> KvpatchError:
    """What to say of a failed request. Of the error only its kind: its text can hold a login."""
    return KvpatchError(
        "no-network",
        f"{what} could not be read from the package index ({type(error).__name__})",
        "check the network, the proxy and the index that pip or uv is configured with; a private "
        "certificate goes into REQUESTS_CA_BUNDLE",
        ExitCode.ENVIRONMENT,
    )


def _fetch(index: Index, name: str) -> list[Wheel]:
    try:
        import requests
        from pypi_simple import (
            PYPI_SIMPLE_ENDPOINT,
            NoSuchProjectError,
            PyPISimple,
            UnsupportedContentTypeError,
            UnsupportedRepoVersionError,
        )
    except ImportError:
        raise missing_extra() from None
    what = f"the list of releases of {name}"
    try:
        with connection(index) as session:
            client = PyPISimple(index.url or PYPI_SIMPLE_ENDPOINT, session=session)
            packages = client.get_project_page(name, timeout=TIMEOUT_S).packages
    except NoSuchProjectError:
        raise KvpatchError(
            "no-such-distribution",
            f"the package index has no distribution {name}",
            "check the name, and the index that pip or uv is configured with",
            ExitCode.ENVIRONMENT,
        ) from None
    except (
        requests.RequestException,
        UnsupportedContentTypeError,
        UnsupportedRepoVersionError,
        # A page that is not what it says it is.
        ValueError,
        KeyError,
        TypeError,
    ) as error:
        raise no_network(what, error) from None
    wheels = []
    for package in packages:
        if package.package_type != "wheel":
            continue
        try:
            _, version, _, _ = parse_wheel_filename(package.filename)
        except InvalidWheelFilename:
            continue
        digest = package.digests.get("sha256")
        yanked = bool(package.is_yanked)
        wheels.append(
            Wheel(name, version, package.filename, package.url, package.size, digest, yanked)
        )
    return wheels


def _one_each(wheels: list[Wheel]) -> tuple[Wheel, ...]:
    chosen: dict[Version, Wheel] = {}
    for wheel in wheels:
        other = chosen.get(wheel.version)
        if other is None or _preference(wheel) < _preference(other):
            chosen[wheel.version] = wheel
    return tuple(chosen[version] for version in sorted(chosen))


def _preference(wheel: Wheel) -> tuple[bool, int, str]:
    """Which of a release's wheels to read: not yanked, then by platform, then always the same."""
    _, _, _, tags = parse_wheel_filename(wheel.filename)
    platforms = {tag.platform for tag in tags}
    if any("linux" in platform and "x86_64" in platform for platform in platforms):
        rank = 0
    elif "any" in platforms:
        rank = 1
    else:
        rank = 2 if any("linux" in platform for platform in platforms) else 3
    return wheel.yanked, rank, wheel.filename


def _index(url: str) -> Index:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return Index(url)
    _, _, host = parts.netloc.rpartition("@")
    login = (unquote(parts.username or ""), unquote(parts.password or ""))
    return Index(urlunsplit(parts._replace(netloc=host)), login)


def _login_for(url: str, login: tuple[str, str]) -> requests.auth.AuthBase:
    import requests

    origin = urlsplit(url)[:2]
    pair = b64encode(":".join(login).encode()).decode()

    class OneHost(requests.auth.AuthBase):
        def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
            if urlsplit(request.url or "")[:2] == origin:
                request.headers["Authorization"] = f"Basic {pair}"
            return request

    return OneHost()


def _pip_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, the one that rules first."""
    home = Path(environ.get("HOME") or Path.home())
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    files = [Path(environ.get("VIRTUAL_ENV") or sys.prefix) / "pip.conf"]
    files += [config / "pip" / "pip.conf", home / ".pip" / "pip.conf"]
    files += [Path(folder) / "pip" / "pip.conf" for folder in shared if folder]
    files.append(Path("/etc/pip.conf"))
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    return [Path(named), *files] if named else files


def _kept_place(cache: Path, index: Index, name: str) -> Path:
    digest = sha256(f"{index.url}".encode())[:12]
    return cache / "index" / digest / f"{name}.json"


def _kept(place: Path, max_age_s: float | None) -> tuple[Wheel, ...] | None:
    try:
        data = json.loads(place.read_bytes())
        age = time.time() - data["asked"]
        if data["schema"] != _SCHEMA or (max_age_s is not None and not 0 <= age <= max_age_s):
            return None
        return tuple(
            Wheel(**{**entry, "version": Version(entry["version"])}) for entry in data["wheels"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(place: Path, wheels: tuple[Wheel, ...]) -> None:
    entries = [{**asdict(wheel), "version": str(wheel.version)} for wheel in wheels]
    data = {"schema": _SCHEMA, "asked": time.time(), "wheels": entries}
    write_atomically(place, json.dumps(data).encode())
