"""uv's files, as far as they name indexes; the index is then asked as uv would."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvpatch.index_config import Index, configured, extras
from kvpatch.uv_config import UvFiles, UvIndex, login, named, read

WHOLE = """
index-url = "https://old.invalid/simple"
extra-index-url = ["https://more.invalid/simple"]
find-links = ["wheels", "file:///srv/wheels"]
[[index]]
name = "private"
url = "https://me:secret@private.invalid/simple"
[[index]]
name = "torch"
url = "https://torch.invalid/simple"
explicit = true
[[index]]
url = "https://main.invalid/simple"
default = true
[pip]
index-url = "https://pip.invalid/simple"
"""


def folder(tmp_path: Path, user: str = "", host: str = "") -> dict[str, str]:
    for name, text in (("user", user), ("host", host)):
        (tmp_path / name / "uv").mkdir(parents=True)
        (tmp_path / name / "uv" / "uv.toml").write_text(text)
    return {
        "XDG_CONFIG_HOME": str(tmp_path / "user"),
        "XDG_CONFIG_DIRS": f"{tmp_path}/nowhere:{tmp_path}/host",
        "HOME": str(tmp_path),
        "VIRTUAL_ENV": str(tmp_path),
    }


def test_all_that_a_file_names_is_read(tmp_path: Path) -> None:
    assert read(folder(tmp_path, WHOLE)) == UvFiles(
        UvIndex("https://main.invalid/simple"),
        (
            UvIndex("https://me:secret@private.invalid/simple", "private"),
            UvIndex("https://more.invalid/simple"),
        ),
        (str(tmp_path / "user" / "uv" / "wheels"), "file:///srv/wheels"),
    )


def test_the_users_file_goes_before_the_hosts_and_lists_are_joined(tmp_path: Path) -> None:
    host = 'index-url = "https://a"\nextra-index-url = ["https://b"]'
    user = '[pip]\nindex-url = "https://c"\nextra-index-url = ["https://d"]'
    assert read(folder(tmp_path / "1", user, host)) == UvFiles(
        UvIndex("https://c"), (UvIndex("https://d"), UvIndex("https://b"))
    )
    assert read(folder(tmp_path / "2", "", host)).index == UvIndex("https://a")


def test_what_is_said_for_uv_pip_rules_in_whichever_file_and_a_named_index_over_a_url(
    tmp_path: Path,
) -> None:
    user = "index-url = 'https://a'\nextra-index-url = ['https://b']\nno-index = false"
    host = "[pip]\nindex-url = 'https://c'\nextra-index-url = ['https://d']\nno-index = true"
    found = read(folder(tmp_path / "1", user, host))
    assert found.index == UvIndex("https://c")
    assert [one.url for one in found.extra] == ["https://d", "https://b"]
    assert found.no_index
    named = "[[index]]\nurl = 'https://e'\ndefault = true\n[[index]]\nurl = 'https://f'"
    found = read(folder(tmp_path / "2", user, named))
    assert found.index == UvIndex("https://e")
    assert [one.url for one in found.extra] == ["https://f", "https://b"]


def test_of_an_index_its_name_format_and_the_statuses_that_are_passed_over_are_read(
    tmp_path: Path,
) -> None:
    text = (
        "[[index]]\nname = 'own'\nurl = 'wheels'\nformat = 'flat'\n"
        "ignore-error-codes = [401, 403]\n"
    )
    (found,) = read(folder(tmp_path, text)).extra
    assert found == UvIndex(str(tmp_path / "user" / "uv" / "wheels"), "own", True, (401, 403))


def test_a_variable_names_an_index_and_others_have_its_login() -> None:
    assert named("own=https://a/?b=c") == UvIndex("https://a/?b=c", "own")
    assert named("https://a/?b=c") == UvIndex("https://a/?b=c")
    given = {"UV_INDEX_MY_OWN_1_USERNAME": "me", "UV_INDEX_MY_OWN_1_PASSWORD": "secret"}
    assert login("my-own.1", given) == ("me", "secret")
    assert login("my-own.1", {"UV_INDEX_MY_OWN_1_PASSWORD": "secret"}) == ("", "secret")
    assert login("other", given) is None
    assert login("", {"UV_INDEX__USERNAME": "me"}) is None


@pytest.mark.parametrize(
    "text",
    [
        "allow-insecure-host = 'a'",
        "allow-insecure-host = [5]",
        "[",
        "index-url = 5",
        "index = 5",
        "index = [5]",
        "index = [{url = 'https://a', format = 'odd'}]",
        "index = [{url = 'https://a', ignore-error-codes = ['403']}]",
        "index = [{url = 'https://a', ignore-error-codes = [9999]}]",
        "index = [{url = 'https://a', ignore-error-codes = 403}]",
        "pip = 5",
        "find-links = 'x'",
        "allow-insecure-host = ['a', 5]",
        "index-url = 'https://a'\npip.allow-insecure-host = ['a']",
        "pip.extra-index-url = ['https://a', 1]",
        "allow-insecure-host = ['a']\nindex = [{}]",
    ],
)
def test_what_makes_no_sense_is_nothing(tmp_path: Path, text: str) -> None:
    assert read(folder(tmp_path, text)) == UvFiles(refused=True)


def test_hosts_that_are_not_verified_are_those_of_both_files(tmp_path: Path) -> None:
    environ = folder(tmp_path, 'allow-insecure-host = ["a", "b:1"]', 'allow-insecure-host = ["c"]')
    assert read(environ).insecure == ("a", "b:1", "c")


def test_uv_can_be_told_to_read_another_file_or_none(tmp_path: Path) -> None:
    environ = folder(tmp_path, WHOLE, 'index-url = "https://host"')
    other = str(tmp_path / "host" / "uv" / "uv.toml")
    assert read({**environ, "UV_CONFIG_FILE": other}).index == UvIndex("https://host")
    for said in ("1", "true", "Yes", "t", "ON", "y", "maybe", "", " 0"):
        assert read({**environ, "UV_NO_CONFIG": said}) == UvFiles()
    for said in ("0", "false", "No", "f", "OFF", "n"):
        assert read({**environ, "UV_NO_CONFIG": said}) == read(environ) != UvFiles()


def test_the_index_is_uvs_where_neither_a_variable_nor_pip_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not those of the host that the test runs on.
    monkeypatch.setattr("kvpatch.pip_config.files", lambda _: [])
    environ = folder(tmp_path, WHOLE)
    found = configured(environ)
    assert found == Index("https://main.invalid/simple")
    assert found.tool == "uv"
    further = extras(found, environ).indexes
    assert further == (
        Index("https://private.invalid/simple", ("me", "secret")),
        Index("https://more.invalid/simple"),
    )
    assert configured({**environ, "PIP_INDEX_URL": "https://x"}).tool == "pip"
    # uv stops at one that is not there, so they are all kept.
    wheels = (tmp_path / "user" / "uv" / "wheels").as_uri()
    assert [one.url for one in extras(found, environ).links] == [wheels, "file:///srv/wheels"]


def test_further_places_count_where_the_index_is_the_clients_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpatch.pip_config.files", lambda _: [])
    environ = folder(tmp_path, 'extra-index-url = ["https://b"]')
    found = configured(environ)
    assert (found.url, [one.url for one in extras(found, environ).indexes]) == (None, ["https://b"])
