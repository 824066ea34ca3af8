"""Further places with releases, as pip and uv are told of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from kvpatch import pip_config
from kvpatch.connection import connection
from kvpatch.index import releases
from kvpatch.index_config import Certificates, Index, certificates, configured, extras
from kvpatch.outcome import ExitCode, KvpatchError
from web import Answer, Asked, page, serving

PIP = {"PIP_INDEX_URL": "https://a.invalid/simple"}
UV = {"UV_DEFAULT_INDEX": "https://a.invalid/simple"}


def urls(environ: Mapping[str, str], home: Path) -> list[str | None]:
    given = {"HOME": str(home), "VIRTUAL_ENV": str(home), "XDG_CONFIG_DIRS": str(home), **environ}
    return [one.url for one in extras(configured(given), given).indexes]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (
            {**PIP, "PIP_EXTRA_INDEX_URL": "https://b.invalid/x https://c.invalid/x"},
            ["https://b.invalid/x", "https://c.invalid/x"],
        ),
        ({**PIP, "PIP_EXTRA_INDEX_URL": "file:///nowhere https://a.invalid/simple"}, []),
        ({**UV, "UV_INDEX": "own=https://b.invalid/x"}, ["https://b.invalid/x"]),
        ({**UV, "UV_INDEX": "https://b.invalid/x?a=b"}, ["https://b.invalid/x?a=b"]),
        ({**UV, "UV_EXTRA_INDEX_URL": "https://b.invalid/x"}, ["https://b.invalid/x"]),
        # Each tool has its own.
        ({**UV, "PIP_EXTRA_INDEX_URL": "https://b.invalid/x"}, []),
        ({**PIP, "UV_INDEX": "https://b.invalid/x"}, []),
    ],
)
def test_extra_indexes_are_those_of_the_tool_that_named_the_index(
    tmp_path: Path, environ: Mapping[str, str], expected: list[str]
) -> None:
    if "UV_DEFAULT_INDEX" not in environ and "PIP_EXTRA_INDEX_URL" not in environ:
        environ = {**environ, "PIP_CONFIG_FILE": "/dev/null"}
    assert urls({"PIP_CONFIG_FILE": "/dev/null", **environ}, tmp_path) == expected


def test_pips_file_names_extra_indexes_and_folders_with_wheels(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://a.invalid/simple\n"
        "extra-index-url =\n    https://b.invalid/x\n    https://c.invalid/x\n"
        f"find-links = {tmp_path} file://{tmp_path} /nowhere https://d.invalid/links\n"
    )
    environ = {"PIP_CONFIG_FILE": str(config), "HOME": str(tmp_path)}
    found = extras(configured(environ), environ)
    assert [one.url for one in found.indexes] == ["https://b.invalid/x", "https://c.invalid/x"]
    assert found.folders == (tmp_path,)


def test_the_login_of_an_extra_index_is_kept_apart_and_not_shown(tmp_path: Path) -> None:
    environ = {**PIP, "PIP_EXTRA_INDEX_URL": "https://me:secret@b.invalid/x"}
    (found,) = extras(configured(environ), environ).indexes
    assert found == Index("https://b.invalid/x", ("me", "secret"))
    assert "secret" not in repr(found)


def test_an_extra_index_adds_the_releases_that_the_index_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = "demo-1.0-py3-none-any.whl", "demo-2.0-py3-none-any.whl"

    def more(asked: Asked) -> Answer:
        return page([first, second]) if asked.path == "/simple/demo/" else Answer(b"", 404)

    def main(asked: Asked) -> Answer:
        return page([first]) if asked.path == "/simple/demo/" else Answer(b"", 404)

    with serving(main) as index, serving(more) as other:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{index.url}/simple/")
        monkeypatch.setenv("UV_INDEX", f"http://me:secret@{other.host}/simple/")
        found = {str(wheel.version): wheel.url for wheel in releases("demo")}
        assert found["1.0"].startswith(index.url)
        assert found["2.0"].startswith(other.url)
        assert {asked.authorization for asked in index.asked} == {None}
        assert {asked.authorization for asked in other.asked} == {"Basic bWU6c2VjcmV0"}
        other.answer = lambda _: Answer(b"", 404)
        assert [str(wheel.version) for wheel in releases("demo")] == ["1.0"]


@pytest.mark.parametrize(
    ("environ", "config", "authorities", "own"),
    [
        ({}, "", None, None),
        ({"PIP_CERT": "/a.pem", "SSL_CERT_FILE": "/b.pem"}, "cert = /c.pem", "/a.pem", None),
        ({}, "cert = ~/c.pem\nclient-cert = /me.pem", "~/c.pem", "/me.pem"),
        ({"PIP_CLIENT_CERT": "/you.pem"}, "client-cert = /me.pem", None, "/you.pem"),
        ({"SSL_CERT_DIR": "/d"}, "", "/d", None),
        ({"UV_INDEX_URL": "https://x", "PIP_CERT": "/a.pem"}, "cert = /c.pem", None, None),
        (
            {"UV_INDEX_URL": "https://x", "SSL_CERT_FILE": "/b", "SSL_CLIENT_CERT": "/me"},
            "",
            "/b",
            "/me",
        ),
    ],
)
def test_certificates_are_those_of_the_tool_that_named_the_index(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    environ: dict[str, str],
    config: str,
    authorities: str | None,
    own: str | None,
) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\n{config}\n")
    # Not those of the host that the test runs on.
    monkeypatch.setattr(pip_config, "files", lambda _: [tmp_path / "pip.conf"])
    expected = authorities and str(Path(authorities).expanduser())
    assert certificates(configured(environ), environ) == Certificates(expected, own)


def test_the_client_trusts_whom_the_tool_trusts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CLIENT_CERT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CERT", "/nowhere/ca.pem")
    index = Index("https://127.0.0.1:9/simple")
    with connection(index) as session:
        assert (session.verify, session.cert) == ("/nowhere/ca.pem", None)
    with pytest.raises(KvpatchError, match=r"certificate.*/nowhere/ca\.pem") as caught:
        releases("demo", index=index)
    assert (caught.value.code, caught.value.exit_code) == ("no-network", ExitCode.ENVIRONMENT)


def test_a_login_in_netrc_serves_hosts_that_have_none_in_their_url(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login you password hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(lambda _: Answer(b"x")) as web:
        known = Index("https://elsewhere.invalid/simple", ("me", "secret"))
        with connection(known) as session:
            session.get(web.url, timeout=5)
        assert web.asked[0].authorization == "Basic eW91OmhpZGRlbg=="
