"""Where releases come from: the index that pip and uv are configured with, and others beside."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from . import pip_config, uv_config
from .outcome import ExitCode, KvpatchError
from .trusted import TrustedHosts, of_pip, of_uv

_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@dataclass(frozen=True)
class Index:
    """Where to ask. ``login`` belongs to that host alone, and is never shown or stored.

    ``url`` is None for the index client's own default. ``tool`` is whose configuration named it.
    """

    url: str | None
    login: tuple[str, str] | None = None
    tool: str = field(default="pip", compare=False)

    def __repr__(self) -> str:
        return f"Index({self.url!r}{', with a login' if self.login else ''})"


def configured(environ: Mapping[str, str] | None = None) -> Index:
    """The index that uv or pip is configured with: by a variable, else by pip's files or uv's."""
    given = os.environ if environ is None else environ
    for name in _VARIABLES:
        # uv also takes "name=url".
        value = given.get(name, "").strip()
        label, equals, rest = value.partition("=")
        if name == "UV_DEFAULT_INDEX" and equals and "/" not in label:
            value = rest
        if value:
            return _index(value, name.partition("_")[0].lower())
    pip = pip_config.read(given)
    if value := pip.value("index-url"):
        return _index(value)
    files = uv_config.read(given)
    if files.index:
        return _index(files.index, "uv")
    # Neither names one: who names further places rules, else who trusts hosts; pip before uv.
    pips = any(pip.value(option) for option in ("extra-index-url", "find-links"))
    uvs = bool(files.extra or files.links)
    if not pips and not uvs:
        pips = bool(pip.value("trusted-host"))
        uvs = bool(_insecure_texts(given, files))
    return Index(None, None, "uv" if uvs and not pips else "pip")


@dataclass(frozen=True)
class Extras:
    """Further places with releases: indexes, and folders of this host that hold wheels."""

    indexes: tuple[Index, ...] = ()
    folders: tuple[Path, ...] = ()


def extras(index: Index, environ: Mapping[str, str] | None = None) -> Extras:
    """The further indexes and find-links of the tool that named the index.

    Places on this host that are not there are left out, as pip does. Of find-links those that are
    folders are taken; pages of links are not read.
    """
    given = os.environ if environ is None else environ
    indexes: list[Index] = []
    folders: dict[Path, None] = {}
    for text in _extra_texts(given, index.tool):
        parts = urlsplit(text)
        if parts.scheme in ("http", "https"):
            indexes.append(_index(text, index.tool))
    for text in _link_texts(given, index.tool):
        parts = urlsplit(text)
        folder = Path(unquote(parts.path)) if parts.scheme == "file" else Path(text).expanduser()
        if parts.scheme in ("", "file") and folder.is_dir():
            folders.setdefault(folder)
    known = dict.fromkeys(one for one in indexes if one.url != index.url)
    return Extras(tuple(known), tuple(folders))


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


def _extra_texts(environ: Mapping[str, str], tool: str) -> list[str]:
    if tool == "uv":
        texts = f"{environ.get('UV_INDEX', '')} {environ.get('UV_EXTRA_INDEX_URL', '')}".split()
        named = (text.partition("=") for text in texts)
        told = [
            rest if equals and "/" not in label else f"{label}{equals}{rest}"
            for label, equals, rest in named
        ]
        return [*told, *uv_config.read(environ).extra]
    return pip_config.read(environ).values("extra-index-url")


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


def _index(url: str, tool: str = "pip") -> Index:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return Index(url, None, tool)
    _, _, host = parts.netloc.rpartition("@")
    login = (unquote(parts.username or ""), unquote(parts.password or ""))
    return Index(urlunsplit(parts._replace(netloc=host)), login, tool)
