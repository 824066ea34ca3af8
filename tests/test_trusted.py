"""Hosts that are not verified: as real pip and uv take their names, and no host besides."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kvpatch.connection import connection
from kvpatch.index import kept_releases, releases
from kvpatch.index_config import Index, configured, trusted
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.trusted import TrustedHosts, of_pip, of_uv
from web import Answer, Asked, Web, page, serving, untrusted

WHEEL = "demo-1.0-py3-none-any.whl"
LISTED = {"/simple/demo/": page([WHEEL])}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrusted(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def web(certificate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Web]:
    """An index behind a certificate that nobody signed, which no tool is told of yet."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("urllib3.util.retry.Retry.sleep", lambda *_: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with serving(lambda asked: LISTED.get(asked.path, Answer(b"", 404)), certificate) as server:
        yield server


def ask_pip(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--retries", "0", "demo"]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)


def ask_pip_to_install(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--retries", "0"]
    command += ["--dry-run", "--target", str(folder / "target"), "demo"]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)


def ask_uv(folder: Path) -> None:
    command = [sys.executable, "-m", "uv", "pip", "install", "--no-cache", "--dry-run", "demo"]
    target = ["--target", str(folder / "target")]
    retries = {**os.environ, "UV_HTTP_RETRIES": "0"}
    subprocess.run([*command, *target], cwd=folder, capture_output=True, check=False, env=retries)


def reached(web: Web, ask: Callable[[], object]) -> bool:
    """Whether a request comes through, which it does only where the certificate was taken."""
    before = len(web.asked)
    ask()
    return len(web.asked) > before


def ask_kvpatch() -> None:
    with contextlib.suppress(KvpatchError):
        releases("demo")


ADDRESS, NAME = "https://127.0.0.1:{port}/simple/", "https://localhost:{port}/simple/"


@pytest.mark.installers
@pytest.mark.parametrize(
    ("entry", "url", "taken"),
    [
        ("127.0.0.1", ADDRESS, True),
        ("127.0.0.1:{port}", ADDRESS, True),
        ("LOCALHOST", NAME, True),
        ("other.invalid 127.0.0.1", ADDRESS, True),
        ("localhost", ADDRESS, False),
        ("127.0.0.1:1", ADDRESS, False),
        ("127.0.0", ADDRESS, False),
        ("127.0.0.1:", ADDRESS, False),
        ("https://127.0.0.1", ADDRESS, False),
        ("*", ADDRESS, False),
    ],
)
def test_real_pip_takes_the_same_hosts(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, url: str, taken: bool
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", url.format(port=web.port))
    monkeypatch.setenv("PIP_TRUSTED_HOST", entry.format(port=web.port))
    assert reached(web, lambda: ask_pip(tmp_path)) is taken
    assert reached(web, ask_kvpatch) is taken


@pytest.mark.installers
@pytest.mark.parametrize(
    ("entry", "url", "taken"),
    [
        ("127.0.0.1", ADDRESS, True),
        ("127.0.0.1:{port}", ADDRESS, True),
        ("https://127.0.0.1", ADDRESS, True),
        ("https://127.0.0.1/any/path", ADDRESS, True),
        ("*", ADDRESS, True),
        ("other.invalid 127.0.0.1", ADDRESS, True),
        ("http://127.0.0.1", ADDRESS, False),
        ("LOCALHOST", NAME, False),
        ("localhost", ADDRESS, False),
        ("127.0.0.1:1", ADDRESS, False),
        ("127.0.0.1:", ADDRESS, False),
        ("127.0.0.1:{port}/path", ADDRESS, False),
    ],
)
def test_real_uv_takes_the_same_hosts(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, url: str, taken: bool
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", url.format(port=web.port))
    monkeypatch.setenv("UV_INSECURE_HOST", entry.format(port=web.port))
    assert reached(web, lambda: ask_uv(tmp_path)) is taken
    assert reached(web, ask_kvpatch) is taken


@pytest.mark.installers
@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('allow-insecure-host = ["other.invalid", "127.0.0.1"]', True),
        ('allow-insecure-host = ["127.0.0.1:1"]', False),
        ("allow-insecure-host = 5", False),
        ('allow-insecure-host = ["127.0.0.1", 3]', False),
        ('allow-insecure-host = ["127.0.0.1"]\nfind-links = "x"', False),
        ('pip.allow-insecure-host = ["127.0.0.1"]', False),
        ("", False),
    ],
)
def test_real_uv_reads_them_from_the_same_file(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, taken: bool
) -> None:
    (tmp_path / "config" / "uv").mkdir(parents=True)
    (tmp_path / "config" / "uv" / "uv.toml").write_text(f'index-url = "{web.url}/simple/"\n{text}')
    assert reached(web, lambda: ask_uv(tmp_path)) is taken
    assert reached(web, ask_kvpatch) is taken


@pytest.mark.installers
@pytest.mark.parametrize(
    ("said", "taken"),
    [("0", True), ("False", True), ("off", True), ("1", False), ("on", False), ("", False)],
)
def test_real_uv_reads_no_file_by_the_same_words(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, taken: bool
) -> None:
    (tmp_path / "config" / "uv").mkdir(parents=True)
    config = tmp_path / "config" / "uv" / "uv.toml"
    config.write_text('allow-insecure-host = ["127.0.0.1"]')
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{web.url}/simple/")
    monkeypatch.setenv("UV_NO_CONFIG", said)
    assert reached(web, lambda: ask_uv(tmp_path)) is taken
    assert reached(web, ask_kvpatch) is taken


@pytest.mark.installers
@pytest.mark.parametrize("broken", ["user", "host"])
def test_real_uv_trusts_nobody_by_what_a_file_that_it_refuses_leaves(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "host"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{web.url}/simple/")
    for name, place in (("user", "config"), ("host", "host")):
        (tmp_path / place / "uv").mkdir(parents=True)
        text = "index-url = 5" if name == broken else 'allow-insecure-host = ["127.0.0.1"]'
        (tmp_path / place / "uv" / "uv.toml").write_text(text)
    assert not reached(web, lambda: ask_uv(tmp_path))
    assert not reached(web, ask_kvpatch)


@pytest.mark.installers
@pytest.mark.parametrize("section", ["global", "install"])
def test_real_pip_reads_them_from_the_same_sections(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        f"[global]\nindex-url = https://elsewhere.invalid/simple\n"
        f"trusted-host = elsewhere.invalid\n"
        f"[{'install' if section == 'install' else 'other'}]\n"
        f"index-url = {web.url}/simple/\ntrusted-host =\n    127.0.0.1\n    b.invalid\n"
    )
    if section == "global":
        config.write_text(f"[global]\nindex-url = {web.url}/simple/\ntrusted-host = 127.0.0.1\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert reached(web, lambda: ask_pip_to_install(tmp_path))
    assert reached(web, ask_kvpatch)


TRUSTS, TRUSTS_NOT, OTHER = "trusted-host = 127.0.0.1", "trusted-host =", "trusted-host = a.invalid"
USER, OLD_USER, FIRST, SECOND, NAMED = (
    "config/pip/pip.conf",
    ".pip/pip.conf",
    "a/pip/pip.conf",
    "b/pip/pip.conf",
    "named.conf",
)


@pytest.mark.installers
@pytest.mark.parametrize(
    ("config", "named", "taken"),
    [
        ({USER: TRUSTS}, False, True),
        ({USER: TRUSTS, NAMED: ""}, True, False),
        ({USER: TRUSTS}, True, True),
        ({USER: TRUSTS_NOT, FIRST: TRUSTS}, False, False),
        ({USER: OTHER, FIRST: TRUSTS, NAMED: ""}, True, True),
        ({FIRST: TRUSTS, NAMED: TRUSTS_NOT}, True, False),
        ({FIRST: TRUSTS, SECOND: OTHER}, False, False),
        ({FIRST: OTHER, SECOND: TRUSTS}, False, True),
        ({FIRST: TRUSTS, SECOND: TRUSTS_NOT}, False, False),
        ({OLD_USER: TRUSTS, USER: OTHER}, False, False),
        ({OLD_USER: OTHER, USER: TRUSTS}, False, True),
        ({USER: TRUSTS, FIRST: "nonsense"}, False, False),
        ({USER: f"{TRUSTS_NOT}\n[download]\n{TRUSTS}"}, False, False),
        ({USER: f"{TRUSTS}\n[install]\n{TRUSTS_NOT}"}, False, True),
        ({FIRST: f"[install]\n{TRUSTS}", USER: f"[install]\n{TRUSTS_NOT}"}, False, False),
        ({FIRST: f"[install]\n{OTHER}", USER: TRUSTS}, False, False),
        ({USER: "trusted_host = 127.0.0.1"}, False, True),
        ({USER: "--trusted-host = 127.0.0.1"}, False, True),
        ({USER: "Trusted_Host: 127.0.0.1"}, False, True),
        ({USER: f"{TRUSTS}\ntrusted_host = a.invalid"}, False, False),
        ({USER: "[GLOBAL]\n" + TRUSTS}, False, False),
    ],
)
def test_real_pip_reads_them_from_the_same_files_in_the_same_order(
    web: Web,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, str],
    named: bool,
    taken: bool,
) -> None:
    monkeypatch.delenv("PIP_CONFIG_FILE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple/")
    if named:
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / NAMED))
    for place, text in config.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(f"[global]\n{text}\n")
    assert reached(web, lambda: ask_pip_to_install(tmp_path)) is taken
    assert reached(web, ask_kvpatch) is taken


@pytest.mark.installers
@pytest.mark.parametrize(
    ("variables", "taken"),
    [
        ({"PIP_TRUSTED_HOST": ""}, True),
        ({"PIP_TRUSTED_HOST": " "}, False),
        ({"PIP_TRUSTED_HOST": "a.invalid", "PIP_trusted_host": "127.0.0.1"}, True),
    ],
)
def test_real_pip_takes_the_same_variables_before_its_files(
    web: Web,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    taken: bool,
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex_url = {web.url}/simple/\n{TRUSTS}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert reached(web, lambda: ask_pip_to_install(tmp_path)) is taken
    assert reached(web, ask_kvpatch) is taken


def test_a_redirect_to_another_host_is_verified(
    web: Web, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(lambda _: page([WHEEL]), certificate) as other:
        web.answer = lambda asked: Answer(b"", 302, {"Location": f"{other.url}{asked.path}"})
        monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple/")
        monkeypatch.setenv("PIP_TRUSTED_HOST", web.host)
        with pytest.raises(KvpatchError, match="SSLError"):
            releases("demo")
        assert (len(web.asked) > 0, other.asked) == (True, [])
        # The connection to the first one is kept, and trusts it still.
        with connection(configured()) as session:
            for _ in range(2):
                assert session.get(web.url, allow_redirects=False, timeout=5).status_code == 302
                with pytest.raises(OSError, match="certificate"):
                    session.get(other.url, timeout=5)
        monkeypatch.setenv("PIP_TRUSTED_HOST", f"{web.host} {other.host}")
        assert [wheel.filename for wheel in releases("demo")] == [WHEEL]
        assert len(other.asked) == 1


def test_a_host_that_is_trusted_is_asked_without_a_word(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple/")
    monkeypatch.setenv("PIP_TRUSTED_HOST", web.host)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [wheel.filename for wheel in releases("demo")] == [WHEEL]
    assert said == []


def test_a_list_of_a_host_that_is_trusted_no_more_is_asked_for_anew(
    web: Web, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple/")
    monkeypatch.setenv("PIP_TRUSTED_HOST", f"a.invalid {web.host}")
    listed = releases("demo", cache=tmp_path)
    monkeypatch.setenv("PIP_TRUSTED_HOST", f"{web.host} a.invalid")
    assert releases("demo", cache=tmp_path) == kept_releases("demo", cache=tmp_path) == listed
    assert len(web.asked) == 1
    monkeypatch.delenv("PIP_TRUSTED_HOST")
    with pytest.raises(KvpatchError, match="SSLError"):
        releases("demo", cache=tmp_path)
    assert kept_releases("demo", cache=tmp_path) == ()


def test_trust_in_a_host_does_not_reach_to_the_other_tools_index(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"{web.url}/simple/")
    monkeypatch.setenv("PIP_TRUSTED_HOST", web.host)
    assert not reached(web, ask_kvpatch)
    monkeypatch.setenv("UV_INSECURE_HOST", web.host)
    assert reached(web, ask_kvpatch)


@pytest.mark.parametrize(
    ("environ", "config", "tool"),
    [
        ({}, "", "pip"),
        ({"PIP_TRUSTED_HOST": "pypi.org"}, 'allow-insecure-host = ["b"]', "pip"),
        ({}, 'allow-insecure-host = ["pypi.org"]', "uv"),
        ({"UV_INSECURE_HOST": "pypi.org"}, "", "uv"),
        ({"UV_INSECURE_HOST": "b", "PIP_EXTRA_INDEX_URL": "https://a"}, "", "pip"),
        ({"PIP_TRUSTED_HOST": "b"}, 'extra-index-url = ["https://a"]', "uv"),
    ],
)
def test_with_the_clients_own_index_trust_is_that_of_the_tool_that_has_some(
    tmp_path: Path, environ: dict[str, str], config: str, tool: str
) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text(config)
    given = {
        "PIP_CONFIG_FILE": os.devnull,
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": str(tmp_path / "none"),
        **environ,
    }
    found = configured(given)
    assert (found.url, found.tool) == (None, tool)
    host = "pypi.org" in f"{environ}{config}"
    assert trusted(found, given).trusts("https://pypi.org/simple/vllm/") is host


@pytest.mark.parametrize(
    ("hosts", "url", "expected"),
    [
        (of_pip(["a.invalid"]), "https://a.invalid/x", True),
        (of_pip(["a.invalid"]), "https://A.invalid:8443/x", True),
        (of_pip(["a.invalid"]), "https://b.a.invalid/x", False),
        (of_pip(["a.invalid"]), "https://a.invalid.b/x", False),
        (of_pip(["a.invalid"]), "https://b.invalid/https://a.invalid/", False),
        (of_pip(["a.invalid"]), "https://a.invalid@b.invalid/", False),
        (of_pip(["a.invalid:443"]), "https://a.invalid/x", False),
        (of_pip(["a.invalid:443"]), "https://a.invalid:443/x", True),
        (of_uv(["a.invalid:443"]), "https://a.invalid:443/x", False),
        (of_pip(["::1", "[::2]:8443"]), "https://[::1]/x", True),
        (of_pip(["::1", "[::2]:8443"]), "https://[::2]:8443/x", True),
        (of_pip(["::1", "[::2]:8443"]), "https://[::2]/x", False),
        (of_uv(["::1"]), "https://[::1]/x", False),
        (
            of_pip(["a.invalid:x", "a.invalid:", "a.invalid/", "@a.invalid", ""]),
            "https://a.invalid/",
            False,
        ),
        (of_uv(["*"]), "https://any.invalid/", True),
        (of_pip(["*"]), "https://any.invalid/", False),
        (of_uv(["*"]), "https:///nothing", False),
        (of_pip(["a.invalid"]), "https://a.invalid:port/", False),
        (TrustedHosts(), "https://a.invalid/", False),
    ],
)
def test_a_host_is_trusted_as_it_is_named(hosts: TrustedHosts, url: str, expected: bool) -> None:
    assert hosts.trusts(url) is expected


@pytest.mark.parametrize(
    ("url", "trusts", "expected"),
    [
        ("https://a.invalid/simple/", "", True),
        ("http://a.invalid/simple/", "", False),
        ("http://a.invalid/simple/", "a.invalid", True),
        ("http://a.invalid:81/simple/", "a.invalid:80", False),
        ("http://localhost:81/simple/", "", True),
        ("http://127.8.8.8/simple/", "", True),
        ("http://[::1]/simple/", "", True),
        ("http://10.0.0.1/simple/", "", False),
    ],
)
def test_pips_index_is_asked_plainly_of_this_host_and_of_trusted_ones_alone(
    url: str, trusts: str, expected: bool
) -> None:
    assert of_pip(trusts.split()).lets_plain(url) is expected


def test_an_index_that_pip_would_not_ask_is_not_asked(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The proxy stands in for a host elsewhere.
    def by_proxy(asked: Asked) -> Answer:
        return page([WHEEL]) if asked.path.startswith("http://a.invalid/") else Answer(b"", 404)

    with serving(by_proxy) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@a.invalid/simple/")
        with pytest.raises(KvpatchError, match=r"pip does not read .* a\.invalid") as caught:
            releases("demo")
        assert (caught.value.code, caught.value.exit_code) == (
            "untrusted-index",
            ExitCode.ENVIRONMENT,
        )
        assert "secret" not in caught.value.message
        assert proxy.asked == []
        monkeypatch.setenv("PIP_TRUSTED_HOST", "a.invalid")
        assert [wheel.filename for wheel in releases("demo")] == [WHEEL]
        # As a further one it is left out; uv takes it as it is.
        monkeypatch.delenv("PIP_TRUSTED_HOST")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{proxy.host}/simple/")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://a.invalid/simple/")
        with pytest.raises(KvpatchError, match="has no distribution demo"):
            releases("demo")
        uvs = Index("http://a.invalid/simple/", None, "uv")
        assert [wheel.filename for wheel in releases("demo", index=uvs)] == [WHEEL]
