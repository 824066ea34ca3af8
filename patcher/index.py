"""The releases of a distribution on the configured package index."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from .outcome import ExitCode, KvpatchError

if TYPE_CHECKING:
    import requests

_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@dataclass(frozen=True)
class Wheel:
    """One wheel on an index; ``size`` in bytes and ``sha256`` where the index says them."""

    distribution: str
    version: Version
    filename: str
    url: str
    size: int | None = None
    sha256: str | None = None
    yanked: bool = False


def releases(distribution: str, spec: str = "", *, pre: bool = False) -> tuple[Wheel, ...]:
    """One wheel a release, the one for x86-64 Linux where there are several, oldest first.

    Args:
        distribution: its name on the index.
        spec: which releases, by PEP 440.
        pre: whether pre-releases and development releases count.

    Raises:
        KvpatchError: ``no-index``, where the index can't be read; exit 4.
    """
    wanted = SpecifierSet(spec)
    best: dict[Version, Wheel] = {}
    for wheel in _wheels(distribution):
        version = wheel.version
        if wheel.yanked or (version.is_prerelease and not pre):
            continue
        if not wanted.contains(version, prereleases=True):
            continue
        if version not in best or "x86_64" in wheel.filename:
            best[version] = wheel
    return tuple(best[version] for version in sorted(best))


def session() -> requests.Session:
    """An HTTP session that reuses connections and trusts the certificates pip is told to trust.

    Raises:
        KvpatchError: ``no-client``, where the extra that brings the client is not installed.
    """
    try:
        import requests
    except ImportError as error:
        raise _no_client() from error
    opened = requests.Session()
    certificates = os.environ.get("PIP_CERT")
    if certificates and "REQUESTS_CA_BUNDLE" not in os.environ:
        opened.verify = certificates
    return opened


def configured_index(environ: Mapping[str, str], files: Iterable[Path]) -> str | None:
    """The index that uv or pip is configured with; None for the default one."""
    for name in _VARIABLES:
        if environ.get(name):
            return environ[name]
    found = None
    for path in files:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(path)
            found = parser.get("global", "index-url", fallback=found)
        except configparser.Error:
            continue
    return found


def pip_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """pip's configuration files, the one that rules last."""
    home = Path(environ.get("HOME", "/"))
    user = Path(environ.get("XDG_CONFIG_HOME", home / ".config"))
    named = [Path(environ["PIP_CONFIG_FILE"])] if environ.get("PIP_CONFIG_FILE") else []
    return (
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip" / "pip.conf",
        user / "pip" / "pip.conf",
        Path(sys.prefix) / "pip.conf",
        *named,
    )


def without_credentials(url: str) -> str:
    """The address with a user and password left out, to be shown."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host))


def _wheels(distribution: str) -> Iterable[Wheel]:
    try:
        from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple
    except ImportError as error:
        raise _no_client() from error
    index = configured_index(os.environ, pip_files(os.environ)) or PYPI_SIMPLE_ENDPOINT
    try:
        with PyPISimple(index, session=session()) as client:
            packages: list[Any] = client.get_project_page(distribution, timeout=60).packages
    except Exception as error:
        raise KvpatchError(
            "no-index",
            f"the releases of {distribution} can't be read: {type(error).__name__}",
            "check the network and the configured index, then run it again",
            ExitCode.ENVIRONMENT,
        ) from error
    for package in packages:
        if package.package_type == "wheel" and package.version is not None:
            try:
                version = Version(package.version)
            except InvalidVersion:
                continue
            yield Wheel(
                distribution=distribution,
                version=version,
                filename=package.filename,
                url=package.url,
                size=package.size,
                sha256=package.digests.get("sha256"),
                yanked=package.is_yanked,
            )


def _no_client() -> KvpatchError:
    return KvpatchError(
        "no-client",
        "reading a package index needs libraries that are not installed",
        'install them with `pip install "kvpatch[validate]"`',
        ExitCode.ENVIRONMENT,
    )
