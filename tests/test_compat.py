"""Verdicts on a pair: what blocks, what is incurable, what a plan changes, and how it is told."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from kvpatch.compat import Side, Verdict, after, check, check_tree, compat_data, compat_text, curing
from kvpatch.letters import Finding, Scope, When
from kvpatch.patch import Judgement, Patch, Target
from kvpatch.plan import Options, plan
from kvpatch.tree import FolderTree
from packaging.version import Version
from pair_stand_in import (
    CONNECTOR,
    FLASH,
    GPU,
    UTILS,
    WORKER,
    codebase,
    replaced,
    tree,
    verdict,
)
from planning import series
from releases import release_file

SHAPE = "(2, num_blocks, block_size, num_kv_heads, head_size)"
PACKED = "(num_blocks, num_kv_heads, block_size, 2 * head_size)"


def finding(letter: str, scope: Scope = Scope.ALWAYS) -> Finding:
    return Finding(letter, When.START, "a.py", 1, "so it is", scope)


@pytest.mark.parametrize(
    ("findings", "green", "incurable"),
    [
        ([], True, None),
        ([finding("V", Scope.SETTINGS)], True, None),
        ([finding("S", Scope.GDS)], True, None),
        ([finding("S", Scope.PLAIN)], False, "S"),
        ([finding("H")], False, None),
        ([finding("H"), finding("C")], False, "C"),
        ([finding("X"), finding("C")], False, "X"),
        ([finding("K")], False, None),
    ],
)
def test_what_is_green_and_what_nothing_cures(
    findings: list[Finding], green: bool, incurable: str | None
) -> None:
    told = Verdict(tuple(findings))
    assert told.green is green
    assert (told.incurable and told.incurable.letter) == incurable


def test_nothing_is_said_of_sources_that_are_not_all_there() -> None:
    without = verdict({CONNECTOR: None})
    assert (without.complete, without.green, without.letters) == (False, False, ())
    assert compat_data(without, plan(series(), tree()), without) is None
    assert "not all there" in compat_text(None)[0]


def test_a_pair_without_lmcache_has_no_verdict() -> None:
    alone = FolderTree({"vllm": tree().packages["vllm"]}, tree().files)
    assert not check_tree(alone, series().members).complete


def test_the_plan_takes_the_letter_h_away_and_says_which_patch_does() -> None:
    held, members = tree(), series().members
    planned = plan(series(), held, Options())
    before = check_tree(held, members)
    later = check_tree(after(held, planned), members)
    assert (before.letters, later.letters) == (("H",), ())
    data = compat_data(before, planned, later)
    assert data is not None
    assert (data["before"], data["after"], data["ok"]) == (["H"], [], True)
    assert data["findings"][0]["cures"] == curing("H", planned) == ["KV001"]
    assert data["findings"][0]["path"] == WORKER
    line = data["findings"][0]["line"]
    assert "ensure_kv_transfer_initialized" in held.files[WORKER].decode().splitlines()[line - 1]


def test_what_stays_is_listed_once_though_a_patch_moves_its_line_and_cured_by_none() -> None:
    moved = Finding("H", When.START, WORKER, 14, "it stays", Scope.ALWAYS)
    gone = Finding("H", When.START, WORKER, 20, "it goes", Scope.ALWAYS)
    before = Verdict((replace(moved, line=10), gone))
    data = compat_data(before, plan(series(), tree()), Verdict((moved,)))
    assert data is not None
    assert [(f["sentence"], f["line"], f["cures"]) for f in data["findings"]] == [
        ("it stays", 10, []),
        ("it goes", 20, ["KV001"]),
    ]


def test_text_names_letter_file_and_line_of_what_stays() -> None:
    held = tree(replaced(FLASH, SHAPE, PACKED))
    planned = plan(series(), held)
    before = check_tree(held, ())
    text = "\n".join(compat_text(compat_data(before, planned, before)))
    assert text.startswith("letters     H K as it stands, H K with the patches")
    assert f"{GPU}:" in text.replace("\n               ", " ")


def knows_packed(module: ast.Module, _: Version) -> Judgement:
    holds = "unpack" in ast.unparse(module)
    return Judgement(holds, "it does" if holds else "it does not")


TRANSFER = Patch(
    id="KV999",
    distribution="lmcache",
    targets=(Target(GPU, ">=0.5", lambda module: module),),
    versions=">=0.5",
    why="",
    how="",
    upstream="",
    retire_when="",
    post_condition=knows_packed,
    faithful=lambda *_: Judgement(True, ""),
    cures=("K",),
)


@pytest.mark.parametrize("unpacks", [True, False])
def test_k_is_cured_where_the_post_condition_of_the_patch_for_it_holds(unpacks: bool) -> None:
    changes = replaced(FLASH, SHAPE, PACKED)
    if unpacks:
        changes |= replaced(
            GPU, "ops.single_layer_kv_transfer(", "unpack(); ops.single_layer_kv_transfer("
        )
    vllm = Side(codebase("vllm", changes), Version("0.30"))
    for release, expected in (("0.5.6", ["H"] if unpacks else ["H", "K"]), ("0.4.6", ["H", "K"])):
        lmcache = Side(codebase("lmcache", changes), Version(release), (TRANSFER,))
        assert list(check(vllm, lmcache).letters) == expected


def test_a_file_that_is_not_python_cures_nothing() -> None:
    changes = {**replaced(FLASH, SHAPE, PACKED), GPU: "def (:\n"}
    vllm = Side(codebase("vllm", changes), Version("0.30"))
    lmcache = Side(codebase("lmcache", changes), Version("0.5.6"), (TRANSFER,))
    assert "K" in check(vllm, lmcache).letters


def test_lmcache_that_registers_the_model_itself_needs_no_patch() -> None:
    from pair_stand_in import ADAPTER

    itself = replaced(
        ADAPTER,
        "        self.kv_caches = {}\n",
        "        VLLMModelTracker.register_model('a', 1)\n",
    )
    assert list(verdict(itself).letters) == []


def test_a_file_that_is_not_python_is_said_to_be_so_and_breaks_nothing() -> None:
    broken = verdict({WORKER: "def broken(:\n"})
    assert broken.findings[0].sentence == "it is not Python"
    assert list(verdict({UTILS: "def broken(:\n"}).letters) == ["H"]


@pytest.mark.releases
def test_a_real_worker_has_the_letter_where_the_connector_is_created(tmp_path: Path) -> None:
    text = release_file("vllm", "0.32.0", WORKER)
    found = verdict({WORKER: text.decode()}, "0.32.0").findings
    assert [item.letter for item in found] == ["H"]
    assert "ensure_kv_transfer_initialized(" in text.decode().splitlines()[found[0].line - 1]
