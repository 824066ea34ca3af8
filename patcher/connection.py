"""The connection to an index and to the hosts of its files: logins, trust, patience."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from posixpath import commonpath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import local_files
from .index_config import Index, certificates, configured, extras, proxies, trusted
from .outcome import ExitCode, KvpatchError
from .pip_command import pip_install
from .trusted import TrustedHosts

if TYPE_CHECKING:
    import requests
    from urllib3.response import BaseHTTPResponse

TIMEOUT_S = 20.0
"""Without a byte for so long a server is taken to be gone; it is asked three times more."""

MOST_PAUSE_S = 20.0
"""So long a server may ask to be left alone before it is tried again; it can ask for a day."""

_BUSY = (429, 500, 502, 503, 504)
_NOWHERE: list[tuple[str, tuple[str, str] | None]] = [("/", None)]
_LOGIN = {
    401: "it asks for a login",
    403: "it refuses this login, or one without",
    407: "the proxy asks for a login",
}


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

    class Patient(Retry):
        def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
            asked = super().get_retry_after(response)
            return None if asked is None else min(asked, MOST_PAUSE_S)

    class Session(requests.Session):
        def rebuild_auth(
            self, prepared_request: requests.PreparedRequest, response: requests.Response
        ) -> None:
            """For another host the login of that host; a server may not send to files of ours."""
            if urlsplit(prepared_request.url or "").scheme not in ("http", "https"):
                raise requests.exceptions.InvalidSchema
            super().rebuild_auth(prepared_request, response)  # type: ignore[no-untyped-call]
            if callable(self.auth):
                self.auth(prepared_request)

    again = [status for status in _BUSY if status not in index.passed]
    busy = Patient(total=3, backoff_factor=0.3, status_forcelist=again, redirect=10)
    main = configured()
    known = _known(main)
    if index not in known:
        known = _known(index)
    with Session() as session:
        known_by = certificates(index)
        session.verify = known_by.authorities or True
        session.cert = known_by.own
        hosts = trusted(index)
        adapter = _trusting(hosts) if hosts else requests.adapters.HTTPAdapter
        for scheme in ("https://", "http://"):
            session.mount(scheme, adapter(max_retries=busy, pool_maxsize=threads))
        session.mount("file://", local_files.adapter())
        session.auth = _logins_for(known)
        if (told := proxies(index)) is not None:
            session.proxies = {**told}
            session.trust_env = False
        yield session


def _known(index: Index) -> tuple[Index, ...]:
    more = extras(index)
    return (index, *more.indexes, *more.links)


def missing_extra() -> KvpatchError:
    """What to say where the libraries of the extra are not installed."""
    return KvpatchError(
        "no-validate-extra",
        "reading releases from a package index needs libraries that are not installed",
        f"run {pip_install(sys.executable, 'kvpatch[validate]')}",
        ExitCode.ENVIRONMENT,
    )


def no_network(what: str, error: Exception, where: str = "the package index") -> KvpatchError:
    """What to say of a failed request. Of the error only its kind: its text can hold a login."""
    # What urllib3 gave up for, such as NameResolutionError, is kept inside.
    reason = getattr(error.args[0], "reason", None) if error.args else None
    kind = type(error if reason is None else reason).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    hint = (
        "check the network, the proxy, the index and the certificates that pip or uv is configured "
        "with"
    )
    if status in _LOGIN:
        kind = f"HTTP {status}: {_LOGIN[status]}"
        hint = (
            "put the login of that host into the URL of the index that pip or uv is configured "
            "with, or into ~/.netrc"
        )
    elif status is not None:
        kind = f"HTTP {status}"
    elif kind == "ResponseError":
        # Such as "too many 503 error responses"; urllib3 says no more in it than that.
        kind = str(reason)
    elif type(error) is OSError and "certificate" in str(error):
        # Such as "..., invalid path: /nowhere"; no address is in it.
        kind = str(error)
    return KvpatchError(
        "no-network",
        f"{what} could not be read from {where} ({kind})",
        hint,
        ExitCode.ENVIRONMENT,
    )


def _trusting(hosts: TrustedHosts) -> type[requests.adapters.HTTPAdapter]:
    """An adapter that verifies all hosts but those, as each request comes to it, redirected too."""
    import requests
    import urllib3

    # Whoever trusts a host has said so already; pip and uv are silent as well.
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    class Trusting(requests.adapters.HTTPAdapter):
        def send(
            self,
            request: requests.PreparedRequest,
            stream: bool = False,
            timeout: Any = None,
            verify: bool | str = True,
            cert: Any = None,
            proxies: Any = None,
        ) -> requests.Response:
            if hosts.trusts(request.url or ""):
                verify = False
            return super().send(request, stream, timeout, verify, cert, proxies)

    return Trusting


def _logins_for(indexes: Sequence[Index]) -> requests.auth.AuthBase:
    """Each login for its own index; they come in the order in which they are asked.

    What lies elsewhere on the host of several gets that of the index whose path is nearest, the
    first of equals. Where that has none, and ~/.netrc has none, it gets the last there is for that
    host; and the page of an index without one, the last of those before it.

    A login in the URL itself goes before all of them.

    Source: pip's ``MultiDomainBasicAuth``; it looks at the host alone, this also at the scheme.
    """
    import requests

    places = [(_place(one.url), one.login) for one in indexes if one.url]

    class OwnHosts(requests.auth.AuthBase):
        def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
            if any(own := requests.utils.get_auth_from_url(request.url or "")):
                requests.auth.HTTPBasicAuth(*map(str.encode, own))(request)
                return request
            host, path = _place(request.url or "")
            near = [(at, login) for (there, at), login in places if there == host] or _NOWHERE
            nearest = max(near, key=lambda one: len(commonpath([one[0], path])))
            login = nearest[1]
            if login is None:
                if found := requests.utils.get_netrc_auth(request.url or ""):
                    requests.auth.HTTPBasicAuth(*found)(request)
                    return request
                asked = near[: near.index(nearest)] if path.startswith(nearest[0]) else near
                login = next((login for _, login in reversed(asked) if login), None)
            if login is not None:
                requests.auth.HTTPBasicAuth(*map(str.encode, login))(request)
            return request

    return OwnHosts()


def _place(url: str) -> tuple[tuple[str, str], str]:
    """Scheme and host with port, as requests asks for them, and the path with a slash after it."""
    import requests

    request = requests.PreparedRequest()
    # One that can't be asked for is the place of none.
    with contextlib.suppress(requests.RequestException):
        request.prepare_url(url, None)
    parts = urlsplit(request.url or "")
    return parts[:2], f"{parts.path.rstrip('/')}/"
