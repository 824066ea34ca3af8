"""The releases that a validation is about, from the index, find-links folders, and by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kvpatch.connection import connection
from kvpatch.digest import sha256
from kvpatch.index import configured
from kvpatch.matrix import Release
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.remote import RemoteWheel
from kvpatch.sources import local_release
from kvpatch.supply import Offer, Request, by_version, offered, specifiers
from small_index import SmallIndex, small_index, wheel_bytes


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallIndex]:
    with small_index(monkeypatch, tmp_path / "cache") as served:
        for version in ("0.8.4", "0.12.0", "0.9.2"):
            served.add("vllm", version)
        for version in ("0.3.2", "0.5.6"):
            served.add("lmcache", version)
        yield served


def offer(asked: Request, tmp_path: Path, *given: Release) -> Offer:
    with connection(configured()) as session:
        return offered(
            asked,
            tmp_path / "cache",
            lambda wheel: RemoteWheel(wheel, session, tmp_path / "cache"),
            given,
        )


def found(asked: Request, tmp_path: Path, *given: Release) -> list[Release]:
    return list(offer(asked, tmp_path, *given).releases)


def names(releases: list[Release]) -> list[str]:
    return [f"{release.package} {release.version}" for release in releases]


def wheel(folder: Path, version: str, package: str = "vllm") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{package}-{version}-py3-none-any.whl"
    path.write_bytes(wheel_bytes("vllm", version))
    return path


def test_those_the_series_was_begun_for_where_none_are_named(
    index: SmallIndex, tmp_path: Path
) -> None:
    assert names(found(Request({}), tmp_path)) == ["vllm 0.9.2", "vllm 0.12.0", "lmcache 0.5.6"]
    asked = Request({"vllm": "<0.9", "lmcache": "==0.3.2"})
    assert names(found(asked, tmp_path)) == ["vllm 0.8.4", "lmcache 0.3.2"]


def test_one_without_a_wheel_has_no_bytes_to_be_kept_by(index: SmallIndex, tmp_path: Path) -> None:
    index.wheels["vllm-0.13.0.tar.gz"] = b""
    (sdist,) = [r for r in found(Request({}), tmp_path) if str(r.version) == "0.13.0"]
    assert sdist.key is None
    for read in (sdist.holder.metadata, lambda: sdist.holder.opaque("vllm._C")):
        with pytest.raises(KvpatchError, match=r"vllm-0\.13\.0\.tar\.gz is all") as caught:
            read()
        assert (caught.value.code, caught.value.exit_code) == ("only-sdist", ExitCode.ENVIRONMENT)


def test_find_links_add_what_the_index_lacks_and_was_asked_for(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "links"
    for version in ("0.8.3", "0.14.0", "0.15.0rc1"):
        wheel(folder, version)
    wheel(folder, "0.14.0", package="other")
    (folder / "no wheel.whl").write_bytes(b"")
    monkeypatch.setenv("UV_FIND_LINKS", f"{folder},{tmp_path / 'absent'}")
    listed = ["vllm 0.9.2", "vllm 0.12.0", "vllm 0.14.0", "lmcache 0.5.6"]
    assert names(found(Request({}), tmp_path)) == listed
    with_pre = found(Request({}, pre=True), tmp_path)
    assert names(with_pre) == [*listed[:3], "vllm 0.15.0rc1", listed[3]]


def test_of_a_release_in_both_the_build_is_that_which_the_tool_installs(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = wheel(tmp_path / "links", "0.12.0")
    mine.write_bytes(wheel_bytes("vllm", "0.12.0", {"vllm/mine.py": ""}))
    monkeypatch.setenv("UV_FIND_LINKS", str(mine.parent))
    (uv,) = found(Request({"vllm": "==0.12.0"}), tmp_path)[:1]
    assert uv.key == sha256(mine.read_bytes())
    monkeypatch.setenv("PIP_INDEX_URL", os.environ["UV_DEFAULT_INDEX"])
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", str(mine.parent))
    (pip,) = found(Request({"vllm": "==0.12.0"}), tmp_path)[:1]
    assert pip.key == sha256(index.wheels[mine.name]) != uv.key


def test_where_an_index_is_down_the_rest_is_offered_and_that_is_said(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX", "http://127.0.0.1:9/simple")
    told = offer(Request({}), tmp_path)
    assert names(list(told.releases)) == ["vllm 0.9.2", "vllm 0.12.0", "lmcache 0.5.6"]
    assert [error.code for error in told.lost] == ["no-network"] * 2
    assert all("the package index of 127.0.0.1:9 (" in error.message for error in told.lost)


def test_a_damaged_wheel_of_a_find_links_folder_is_one_release_that_cant_be_read(
    index: SmallIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, damaged = (wheel(tmp_path / "links", version) for version in ("0.14.0", "0.15.0"))
    damaged.write_bytes(whole.read_bytes()[:-40])
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
    *others, last, _ = found(Request({}), tmp_path)
    assert names(others)[2:] == ["vllm 0.14.0"]
    assert (names([last]), last.key, last.name) == (["vllm 0.15.0"], None, damaged.name)
    with pytest.raises(KvpatchError, match="it is not a wheel") as caught:
        last.holder.read("vllm/__init__.py")
    assert caught.value.code == "bad-source"


def test_what_is_given_by_hand_is_there_whatever_was_asked(
    index: SmallIndex, tmp_path: Path
) -> None:
    given = local_release(wheel(tmp_path / "mine", "0.8.3"))
    assert found(Request({"vllm": ">=0.12"}), tmp_path, given)[-1] is given


def test_sides_are_by_version_and_neither_may_be_empty(index: SmallIndex, tmp_path: Path) -> None:
    releases = found(Request({"vllm": ">=0.1"}), tmp_path)
    sides = by_version(releases)
    assert [str(release.version) for release in sides["vllm"]] == ["0.8.4", "0.9.2", "0.12.0"]
    with pytest.raises(KvpatchError, match="no release of lmcache") as caught:
        by_version(sides["vllm"])
    assert (caught.value.code, caught.value.exit_code) == ("no-releases", ExitCode.ENVIRONMENT)


def test_a_spec_that_is_none_is_a_matter_of_usage() -> None:
    assert "0.9" in specifiers(">=0.8.5,<1")
    with pytest.raises(KvpatchError, match="'newest' does not say which") as caught:
        specifiers("newest")
    assert (caught.value.code, caught.value.exit_code) == ("bad-spec", ExitCode.USAGE)
