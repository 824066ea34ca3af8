"""The connection to an index: who is asked again, what is told of a failure, where logins go."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
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


@pytest.mark.installers
@pytest.mark.parametrize("files", ["files", "x/files", "y/files"])
@pytest.mark.parametrize(
    ("index", "further", "netrc"),
    [
        ("a:1@127.0.0.1", "b:2@127.0.0.1", False),
        ("127.0.0.1", "b:2@127.0.0.1", False),
        ("127.0.0.1", "b:2@127.0.0.1", True),
        ("a:1@127.0.0.1", "127.0.0.1", False),
        ("b:2@127.0.0.1", "a:1@LOCALHOST", False),
        ("a:1@127.0.0.1", "b:2@localhost", False),
    ],
)
def test_of_two_logins_for_one_host_each_goes_where_real_pip_sends_it(
    web: Web,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    index: str,
    further: str,
    netrc: bool,
    files: str,
) -> None:
    def answer(asked: Asked) -> Answer:
        number = {"/x/simple/demo/": 1, "/y/simple/demo/": 2}.get(asked.path)
        if number is None:
            return Answer(b"", 404)
        listed = page([f"demo-{number}.0-py3-none-any.whl"])
        body = listed.body.replace(b"/files/", f"/{files}/".encode())
        return Answer(body, headers=listed.headers)

    def sent() -> dict[str, str | None]:
        told = {asked.path: asked.authorization for asked in web.asked}
        web.asked.clear()
        return told

    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login c password 3\n" if netrc else "")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://{index}:{web.port}/x/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"http://{further}:{web.port}/y/simple/")
    web.answer = answer
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--retries", "0", "demo"]
    subprocess.run(
        [*command, "--no-input", "--disable-pip-version-check"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    expected = sent()
    assert len(expected) == 3
    found = releases("demo")
    with connection(configured()) as session:
        session.get(found[-1].url, timeout=5)
    assert sent() == expected


def listing_of(url: str) -> Answer:
    return Answer(f'<a href="{url}">x</a>'.encode(), headers={"Content-Type": "text/html"})


def test_a_login_in_the_url_of_a_file_goes_before_that_of_the_index_and_is_kept_nowhere(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:one@{web.host}/simple/")
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    web.answer = lambda _: listing_of(f"http://me:other@{web.host}/{WHEEL}")
    (wheel,) = releases("demo", cache=tmp_path)
    with connection(configured()) as session:
        session.get(wheel.url)
    assert [asked.authorization for asked in web.asked] == ["Basic bWU6b25l", "Basic bWU6b3RoZXI="]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    web.answer = lambda _: listing_of(f"http://{web.host}/{WHEEL}")
    releases("demo", cache=tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["demo.json"]


def test_after_a_redirect_the_login_is_that_of_the_host_it_leads_to(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def guarded(asked: Asked) -> Answer:
        mine = asked.authorization == "Basic eW91Om90aGVy"
        return page([WHEEL]) if mine else Answer(b"", 401)

    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    with serving(guarded) as other:
        there = f"localhost:{other.port}"
        web.answer = lambda asked: Answer(b"", 302, {"Location": f"http://{there}{asked.path}"})
        index = Index(f"{web.url}/simple/", ("me", "one"))
        with pytest.raises(KvpatchError, match="HTTP 401"):
            releases("demo", index=index)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"http://you:other@{there}/other/simple/")
        assert [wheel.filename for wheel in releases("demo", index=index)] == [WHEEL]
        assert "Basic bWU6b25l" not in {asked.authorization for asked in other.asked}
