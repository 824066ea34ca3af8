"""Releases on an index: which one is asked, what is chosen, what is kept, what is never shown."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvpatch.index import (
    Index,
    configured,
    kept_releases,
    releases,
    wheels_of,
)
from kvpatch.outcome import ExitCode, KvpatchError
from packaging.version import Version
from web import Answer, Asked, Web, page, serving

FILES = [
    "demo-1.0-py3-none-any.whl",
    "demo-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "demo-1.0-cp311-cp311-macosx_11_0_arm64.whl",
    "demo-1.0.tar.gz",
    "demo-1.10-py3-none-any.whl",
    "demo-1.9.post1-cp38-abi3-manylinux1_x86_64.whl",
    "demo-2.0rc1-py3-none-any.whl",
    "demo-2.0.dev3-py3-none-any.whl",
    "demo-nonsense.whl",
    "demo-0.9.zip",
]


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(lambda _: page(FILES)) as server:
        yield server


def found(web: Web, spec: str = "", *, pre: bool = False) -> dict[str, str]:
    wheels = releases("demo", spec, pre=pre, index=Index(f"{web.url}/simple/"))
    return {str(wheel.version): wheel.filename for wheel in wheels}


def test_releases_come_by_version_with_the_wheel_for_x86_64_linux(web: Web) -> None:
    assert list(found(web).items()) == [
        ("1.0", "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        ("1.9.post1", "demo-1.9.post1-cp38-abi3-manylinux1_x86_64.whl"),
        ("1.10", "demo-1.10-py3-none-any.whl"),
    ]


def test_a_wheel_comes_with_address_size_and_hash(web: Web) -> None:
    wheel = releases("demo", "==1.0", index=Index(f"{web.url}/simple/"))[0]
    assert wheel.url == f"{web.url}/files/{wheel.filename}"
    assert (wheel.size, wheel.sha256, wheel.yanked) == (1002, f"{2:064x}", False)


def test_pre_releases_come_only_when_asked_for(web: Web) -> None:
    assert list(found(web, pre=True)) == ["1.0", "1.9.post1", "1.10", "2.0.dev3", "2.0rc1"]
    assert list(found(web, ">=2.0.dev1")) == []


def test_a_specifier_chooses_among_the_releases(web: Web) -> None:
    assert list(found(web, ">1.0,<1.10")) == ["1.9.post1"]


def test_a_yanked_wheel_is_taken_only_where_there_is_no_other(web: Web) -> None:
    web.answer = lambda _: page(FILES, (FILES[2], FILES[5]))
    wheels = {str(wheel.version): wheel for wheel in releases("demo", index=Index(web.url))}
    assert wheels["1.0"].filename == FILES[0]
    assert not wheels["1.0"].yanked
    assert wheels["1.10"].yanked


def test_an_index_that_answers_in_html_is_read_too(web: Web) -> None:
    web.answer = lambda _: Answer(
        b'<a href="/f/demo-3.0-py3-none-any.whl#sha256=%s">demo-3.0-py3-none-any.whl</a>'
        % (b"AB12" * 16),
        headers={"Content-Type": "text/html"},
    )
    (wheel,) = releases("demo", index=Index(web.url))
    assert (wheel.size, wheel.sha256) == (None, "ab12" * 16)


def test_a_kept_list_is_not_asked_for_again_until_it_is_old(web: Web, tmp_path: Path) -> None:
    index = Index(web.url)
    first = releases("demo", index=index, cache=tmp_path)
    assert releases("demo", index=index, cache=tmp_path) == first
    assert len(web.asked) == 1
    releases("demo", index=index, cache=tmp_path, max_age_s=-1)
    assert len(web.asked) == 2


def test_a_kept_list_still_tells_of_pre_releases(web: Web, tmp_path: Path) -> None:
    releases("demo", index=Index(web.url), cache=tmp_path)
    known = releases("demo", pre=True, index=Index(web.url), cache=tmp_path)
    assert "2.0rc1" in [str(wheel.version) for wheel in known]


def test_a_damaged_list_is_asked_for_anew(web: Web, tmp_path: Path) -> None:
    first = releases("demo", index=Index(web.url), cache=tmp_path)
    (kept,) = tmp_path.rglob("*.json")
    for text in ("", "{}", '{"schema": 1, "asked": 9e99, "wheels": [{}]}', kept.read_text()[:-30]):
        kept.write_text(text)
        assert releases("demo", index=Index(web.url), cache=tmp_path) == first


def test_a_pipe_in_the_place_of_a_list_is_no_list(web: Web, tmp_path: Path) -> None:
    first = releases("demo", index=Index(web.url), cache=tmp_path)
    (kept,) = tmp_path.rglob("*.json")
    kept.unlink()
    os.mkfifo(kept)
    assert releases("demo", index=Index(web.url), cache=tmp_path) == first
    assert kept.is_file()


def test_an_old_list_can_be_had_where_the_index_is_gone(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", web.url)
    assert kept_releases("demo", cache=tmp_path) == ()
    fresh = releases("demo", pre=True, cache=tmp_path)
    assert kept_releases("demo", cache=tmp_path) == fresh != ()


def test_lists_of_two_indexes_are_kept_apart(web: Web, tmp_path: Path) -> None:
    releases("demo", index=Index(f"{web.url}/one"), cache=tmp_path)
    web.answer = lambda _: page(FILES[:1])
    assert len(releases("demo", index=Index(f"{web.url}/two"), cache=tmp_path)) == 1


def test_a_cache_that_cannot_be_written_is_told_apart(web: Web, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvpatchError) as caught:
        releases("demo", index=Index(web.url), cache=tmp_path / "file")
    assert (caught.value.code, caught.value.exit_code) == ("no-cache", ExitCode.ENVIRONMENT)
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_a_distribution_that_is_not_there_is_named(web: Web) -> None:
    web.answer = lambda _: Answer(b"no", 404)
    with pytest.raises(KvpatchError, match="no distribution demo") as caught:
        found(web)
    assert (caught.value.code, caught.value.exit_code) == (
        "no-such-distribution",
        ExitCode.ENVIRONMENT,
    )


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"[" * 100_000, headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        Answer(b"{", headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        Answer(b"[1]", headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        Answer(b"x", headers={"Content-Type": "application/pdf"}),
        Answer(b"no", 403),
    ],
    ids=[
        "nested too deeply",
        "broken JSON",
        "not an object",
        "not a page",
        "forbidden",
    ],
)
def test_an_answer_that_is_no_page_is_an_environment_failure(web: Web, answer: Answer) -> None:
    web.answer = lambda _: answer
    with pytest.raises(KvpatchError) as caught:
        found(web)
    assert (caught.value.code, caught.value.exit_code) == ("no-network", ExitCode.ENVIRONMENT)


@pytest.mark.parametrize("end", ["any/../../../../x", "any\\x", "any\0", "any\n"])
def test_a_name_that_leads_out_of_the_cache_folder_is_that_of_no_wheel(web: Web, end: str) -> None:
    odd = f"demo-1.2-py3-none-{end}.whl"
    web.answer = lambda _: page([odd, "demo-1.1-py3-none-any.whl"])
    assert list(found(web).values()) == ["demo-1.1-py3-none-any.whl"]


@pytest.mark.parametrize("digest", ["../../../../x", "", "0" * 63, "0" * 65, "\0" * 64])
def test_a_hash_that_is_none_is_not_taken_for_one(web: Web, digest: str) -> None:
    answer = page(["demo-1.1-py3-none-any.whl"])
    data = json.loads(answer.body)
    data["files"][0]["hashes"]["sha256"] = digest
    web.answer = lambda _: Answer(json.dumps(data).encode(), headers=answer.headers)
    (wheel,) = releases("demo", index=Index(f"{web.url}/simple/"))
    assert wheel.sha256 is None


def test_a_list_of_releases_without_end_is_not_read_to_it(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(web.answer(Asked("/", None, None, ("", 0))).body)
    monkeypatch.setattr("kvpatch.index.MOST_PAGE", size)
    assert found(web)
    monkeypatch.setattr("kvpatch.index.MOST_PAGE", size - 1)
    with pytest.raises(KvpatchError, match="TooLongError") as caught:
        found(web)
    assert (caught.value.code, caught.value.exit_code) == ("no-network", ExitCode.ENVIRONMENT)


def test_uv_and_pip_variables_name_the_index_in_that_order(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}
    assert configured(home).url is None
    pip = {**home, "PIP_INDEX_URL": "https://pip.invalid/simple"}
    assert configured(pip).url == "https://pip.invalid/simple"
    uv = {**pip, "UV_INDEX_URL": "https://uv.invalid/simple"}
    assert configured(uv).url == "https://uv.invalid/simple"
    default = {**uv, "UV_DEFAULT_INDEX": "mine=https://new.invalid/simple?a=b"}
    assert configured(default).url == "https://new.invalid/simple?a=b"
    unnamed = {**uv, "UV_DEFAULT_INDEX": "https://new.invalid/simple?a=b"}
    assert configured(unnamed).url == "https://new.invalid/simple?a=b"


def test_pip_files_name_the_index_the_users_before_the_hosts(tmp_path: Path) -> None:
    shared, mine = tmp_path / "xdg" / "pip", tmp_path / "home" / ".config" / "pip"
    environ = {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_DIRS": str(shared.parent),
        "VIRTUAL_ENV": str(tmp_path / "venv"),
    }
    shared.mkdir(parents=True)
    (shared / "pip.conf").write_text("[global]\nindex-url = https://host.invalid/%40/simple\n")
    assert configured(environ).url == "https://host.invalid/%40/simple"
    mine.mkdir(parents=True)
    (mine / "pip.conf").write_text("[global]\nindex-url = https://mine.invalid/simple\n")
    assert configured(environ).url == "https://mine.invalid/simple"
    (mine / "pip.conf").write_text("not a configuration")
    assert configured(environ).url == "https://host.invalid/%40/simple"
    assert configured({**environ, "PIP_CONFIG_FILE": "/dev/null"}).url is None


@pytest.mark.parametrize("absent", ["requests"])
def test_without_the_extra_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(KvpatchError) as caught:
        releases("demo", index=Index("https://index.invalid/simple"))
    assert caught.value.code == "no-validate-extra"
    assert f"{sys.executable} -m pip install 'kvpatch[validate]'" in caught.value.hint
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_all_wheels_of_one_release_are_found(web: Web) -> None:
    wheels = wheels_of("demo", Version("1.0"), index=Index(f"{web.url}/simple/"))
    assert [wheel.filename for wheel in wheels] == FILES[:4]
    assert wheels_of("demo", Version("7"), index=Index(f"{web.url}/simple/")) == ()
