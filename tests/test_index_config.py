"""Further places with releases, as pip and uv are told of them."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from demo_wheels import Indexes, mark_of, name_of, pip_takes, uv_takes, wheel
from kvpatch import pip_config
from kvpatch.connection import connection
from kvpatch.digest import sha256
from kvpatch.download import download, fetch
from kvpatch.index import releases
from kvpatch.index_config import Certificates, Index, certificates, configured, extras
from kvpatch.outcome import ExitCode, KvpatchError
from web import Answer, Asked, serving

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
    assert [one.url for one in found.links] == ["https://d.invalid/links", tmp_path.as_uri()]
    assert [one.folder for one in found.links] == [None, tmp_path]


def test_the_login_of_an_extra_index_is_kept_apart_and_not_shown(tmp_path: Path) -> None:
    environ = {**PIP, "PIP_EXTRA_INDEX_URL": "https://me:secret@b.invalid/x"}
    (found,) = extras(configured(environ), environ).indexes
    assert found == Index("https://b.invalid/x", ("me", "secret"))
    assert "secret" not in repr(found)


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


def guarded(answer: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
    """A server whose places below ``/private`` ask for a login, and those below ``/fails`` fail."""

    def answering(asked: Asked) -> Answer:
        if asked.path.startswith("/fails/"):
            return Answer(b"", 500)
        if not asked.path.startswith("/private/"):
            return answer(asked)
        if asked.authorization != ME:
            return Answer(b"", 401, {"WWW-Authenticate": 'Basic realm="x"'})
        return answer(replace(asked, path=asked.path.removeprefix("/private")))

    return answering


ME = f"Basic {b64encode(b'me:secret').decode()}"
INDEXES = {"a": "1.0 2.0", "b": "1.5 2.0", "c": "2.0 3.0"}


@dataclass(frozen=True)
class Host:
    """A host with those indexes, a folder of wheels, and an index in files."""

    root: Path
    environ: dict[str, str]

    def given(self, settings: Mapping[str, str]) -> dict[str, str]:
        """The environment with those variables, or pip.conf, or uv.toml."""
        texts = {name: self.text(value) for name, value in settings.items()}
        for tool, name in (("pip", "pip.conf"), ("uv", "uv.toml")):
            place = self.root / "config" / tool / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(texts.pop(name, ""))
        return {**self.environ, **texts}

    def text(self, value: str) -> str:
        for letter in INDEXES:
            private = f"{self.environ['URL']}/private/{letter}/simple/"
            value = value.replace(f"<private {letter}>", private)
            for user in ("me", "me:bad"):
                own = private.replace("://", f"://{user}@")
                value = value.replace(f"<{user} {letter}>", own)
            value = value.replace(f"<{letter}>", f"{self.environ['URL']}/{letter}/simple/")
            value = value.replace(f"<{letter} links>", f"{self.environ['URL']}/{letter}/links")
            link = f"/{letter}/files/{name_of('2.0')}"
            file = f"{self.environ['URL']}{link}#sha256={sha256(wheel('2.0', letter))}"
            value = value.replace(f"<{letter} file>", file)
        value = value.replace("<refuses>", f"{self.environ['URL']}/private/nobody/simple/")
        value = value.replace("<fails>", f"{self.environ['URL']}/fails/simple/")
        return (
            value.replace("<folder>", f"{self.root}/wheels")
            .replace("<files>", f"{self.root}/in files")
            .replace("<files url>", (self.root / "in files").as_uri())
        )


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Host]:
    wheels, files = tmp_path / "wheels", tmp_path / "in files" / "demo"
    wheels.mkdir()
    files.mkdir(parents=True)
    for version in ("2.0", "4.0"):
        (wheels / name_of(version)).write_bytes(wheel(version, "folder"))
        (files / name_of(version)).write_bytes(wheel(version, "in files"))
    links = "".join(f'<a href="{path.name}">{path.name}</a>' for path in files.glob("*.whl"))
    (files / "index.html").write_text(links)
    with serving(guarded(Indexes(**INDEXES))) as web:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_CONFIG_DIRS": str(tmp_path),
            "VIRTUAL_ENV": str(tmp_path),
            "NO_PROXY": "127.0.0.1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "URL": web.url,
        }
        for name in os.environ:
            if name.startswith(("PIP_", "UV_", "XDG_")) or name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        yield Host(tmp_path, environ)


def kvpatch_takes(wanted: str, environ: Mapping[str, str], folder: Path) -> str | None:
    """The mark of the wheel that a release is judged by, which is also that which is forked."""
    version = wanted.partition("==")[2]
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environ.items():
            patched.setenv(name, value)
        try:
            listed = releases("demo", f"=={version}" if version else "")
        except KvpatchError:
            return None
        if not listed:
            return None
        (folder / "judged").mkdir(parents=True)
        (folder / "forked").mkdir()
        judged = fetch(listed[-1], folder / "judged", lambda _: None)
        forked, _ = download("demo", listed[-1].version, folder / "forked", lambda _: None)
    assert mark_of(judged) == mark_of(forked)
    return mark_of(judged)


A = {"PIP_INDEX_URL": "<a>"}
UV_A = {"UV_DEFAULT_INDEX": "<a>"}
LOGIN = {"UV_INDEX_MY_OWN_1_USERNAME": "me", "UV_INDEX_MY_OWN_1_PASSWORD": "secret"}


def index(url: str, more: str) -> str:
    """An index as uv.toml has it."""
    return f"[[index]]\nurl = '{url}'\n{more}\n"


DEFAULT_A = index("<a>", "default = true")


@pytest.mark.installers
@pytest.mark.parametrize(
    ("settings", "wanted", "expected"),
    [
        (A, "demo", "a"),
        ({**A, "PIP_EXTRA_INDEX_URL": "<b>"}, "demo==2.0", "b"),
        ({**A, "PIP_EXTRA_INDEX_URL": "<b> <c>"}, "demo==2.0", "c"),
        ({**A, "PIP_EXTRA_INDEX_URL": "<c> <b>"}, "demo==2.0", "b"),
        ({**A, "PIP_EXTRA_INDEX_URL": "<b>"}, "demo==1.0", "a"),
        ({**A, "PIP_EXTRA_INDEX_URL": "http://127.0.0.1:9/ <b>"}, "demo==1.5", "b"),
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_FIND_LINKS": "<folder>"}, "demo", "folder"),
        ({**A, "PIP_FIND_LINKS": "<folder>"}, "demo==2.0", "a"),
        ({**A, "PIP_FIND_LINKS": "<folder>"}, "demo", "folder"),
        ({**A, "PIP_FIND_LINKS": "<c links>"}, "demo", "c"),
        ({**A, "PIP_FIND_LINKS": "<c links>"}, "demo==2.0", "a"),
        ({**A, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "<folder>"}, "demo==1.0", None),
        ({**A, "PIP_NO_INDEX": "yes", "PIP_FIND_LINKS": "<folder>"}, "demo==2.0", "folder"),
        ({**A, "PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "<folder>"}, "demo==1.0", "a"),
        ({**A, "PIP_NO_INDEX": "", "PIP_FIND_LINKS": "<folder>"}, "demo==1.0", "a"),
        ({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "<c links> <folder>"}, "demo==2.0", "c"),
        ({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "<folder> <c links>"}, "demo==2.0", "c"),
        ({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "<c file>"}, "demo", "c"),
        ({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"<folder>/{name_of('2.0')}"}, "demo", "folder"),
        ({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "<files>/demo/index.html"}, "demo", None),
        ({"pip.conf": "[global]\nno-index = on\nfind-links = <folder>"}, "demo==2.0", "folder"),
        ({"pip.conf": "[install]\nindex-url = <b>"}, "demo", "b"),
        ({"PIP_INDEX_URL": "<files url>"}, "demo", "in files"),
        ({**A, "PIP_EXTRA_INDEX_URL": "<files url>"}, "demo", "in files"),
        ({**A, "PIP_EXTRA_INDEX_URL": "/nowhere file:///nowhere"}, "demo", "a"),
        ({**A, "PIP_PROXY": "http://127.0.0.1:9"}, "demo", None),
        ({**A, "http_proxy": "http://127.0.0.1:9", "NO_PROXY": ""}, "demo", None),
        ({"pip.conf": "[global]\nindex-url = <a>\nproxy = http://127.0.0.1:9"}, "demo", None),
    ],
)
def test_what_is_judged_and_forked_is_what_pip_installs(
    on: Host, settings: Mapping[str, str], wanted: str, expected: str | None
) -> None:
    environ = on.given(settings)
    if "pip.conf" not in settings or "[install]" not in settings["pip.conf"]:
        assert pip_takes(wanted, environ, on.root / "pip") == expected
    assert kvpatch_takes(wanted, environ, on.root / "kvpatch") == expected


@pytest.mark.installers
@pytest.mark.parametrize(
    ("settings", "wanted", "expected"),
    [
        ({**UV_A, "UV_INDEX": "<b>"}, "demo==2.0", "b"),
        ({**UV_A, "UV_INDEX": "<b> <c>"}, "demo==2.0", "b"),
        ({**UV_A, "UV_INDEX": "<b>"}, "demo==1.0", None),
        ({**UV_A, "UV_INDEX": "<b>", "UV_EXTRA_INDEX_URL": "<c>"}, "demo==2.0", "b"),
        ({**UV_A, "UV_INDEX": "<nowhere> <c>".replace("<nowhere>", "<a>x")}, "demo==3.0", "c"),
        ({**UV_A, "UV_INDEX": "<b>", "UV_INDEX_STRATEGY": "unsafe-best-match"}, "demo==1.0", "a"),
        ({**UV_A, "UV_INDEX": "<b>", "UV_INDEX_STRATEGY": "unsafe-best-match"}, "demo==2.0", "b"),
        ({**UV_A, "UV_INDEX": "<b>", "UV_INDEX_STRATEGY": "first-index"}, "demo==1.0", None),
        (
            {**UV_A, "UV_INDEX": "<b>", "uv.toml": "pip.index-strategy = 'unsafe-best-match'"},
            "demo==1.0",
            "a",
        ),
        ({**UV_A, "UV_FIND_LINKS": "<folder>"}, "demo", "folder"),
        ({**UV_A, "UV_FIND_LINKS": "<folder>"}, "demo==2.0", "folder"),
        ({**UV_A, "UV_FIND_LINKS": "<folder>"}, "demo==1.0", "a"),
        ({**UV_A, "UV_FIND_LINKS": "<c links>"}, "demo==2.0", "c"),
        ({**UV_A, "UV_FIND_LINKS": "<c links>,<folder>"}, "demo==2.0", "c"),
        ({**UV_A, "UV_FIND_LINKS": "<folder>,<c links>"}, "demo==2.0", "c"),
        # That is a variable of pip alone.
        ({**UV_A, "UV_NO_INDEX": "1"}, "demo==1.0", "a"),
        ({**UV_A, "uv.toml": "no-index = true\nfind-links = ['<folder>']"}, "demo==1.0", None),
        ({**UV_A, "uv.toml": "no-index = true\nfind-links = ['<folder>']"}, "demo==2.0", "folder"),
        ({"uv.toml": "pip.no-index = true\npip.find-links = ['<folder>']"}, "demo==1.0", None),
        ({"UV_DEFAULT_INDEX": "<files url>"}, "demo", "in files"),
        ({"UV_DEFAULT_INDEX": "<files>"}, "demo", "in files"),
        ({**UV_A, "UV_INDEX": "<files url>"}, "demo", "in files"),
        ({"uv.toml": "index-url = '../../in files'"}, "demo", "in files"),
        ({**UV_A, "PIP_PROXY": "http://127.0.0.1:9"}, "demo", "a"),
        # A flat index is one in the row of indexes, and the first that has the name counts.
        ({**UV_A, "uv.toml": index("<c links>", "format = 'flat'")}, "demo", "c"),
        ({**UV_A, "uv.toml": index("<c links>", "format = 'flat'")}, "demo==1.0", None),
        ({**UV_A, "uv.toml": index("<folder>", "format = 'flat'")}, "demo", "folder"),
        ({**UV_A, "uv.toml": index("<files>", "format = 'flat'")}, "demo==1.0", "a"),
        (
            {**UV_A, "UV_INDEX": "<b>", "uv.toml": index("<c links>", "format = 'flat'")},
            "demo",
            "b",
        ),
        ({"uv.toml": index("<c links>", "format = 'flat'\ndefault = true")}, "demo", "c"),
        ({**UV_A, "uv.toml": index("<c links>", "format = 'simple'")}, "demo==1.0", "a"),
        ({**UV_A, "uv.toml": index("<c links>x", "format = 'flat'")}, "demo==1.0", None),
        # What is said for uv pip goes before the rest.
        ({"uv.toml": "index-url = '<b>'\npip.index-url = '<a>'"}, "demo==1.0", "a"),
        (
            {**UV_A, "uv.toml": "extra-index-url = ['<b>']\npip.extra-index-url = ['<c>']"},
            "demo==2.0",
            "c",
        ),
        ({**UV_A, "uv.toml": "no-index = true\npip.no-index = false"}, "demo==1.0", "a"),
        ({"uv.toml": f"pip.index-url = '<b>'\n{DEFAULT_A}"}, "demo==1.0", "a"),
        # The order in which places with wheels are named is not theirs.
        ({**UV_A, "UV_FIND_LINKS": "<c links>,<b links>"}, "demo==2.0", "b"),
        ({**UV_A, "UV_FIND_LINKS": "<b links>,<c links>"}, "demo==2.0", "b"),
        # uv stops where an index can't be read, and goes on after statuses that it is told of.
        ({**UV_A, "UV_INDEX": "<refuses>"}, "demo==1.0", None),
        ({**UV_A, "UV_INDEX": "<b> <refuses>"}, "demo==1.5", "b"),
        ({**UV_A, "UV_INDEX": "http://127.0.0.1:9/"}, "demo==1.0", None),
        (
            {**UV_A, "UV_INDEX": "<refuses>", "UV_INDEX_STRATEGY": "unsafe-best-match"},
            "demo==1.0",
            "a",
        ),
        ({**UV_A, "UV_FIND_LINKS": "/nowhere"}, "demo==1.0", None),
        ({**UV_A, "UV_FIND_LINKS": "<a>nowhere"}, "demo==1.0", None),
        ({**UV_A, "uv.toml": index("<refuses>", "ignore-error-codes = [401]")}, "demo==1.0", "a"),
        ({**UV_A, "uv.toml": index("<refuses>", "ignore-error-codes = [403]")}, "demo==1.0", None),
        ({**UV_A, "uv.toml": index("<fails>", "ignore-error-codes = [500]")}, "demo==1.0", "a"),
        # By its name an index gets a login from variables, unless its URL has a password.
        ({"UV_DEFAULT_INDEX": "my-own.1=<private a>", **LOGIN}, "demo", "a"),
        ({"UV_DEFAULT_INDEX": "other=<private a>", **LOGIN}, "demo", None),
        ({"UV_DEFAULT_INDEX": "my-own.1=<me:bad a>", **LOGIN}, "demo", None),
        ({"UV_DEFAULT_INDEX": "my-own.1=<me a>", **LOGIN}, "demo", "a"),
        ({**UV_A, "UV_INDEX": "my-own.1=<private b>", **LOGIN}, "demo==1.5", "b"),
        ({**UV_A, "uv.toml": index("<private b>", "name = 'my-own.1'"), **LOGIN}, "demo==1.5", "b"),
        # Of several of one name the first counts.
        ({**UV_A, "UV_INDEX": "x=<a>no", "uv.toml": index("<c>", "name = 'x'")}, "demo==3.0", None),
        ({**UV_A, "UV_INDEX": "y=<a>no", "uv.toml": index("<c>", "name = 'x'")}, "demo==3.0", "c"),
    ],
)
def test_what_is_judged_and_forked_is_what_uv_installs(
    on: Host, settings: Mapping[str, str], wanted: str, expected: str | None
) -> None:
    environ = on.given(settings)
    assert uv_takes(wanted, environ, on.root / "uv") == expected
    assert kvpatch_takes(wanted, environ, on.root / "kvpatch") == expected


@pytest.mark.installers
@pytest.mark.parametrize("kind", ["simple", "links"])
def test_of_a_name_that_a_page_has_twice_pip_takes_the_last_and_uv_the_first(
    tmp_path: Path, kind: str
) -> None:
    files = {f"/{mark}/{name_of('2.0')}": wheel("2.0", mark) for mark in ("x", "y", "z")}

    def answer(asked: Asked) -> Answer:
        if asked.path in files:
            return Answer(files[asked.path])
        if not asked.path.startswith(("/links", "/simple/demo")):
            return Answer(b"", 404)
        text = "".join(f'<a href="{at}#sha256={sha256(files[at])}">x</a>' for at in files)
        return Answer(text.encode(), headers={"Content-Type": "text/html"})

    with serving(answer) as web:
        home = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "NO_PROXY": "127.0.0.1",
            "PIP_CONFIG_FILE": "/dev/null",
        }
        pip = {**home, "PIP_INDEX_URL": f"{web.url}/simple"}
        uv = {**home, "UV_DEFAULT_INDEX": f"{web.url}/simple", "UV_NO_CONFIG": "1"}
        if kind == "links":
            pip |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{web.url}/links"}
            uv |= {"UV_DEFAULT_INDEX": web.url, "UV_FIND_LINKS": f"{web.url}/links"}
        assert pip_takes("demo", pip, tmp_path / "pip") == "z"
        assert kvpatch_takes("demo", pip, tmp_path / "kvpatch by pip") == "z"
        assert uv_takes("demo", uv, tmp_path / "uv") == "x"
        assert kvpatch_takes("demo", uv, tmp_path / "kvpatch by uv") == "x"
