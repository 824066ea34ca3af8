"""Where releases come from: the index that pip and uv are configured with, and others beside."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from . import pip_config, uv_config
from .outcome import ExitCode, KvpatchError
from .trusted import TrustedHosts, of_pip, of_uv
from .uv_config import UvIndex

_PAGES = (".html", ".htm")
_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@dataclass(frozen=True)
class Index:
    """Where to ask. ``login`` belongs to that host alone, and is never shown or stored.

    ``url`` is None for the default of pip and uv. ``tool`` is whose configuration named it.
    ``absent`` is that of ``no-index``: there is none, and find-links alone count. A ``flat`` place
    lists files of any distribution; one that is ``beside`` is of find-links, and counts whichever
    index has them. ``passed`` are statuses of an index that has not got a distribution, with 404.
    """

    url: str | None
    login: tuple[str, str] | None = None
    tool: str = field(default="pip", compare=False)
    absent: bool = False
    flat: bool = False
    beside: bool = False
    passed: tuple[int, ...] = ()
    name: str = field(default="", compare=False)

    @property
    def folder(self) -> Path | None:
        """The folder with files that a flat place is, or the one file; else None."""
        parts = urlsplit(self.url or "")
        path = Path(unquote(parts.path))
        page = path.suffix.lower() in _PAGES
        return None if parts.scheme != "file" or not self.flat or page else path

    def __repr__(self) -> str:
        return f"Index({self.url!r}{', with a login' if self.login else ''})"


def configured(environ: Mapping[str, str] | None = None) -> Index:
    """The index that uv or pip is configured with: by a variable, else by pip's files or uv's."""
    given = os.environ if environ is None else environ
    for name in _VARIABLES:
        if value := given.get(name, "").strip():
            uvs = uv_config.named(value) if name == "UV_DEFAULT_INDEX" else UvIndex(value)
            index = _index(value) if name.startswith("PIP_") else _of_uv(uvs, given)
            return _unless_absent(index, given)
    pip = pip_config.read(given)
    if (value := pip.value("index-url")) or pip.flag("no-index"):
        return _unless_absent(_index(value), given)
    files = uv_config.read(given)
    if files.index or files.no_index:
        return _unless_absent(_of_uv(files.index or UvIndex(""), given), given)
    # Neither names one: who names further places rules, else who trusts hosts; pip before uv.
    pips = any(pip.value(option) for option in ("extra-index-url", "find-links"))
    by_uv = bool(files.extra or files.links)
    if not pips and not by_uv:
        pips = bool(pip.value("trusted-host"))
        by_uv = bool(_insecure_texts(given, files))
    return Index(None, None, "uv" if by_uv and not pips else "pip")


def _unless_absent(index: Index, environ: Mapping[str, str]) -> Index:
    """The index, or what stands for it where its tool is told to ask none.

    uv has no variable for that: ``UV_NO_INDEX`` means nothing to it.
    """
    if index.tool == "uv":
        absent = uv_config.read(environ).no_index
    else:
        absent = pip_config.read(environ).flag("no-index")
    return Index(None, None, index.tool, absent=True) if absent else index


@dataclass(frozen=True)
class Extras:
    """Further places with releases: indexes, and those of find-links, pages before folders."""

    indexes: tuple[Index, ...] = ()
    links: tuple[Index, ...] = ()


def extras(index: Index, environ: Mapping[str, str] | None = None) -> Extras:
    """The further indexes and find-links of the tool that named the index.

    Places on this host that are not there are left out, as pip does; uv stops at such find-links.
    """
    given = os.environ if environ is None else environ
    indexes: dict[Index, None] = {}
    if not index.absent:
        named = (one for one in _further(index, given) if _is_there(one))
        same = index.url, index.flat
        indexes = dict.fromkeys(one for one in named if (one.url, one.flat) != same)
    links: dict[Index, None] = {}
    for text in _link_texts(given, index.tool):
        path = str(Path(text).expanduser()) if text[0] == "~" else text
        place = replace(_index(path, index.tool), flat=True, beside=True)
        if index.tool == "uv":
            links[place] = None
        elif _is_there(place):
            links[place] = None
            if place.folder is not None and place.folder.is_dir():
                pages = sorted(p for p in place.folder.iterdir() if p.suffix.lower() in _PAGES)
                found = (replace(place, url=page.as_uri()) for page in pages)
                links |= dict.fromkeys(found)
    return Extras(tuple(indexes), tuple(sorted(links, key=lambda one: one.folder is not None)))


def places(index: Index, environ: Mapping[str, str] | None = None) -> tuple[Index, ...]:
    """The index and all places beside it; of files that fit as well, that of the first is taken.

    Source: pip's ``PackageFinder.find_all_candidates``, of which the last of equals is taken, and
    what uv takes (0.13): wheels of find-links, then those of the index that it comes to first.
    """
    more = extras(index, environ)
    main = () if index.absent else (index,)
    if index.tool == "uv":
        # Its own order of places with wheels, whatever the order in which they are named.
        links = sorted(more.links, key=lambda one: (one.folder is not None, one.url))
        return (*links, *more.indexes, *main)
    pages = [one for one in more.links if one.folder is None]
    folders = [one for one in more.links if one.folder is not None]
    return (*reversed(more.indexes), *main, *reversed(pages), *reversed(folders))


def first_only(index: Index, environ: Mapping[str, str] | None = None) -> bool:
    """Whether of several indexes only the first that has a distribution counts for it, as in uv."""
    given = os.environ if environ is None else environ
    if index.tool != "uv":
        return False
    told = given.get("UV_INDEX_STRATEGY") or uv_config.read(given).strategy
    return told in ("", "first-index")


def proxies(index: Index, environ: Mapping[str, str] | None = None) -> Mapping[str, str] | None:
    """The proxies by scheme that pip is told of; None where those of variables count."""
    given = os.environ if environ is None else environ
    pip = pip_config.read(given)
    if index.tool != "pip" or not (pip.value("proxy") or pip.flag("no-proxy-env")):
        return None
    return dict.fromkeys(("http", "https"), pip.value("proxy")) if pip.value("proxy") else {}


@dataclass(frozen=True)
class Certificates:
    """Files or folders: of the authorities to trust, and this client's own; None for defaults."""

    authorities: str | None = None
    own: str | None = None


def certificates(index: Index, environ: Mapping[str, str] | None = None) -> Certificates:
    """The certificates of the tool that named the index.

    What requests itself reads (``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE``) goes before it, as it
    does in pip.
    """
    given = os.environ if environ is None else environ
    # pip's own trust store knows these two as well, through OpenSSL.
    shared = given.get("SSL_CERT_FILE") or given.get("SSL_CERT_DIR")
    if index.tool == "uv":
        return Certificates(_path(shared), _path(given.get("SSL_CLIENT_CERT")))
    pip = pip_config.read(given)
    return Certificates(_path(pip.value("cert") or shared), _path(pip.value("client-cert")))


def trusted(index: Index, environ: Mapping[str, str] | None = None) -> TrustedHosts:
    """The hosts that the tool that named the index does not verify."""
    given = os.environ if environ is None else environ
    if index.tool == "uv":
        return of_uv(_insecure_texts(given, uv_config.read(given)))
    pip = pip_config.read(given)
    # With a file that it can't read pip does not start: nobody is trusted by what is left.
    return of_pip([] if pip.broken else pip.values("trusted-host"))


def refuse_plain(index: Index, environ: Mapping[str, str] | None = None) -> None:
    """See that it is one that pip would ask: not by plain http of a host that it does not trust.

    Raises:
        KvpatchError: ``untrusted-index``, exit 4.
    """
    if index.url is None or index.tool != "pip":
        return
    if not trusted(index, environ).lets_plain(index.url):
        raise KvpatchError(
            "untrusted-index",
            f"pip does not read the package index of {urlsplit(index.url).hostname}: its URL has "
            "no TLS, and pip was not told to trust that host",
            "give the URL with https://, or name the host in pip's trusted-host",
            ExitCode.ENVIRONMENT,
        )


def _path(text: str | None) -> str | None:
    return str(Path(text).expanduser()) if text else None


def _further(main: Index, environ: Mapping[str, str]) -> list[Index]:
    """The further indexes of the tool that named the index."""
    if main.tool != "uv":
        texts = pip_config.read(environ).values("extra-index-url")
        return [_index(text) for text in texts]
    texts = f"{environ.get('UV_INDEX', '')} {environ.get('UV_EXTRA_INDEX_URL', '')}".split()
    # Of indexes of one name uv takes the first.
    several: dict[str, UvIndex] = {}
    for one in (*map(uv_config.named, texts), *uv_config.read(environ).extra):
        several.setdefault(one.name or f"={one.url}", one)
    several.pop(main.name, None)
    return [_of_uv(one, environ) for one in several.values()]


def _link_texts(environ: Mapping[str, str], tool: str) -> list[str]:
    if tool == "uv":
        told = [text for text in environ.get("UV_FIND_LINKS", "").split(",") if text]
        return [*told, *uv_config.read(environ).links]
    return pip_config.read(environ).values("find-links")


def _insecure_texts(environ: Mapping[str, str], files: uv_config.UvFiles) -> list[str]:
    # With a file that it refuses uv does not start: nobody is trusted by what is left.
    if files.refused:
        return []
    return [*environ.get("UV_INSECURE_HOST", "").split(), *files.insecure]


def _is_there(place: Index) -> bool:
    parts = urlsplit(place.url or "")
    return parts.scheme != "file" or os.access(unquote(parts.path), os.F_OK)


def _of_uv(one: UvIndex, environ: Mapping[str, str]) -> Index:
    place = replace(_index(one.url, "uv"), name=one.name, flat=one.flat, passed=one.passed)
    own = uv_config.login(one.name, environ)
    # A password in the URL goes before those of variables.
    return place if own is None or (place.login and place.login[1]) else replace(place, login=own)


def _index(url: str, tool: str = "pip") -> Index:
    if not url:
        return Index(None, None, tool)
    if ":" not in url.partition("/")[0]:
        return Index(Path(url).absolute().as_uri(), None, tool)
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return Index(url, None, tool)
    _, _, host = parts.netloc.rpartition("@")
    login = (unquote(parts.username or ""), unquote(parts.password or ""))
    return Index(urlunsplit(parts._replace(netloc=host)), login, tool)
