"""A whole wheel from an index: which one is chosen, and what is never taken for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kvpatch.digest import sha256
from kvpatch.download import choose, download, fetch
from kvpatch.index import Wheel
from kvpatch.outcome import ExitCode, KvpatchError
from packaging.tags import Tag, parse_tag, sys_tags
from packaging.version import Version
from web import Answer, Asked, Web, page, serving

TAGS = [
    *parse_tag("cp311-cp311-manylinux_2_28_x86_64"),
    *parse_tag("cp311-cp311-manylinux_2_17_x86_64"),
    *parse_tag("cp38-abi3-manylinux_2_28_x86_64"),
    *parse_tag("py3-none-any"),
]
CONTENT = b"0123456789" * 1000


def listed(name: str, *, yanked: bool = False, digest: str | None = "", size: int = 1) -> Wheel:
    known = sha256(CONTENT) if digest == "" else digest
    return Wheel("demo", Version("1.0"), name, f"http://x.invalid/{name}", size, known, yanked)


def choice(*names: str, yanked: str = "", tags: list[Tag] = TAGS) -> str:
    wheels = [listed(name, yanked=name == yanked) for name in names]
    return choose("demo", Version("1.0"), wheels, tags).filename


def test_the_first_tag_of_the_interpreter_decides() -> None:
    any_, abi = "demo-1.0-py3-none-any.whl", "demo-1.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    own = "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    other = "demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    assert choice(any_, other, abi, own) == own
    assert choice(any_, other, abi) == abi
    assert choice(other, any_) == any_


def test_the_highest_build_is_taken_and_a_yanked_wheel_only_where_there_is_no_other() -> None:
    builds = [f"demo-1.0-{build}-py3-none-any.whl" for build in (2, 10, 9)]
    assert choice(*builds) == builds[1]
    assert choice(*builds, yanked=builds[1]) == builds[2]
    assert choice(builds[0], yanked=builds[0]) == builds[0]


def test_a_release_without_wheels_and_one_for_other_machines_are_told_apart() -> None:
    with pytest.raises(KvpatchError) as none:
        choice()
    with pytest.raises(KvpatchError) as other:
        choice("demo-1.0-cp38-abi3-macosx_11_0_arm64.whl")
    assert (none.value.code, other.value.code) == ("no-such-release", "no-fitting-wheel")
    assert none.value.exit_code is other.value.exit_code is ExitCode.ENVIRONMENT
    assert "macosx" in other.value.message


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(lambda _: Answer(CONTENT)) as server:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple/")
        yield server


NAME = "demo-1.0-py3-none-any.whl"


def at(web: Web, digest: str | None = "", size: int | None = len(CONTENT)) -> Wheel:
    known = sha256(CONTENT) if digest == "" else digest
    return Wheel("demo", Version("1.0"), NAME, f"{web.url}/{NAME}", size, known, False)


def test_a_wheel_is_fetched_whole_and_says_how_far_it_is(web: Web, tmp_path: Path) -> None:
    content = bytes(5 << 20)
    web.answer = lambda _: Answer(content)
    told: list[str] = []
    path = fetch(at(web, sha256(content), len(content)), tmp_path, told.append)
    assert path == tmp_path / NAME
    assert path.read_bytes() == content
    assert told[-1] == f"{NAME}: 5 of 5 MiB"
    # A line for each tenth, whatever the pieces are in which it comes.
    assert 2 <= len(told) <= 10


def test_a_server_that_drips_is_given_up(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpatch.body.GRACE_S", -1.0)
    monkeypatch.setattr("kvpatch.body.SLOWEST", 1 << 40)
    error = failed(at(web), tmp_path)
    assert (error.code, "(TimeoutError)" in error.message) == ("no-network", True)


def failed(wheel: Wheel, folder: Path) -> KvpatchError:
    with pytest.raises(KvpatchError) as caught:
        fetch(wheel, folder, lambda _: None)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    return caught.value


@pytest.mark.parametrize("body", [CONTENT[:-1], CONTENT + b"x", b"", CONTENT[::-1]])
@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_what_has_another_hash_is_not_taken(
    web: Web, tmp_path: Path, body: bytes, size: int | None
) -> None:
    web.answer = lambda _: Answer(body)
    error = failed(at(web, size=size), tmp_path)
    assert error.code == "wrong-hash"


def test_more_than_the_index_says_is_not_read_to_its_end(web: Web, tmp_path: Path) -> None:
    web.answer = lambda _: Answer(bytes(64 << 20))
    error = failed(at(web), tmp_path)
    assert error.code == "wrong-hash"
    assert (tmp_path / NAME).stat().st_size < 4 << 20


def test_a_wheel_without_a_hash_is_not_fetched(web: Web, tmp_path: Path) -> None:
    assert failed(at(web, None), tmp_path).code == "no-hash"
    assert not web.asked


def test_a_server_that_breaks_off_or_refuses_is_the_networks_fault(
    web: Web, tmp_path: Path
) -> None:
    web.answer = lambda _: Answer(CONTENT[:100], length=len(CONTENT))
    assert failed(at(web), tmp_path).code == "no-network"
    web.answer = lambda _: Answer(b"", 404)
    (tmp_path / NAME).unlink()
    assert failed(at(web), tmp_path).code == "no-network"


def test_a_file_name_from_the_index_leads_nowhere_else(web: Web, tmp_path: Path) -> None:
    wheel = Wheel(
        "demo",
        Version("1.0"),
        f"../{NAME}",
        f"{web.url}/x",
        len(CONTENT),
        sha256(CONTENT),
        False,
    )
    (tmp_path / "in").mkdir()
    assert fetch(wheel, tmp_path / "in", lambda _: None) == tmp_path / "in" / NAME


def test_a_release_is_found_on_the_configured_index(web: Web, tmp_path: Path) -> None:
    fits = f"demo-1.0-{next(iter(sys_tags()))}.whl"
    listing = page([NAME, fits, "demo-1.1-py3-none-any.whl"], (fits,))

    def answer(asked: Asked) -> Answer:
        return listing if asked.path.startswith("/simple/demo") else Answer(CONTENT)

    web.answer = answer
    with pytest.raises(KvpatchError) as caught:
        download("demo", Version("1.0"), tmp_path, lambda _: None)
    assert caught.value.code == "wrong-hash"
    assert [asked.path for asked in web.asked] == ["/simple/demo/", f"/files/{NAME}"]
