"""A web server in this process, for tests of what is read from a package index."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trustme


@dataclass
class Asked:
    """One request as it came in; ``connection`` is the same for all that came over one."""

    path: str
    range: str | None
    authorization: str | None
    connection: tuple[str, int]


@dataclass
class Answer:
    """What the server sends back. ``length`` is what it claims to send."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


@dataclass
class Web:
    """The running server: where it is, and what it was asked so far."""

    host: str
    asked: list[Asked]
    answer: Callable[[Asked], Answer]
    scheme: str = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}"

    @property
    def port(self) -> str:
        return self.host.rpartition(":")[2]


def missing(_: Asked) -> Answer:
    return Answer(b"not here", 404)


@contextlib.contextmanager
def serving(
    answer: Callable[[Asked], Answer] = missing, certificate: Path | None = None
) -> Iterator[Web]:
    """A server on a free port; what it answers may be exchanged while it runs.

    With a ``certificate`` (and its key in the same file) it speaks TLS.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = self.headers
            asked = Asked(
                self.path, headers.get("Range"), headers.get("Authorization"), self.client_address
            )
            web.asked.append(asked)
            told = web.answer(asked)
            self.send_response(told.status)
            length = len(told.body) if told.length is None else told.length
            for name, value in {"Content-Length": str(length), **told.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(told.body)
            if told.length is not None:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web = Web(f"127.0.0.1:{server.server_port}", [], answer)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        web.scheme = "https"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def untrusted(folder: Path) -> Path:
    """A certificate for 127.0.0.1 and localhost of an authority that nobody knows, with its key."""
    made = folder / "untrusted.pem"
    trustme.CA().issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
        made
    )
    return made


def ranges_of(data: bytes) -> Callable[[Asked], Answer]:
    """A file server that knows explicit ranges, and answers suffix ranges with 501."""

    def answer(asked: Asked) -> Answer:
        if asked.range is None:
            return Answer(data)
        first, _, last = asked.range.removeprefix("bytes=").partition("-")
        if not first or not last:
            return Answer(b"", 501)
        start, end = int(first), min(int(last), len(data) - 1)
        content_range = f"bytes {start}-{end}/{len(data)}"
        return Answer(data[start : end + 1], 206, {"Content-Range": content_range})

    return answer


def page(files: list[str], yanked: tuple[str, ...] = ()) -> Answer:
    """An index's page of the project ``demo`` in JSON, with those files below ``/files/``."""
    entries = [
        {
            "filename": name,
            "url": f"/files/{name}",
            "hashes": {"sha256": f"{number:064x}"},
            "size": 1000 + number,
            "yanked": "broken" if name in yanked else False,
        }
        for number, name in enumerate(files)
    ]
    data = {"meta": {"api-version": "1.1"}, "name": "demo", "files": entries, "versions": []}
    kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
    return Answer(json.dumps(data).encode(), headers=kind)
