"""uv's files, as far as they name indexes; the index is then asked as uv would."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvpatch.index_config import Index, configured, extras
from kvpatch.uv_config import UvFiles, read

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
        "https://main.invalid/simple",
        ("https://me:secret@private.invalid/simple", "https://more.invalid/simple"),
        (str(tmp_path / "user" / "uv" / "wheels"), "file:///srv/wheels"),
    )


def test_the_users_file_goes_before_the_hosts_and_lists_are_joined(tmp_path: Path) -> None:
    host = 'index-url = "https://a"\nextra-index-url = ["https://b"]'
    user = '[pip]\nindex-url = "https://c"\nextra-index-url = ["https://d"]'
    assert read(folder(tmp_path / "1", user, host)) == UvFiles(
        "https://c", ("https://d", "https://b")
    )
    assert read(folder(tmp_path / "2", "", host)).index == "https://a"


@pytest.mark.parametrize(
    "text",
    [
        "allow-insecure-host = 'a'",
        "allow-insecure-host = [5]",
        "[",
        "index-url = 5",
        "index = 5",
        "index = [5]",
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
    assert read({**environ, "UV_CONFIG_FILE": other}).index == "https://host"
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
    (tmp_path / "user" / "uv" / "wheels").mkdir()
    wheels = (tmp_path / "user" / "uv" / "wheels").as_uri()
    assert [one.url for one in extras(found, environ).links] == [wheels]


def test_further_places_count_where_the_index_is_the_clients_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpatch.pip_config.files", lambda _: [])
    environ = folder(tmp_path, 'extra-index-url = ["https://b"]')
    found = configured(environ)
    assert (found.url, [one.url for one in extras(found, environ).indexes]) == (None, ["https://b"])
