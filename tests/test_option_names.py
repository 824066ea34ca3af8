"""The names of options, against the sources of every release, and words that are none."""

from __future__ import annotations

import ast
from functools import partial

import pytest
from kvpatch.option_names import FILES, VALUELESS, build, known, names_of, newest, strangers, strays
from packaging.version import Version
from releases import ReleaseFilesMissingError, release_file, vllm_releases

NEWEST = Version("0.32.0")


def read(release: str, path: str) -> bytes | None:
    try:
        return release_file("vllm", release, path)
    except ReleaseFilesMissingError:
        return None


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_the_names_are_the_releases_own(release: str) -> None:
    assert known(Version(release)) == names_of(partial(read, release))


@pytest.mark.releases
def test_the_file_is_what_the_releases_make_of_it() -> None:
    names = {release: names_of(partial(read, release)) for release in vllm_releases()}
    from kvpatch import option_names

    assert option_names._PLACE.read_text() == build(names)
    assert newest() == Version(vllm_releases()[-1])


def test_of_a_release_that_is_not_known_nothing_is_said() -> None:
    assert known(Version("99.0")) is None
    assert known(Version("0.32.0+cpu")) == known(NEWEST)
    assert list(strangers(["--no-such-thing"], Version("99.0"))) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("m --enforce-eagr", ["enforce-eagr"]),
        ("m --enforce --no-enforce --kv_tr X", []),
        ("m --zzz=1 --no-zzz", ["zzz", "no-zzz"]),
        ("m --kv-tr.kv_connector --zzz", []),
        ("m --zzz.a b", ["zzz"]),
        ("m -- --zzz", []),
        ("m --$A --zzz$A --zzz{1,2}", []),
    ],
)
def test_an_option_that_the_release_does_not_have_is_found(words: str, found: list[str]) -> None:
    assert [name for _, name in strangers(words.split(), NEWEST)] == found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("m --enforce-eager true", ("m", "true")),
        ("--enforce-eager m", ("m",)),
        ("m --no-enforce n", ("m", "n")),
        ("m --port=1 n", ("m", "n")),
        ("m -O3 n", ("m", "n")),
        ("m --a.b c d", ("m", "d")),
        ("m --served-model-name a b", ("m",)),
        ("m -tp 2", ("m",)),
        ("m -- n", ("m",)),
    ],
)
def test_words_that_are_no_options_value_are_found(words: str, found: tuple[str, ...]) -> None:
    assert strays(words.split()) == found


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_no_switch_takes_a_value_in_a_release(release: str) -> None:
    names = VALUELESS & (known(Version(release)) or frozenset())
    wrong = []
    for node in (one for path in FILES for one in ast.walk(ast.parse(read(release, path) or b""))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
            takes = {"type", "nargs"} & {one.arg for one in node.keywords}
            mine = [text for text in texts if str(text)[2:].replace("_", "-") in names]
            wrong += mine if takes else []
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            mine = [node.target.id] if node.target.id.replace("_", "-") in names else []
            wrong += [] if "bool" in ast.unparse(node.annotation) else mine
    assert wrong == []
