"""The connection to an index: who is asked again, what is told of a failure, where logins go."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvpatch.connection import MOST_PAUSE_S, connection
from kvpatch.index import Index, configured, releases
from kvpatch.outcome import ExitCode, KvpatchError
from web import Answer, Asked, Web, page, serving

WHEEL = "demo-1.0-py3-none-any.whl"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(lambda _: page([WHEEL])) as server:
        yield server


def found(web: Web) -> list[str]:
    return [wheel.filename for wheel in releases("demo", index=Index(f"{web.url}/simple/"))]


def test_why_an_index_can_t_be_reached_is_told_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpatch.index.TIMEOUT_S", 0.05)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        where = Index(f"http://127.0.0.1:{one.getsockname()[1]}/simple/")
        with pytest.raises(KvpatchError, match=r"\(NewConnectionError\)"):
            releases("demo", index=where)
        one.listen()
        # It takes the connection, and never answers.
        with pytest.raises(KvpatchError, match=r"\(ReadTimeoutError\)"):
            releases("demo", index=where)


@pytest.mark.parametrize(
    ("status", "told", "hint"),
    [
        (401, "(HTTP 401: it asks for a login)", "netrc"),
        (403, "(HTTP 403: it refuses this login, or one without)", "netrc"),
        (407, "(HTTP 407: the proxy asks for a login)", "netrc"),
        (410, "(HTTP 410)", "check the network"),
        (503, "(too many 503 error responses)", "check the network"),
    ],
)
def test_what_the_index_answers_instead_is_told_and_what_to_do(
    web: Web, monkeypatch: pytest.MonkeyPatch, status: int, told: str, hint: str
) -> None:
    monkeypatch.setattr("urllib3.util.retry.Retry.sleep", lambda *_: None)
    web.answer = lambda _: Answer(b"", status)
    with pytest.raises(KvpatchError) as caught:
        found(web)
    assert told in caught.value.message
    assert hint in caught.value.hint


def test_a_failed_request_names_no_login_and_no_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    index = configured({"PIP_INDEX_URL": f"http://me:secret@127.0.0.1:{port}/simple"})
    with pytest.raises(KvpatchError) as caught:
        releases("demo", index=index)
    told = f"{caught.value.message} {caught.value.hint} {caught.value!r} {index!r}"
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "secret" not in told
    assert caught.value.__suppress_context__


def test_the_login_goes_to_its_own_host_alone_and_into_no_file(web: Web, tmp_path: Path) -> None:
    index = configured({"PIP_INDEX_URL": f"http://me:s%40cret@{web.host}/simple"})
    assert index.login == ("me", "s@cret")
    (first, *_) = releases("demo", index=index, cache=tmp_path)
    assert web.asked[0].authorization == "Basic bWU6c0BjcmV0"
    assert "cret" not in first.url
    assert all("cret" not in path.read_text() for path in tmp_path.rglob("*.json"))
    with serving(lambda _: Answer(b"")) as other, connection(index) as session:
        session.get(f"{other.url}/file", timeout=5)
        assert other.asked[0].authorization is None


def test_a_busy_index_is_asked_again(web: Web) -> None:
    def answer(_: Asked) -> Answer:
        return Answer(b"", 503) if len(web.asked) == 1 else page([WHEEL])

    web.answer = answer
    assert found(web) == [WHEEL]
    assert len(web.asked) == 2


def test_a_server_that_asks_to_be_left_alone_for_a_day_is_not(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", slept.append)
    web.answer = lambda _: Answer(b"", 503, {"Retry-After": "86400"})
    with pytest.raises(KvpatchError, match="too many 503"):
        found(web)
    assert slept == [MOST_PAUSE_S] * 3
    slept.clear()
    web.answer = lambda _: Answer(b"", 429, {"Retry-After": "2"})
    with pytest.raises(KvpatchError, match="too many 429"):
        found(web)
    assert slept == [2.0] * 3
