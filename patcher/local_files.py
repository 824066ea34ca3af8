"""Files of this host to an HTTP client: pages and wheels of ``file:`` URLs, by ranges as well."""

from __future__ import annotations

import io
import re
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import requests

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_KINDS = {".html": "text/html", ".htm": "text/html", ".json": "application/vnd.pypi.simple.v1+json"}


def adapter() -> requests.adapters.BaseAdapter:
    """What answers for ``file:``. A folder is its ``index.html``, as it is to pip and uv."""
    from requests.adapters import HTTPAdapter
    from urllib3 import HTTPResponse

    class LocalFiles(HTTPAdapter):
        def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
            status, headers, body = _answer(request.url or "", request.headers.get("Range"))
            raw = HTTPResponse(body, headers, status.value, preload_content=False)
            raw.reason = status.phrase
            return self.build_response(request, raw)

    return LocalFiles()


def _answer(url: str, asked: str | None) -> tuple[HTTPStatus, dict[str, str], BinaryIO]:
    path = Path(unquote(urlsplit(url).path))
    if path.is_dir():
        path /= "index.html"
    try:
        # Opening a pipe would wait for somebody to write into it.
        if not path.is_file():
            return HTTPStatus.NOT_FOUND, {}, io.BytesIO()
        file = path.open("rb")
    except PermissionError:
        return HTTPStatus.FORBIDDEN, {}, io.BytesIO()
    size = file.seek(0, io.SEEK_END)
    headers = {"Content-Type": _KINDS.get(path.suffix.lower(), "application/octet-stream")}
    if (span := _RANGE.fullmatch(asked or "")) is None:
        file.seek(0)
        return HTTPStatus.OK, headers, file
    with file:
        begin, end = int(span[1]), min(int(span[2]), size - 1)
        file.seek(begin)
        content = file.read(max(0, end - begin + 1))
    headers["Content-Range"] = f"bytes {begin}-{end}/{size}"
    return HTTPStatus.PARTIAL_CONTENT, headers, io.BytesIO(content)
