"""Files of this host by an HTTP client: whole, by ranges, and what is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kvpatch.connection import connection
from kvpatch.index_config import Index
from kvpatch.outcome import KvpatchError
from kvpatch.ranged import RangedFile
from web import Answer, serving

CONTENT = bytes(range(256)) * 16


def test_a_file_is_read_whole_and_by_ranges(tmp_path: Path) -> None:
    path = tmp_path / "a b#c.whl"
    path.write_bytes(CONTENT)
    with connection(Index(None)) as session:
        assert session.get(path.as_uri()).content == CONTENT
        file = RangedFile(session, path.as_uri(), None, "it", tail=10)
        assert file.size == len(CONTENT)
        file.seek(100)
        assert file.read(50) == CONTENT[100:150]


def test_a_folder_is_its_page_and_what_is_not_there_is_missing(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<a>")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with connection(Index(None)) as session:
        page = session.get(f"{tmp_path.as_uri()}/")
        assert (page.text, page.headers["Content-Type"]) == ("<a>", "text/html")
        for name in ("empty/", "pipe", "nothing"):
            assert session.get(f"{tmp_path.as_uri()}/{name}").status_code == 404


def test_a_server_can_not_send_to_a_file_of_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "secret").write_bytes(CONTENT)
    to = {"Location": (tmp_path / "secret").as_uri()}
    with serving(lambda _: Answer(b"", 302, to)) as web, connection(Index(web.url)) as session:
        with pytest.raises(KvpatchError, match="InvalidSchema") as caught:
            RangedFile(session, f"{web.url}/x", None, "it")
        assert caught.value.code == "no-network"
