"""The hosts that pip or uv was told to trust without a certificate; every other is verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

_EVERY = "*"
_TLS_PORT = 443


@dataclass(frozen=True)
class TrustedHosts:
    """Names of hosts, each with the port that alone is meant; None for all of its ports.

    ``every`` is uv's ``*``, which means any host at all.
    """

    hosts: frozenset[tuple[str, int | None]] = frozenset()
    every: bool = False

    def __bool__(self) -> bool:
        return bool(self.hosts) or self.every

    @property
    def key(self) -> str:
        """A text that is the same for the same hosts alone."""
        named = sorted(f"{host} {port or ''}" for host, port in self.hosts)
        return repr((self.every, named))

    def trusts(self, url: str) -> bool:
        """Whether the certificate of that URL's host is not to be looked at.

        A port counts as pip and uv take it: as the URL has it, and not by the scheme.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            return False
        return bool(host) and (
            self.every or not self.hosts.isdisjoint({(host, None), (host, port)})
        )

    def lets_plain(self, url: str) -> bool:
        """Whether pip asks that URL for a list of releases: by TLS, of this host, or trusted.

        Source: pip's ``PipSession.is_secure_origin``.
        """
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme != "http" or host == "localhost" or self.trusts(url):
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False


def of_pip(texts: Iterable[str]) -> TrustedHosts:
    """Those of pip's ``trusted-host``: ``host`` or ``host:port``.

    What is anything else, and matches nothing in pip or keeps it from starting, trusts nothing.
    """
    return TrustedHosts(frozenset(_parsed(texts)))


def of_uv(texts: Iterable[str]) -> TrustedHosts:
    """Those of uv's ``allow-insecure-host``: as pip's, or a URL, or ``*``.

    uv compares names as they are written, knows no address of IPv6, and matches no URL that has the
    port of its scheme with an entry that has it. What it refuses to start with trusts nothing.
    """
    found = list(texts)
    told = [text.removeprefix("https://") for text in found if not text.startswith("http://")]
    names = [
        text.partition("/")[0]
        for text in told
        if text == text.lower() and text.count(":") + ("/" in text) <= 1
    ]
    hosts = frozenset((host, port) for host, port in _parsed(names) if port != _TLS_PORT)
    return TrustedHosts(hosts, _EVERY in found)


def _parsed(texts: Iterable[str]) -> Iterator[tuple[str, int | None]]:
    for text in texts:
        if set(text) & set("/@?#\\") or text.endswith(":"):
            continue
        # Two colons without brackets are an address of IPv6 alone.
        bare = text.count(":") > 1 and "[" not in text
        try:
            parts = urlsplit(f"https://[{text}]" if bare else f"https://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            continue
        if host and host != _EVERY:
            yield host, port
