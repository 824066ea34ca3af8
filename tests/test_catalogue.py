from __future__ import annotations

import json

import pytest
from fake_site import EARLY, LATE, WORKER
from kvpatch import catalogue, series
from kvpatch.functions import differing, function_hashes
from kvpatch.outcome import Outcome
from kvpatch.plan import Options, plan
from kvpatch.tree import FolderTree, Package
from packaging.version import Version


@pytest.fixture
def small() -> catalogue.Catalogue:
    releases = {
        "0.10.0": {WORKER: EARLY.encode()},
        "0.11.1": {WORKER: LATE.encode()},
        "0.12.0": {WORKER: LATE.replace("Allocate the", "Make the").encode()},
    }
    data = json.loads(catalogue.build(series.discover(), {"vllm": releases}))
    keys = ("patches", "releases", "plans", "functions", "rests")
    return catalogue.Catalogue(*(data[key] for key in keys))


def _tree(version: str, text: str) -> FolderTree:
    return FolderTree({"vllm": Package("vllm", Version(version))}, {WORKER: text.encode()})


@pytest.mark.parametrize(("version", "text"), [("0.10.0", EARLY), ("0.11.1", LATE)])
def test_a_brief_plan_says_what_the_full_plan_says(
    small: catalogue.Catalogue, version: str, text: str
) -> None:
    chosen = series.discover()
    full = plan(chosen, _tree(version, text), Options(known=small))
    brief = plan(chosen, _tree(version, text), Options(known=small, brief=True))
    assert [(p.id, p.outcome, p.reason) for p in brief.patches] == [
        (p.id, p.outcome, p.reason) for p in full.patches
    ]
    assert [f.after_digest for f in brief.files] == [f.after_digest for f in full.files]
    assert brief.files[0].after is None


def test_a_brief_plan_of_a_smaller_choice_is_planned_anew(small: catalogue.Catalogue) -> None:
    (kv001,) = (m for m in series.discover().members if m.id == "KV001")
    changed = series.Series((series.Member(kv001.patch, kv001.title, (), "another digest"),))
    planned = plan(changed, _tree("0.11.1", LATE), Options(known=small, brief=True))
    assert planned.files[0].after is not None


def test_a_file_that_is_not_in_the_catalogue_is_planned_anew(small: catalogue.Catalogue) -> None:
    text = LATE + "\n# another build\n"
    planned = plan(series.discover(), _tree("0.11.1", text), Options(known=small, brief=True))
    assert planned.patches[0].outcome is Outcome.PENDING
    assert planned.files[0].after is not None


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("0.11.1", True),
        ("0.11.1+cpu", True),
        ("0.11.1.post2", False),
        ("0.11.1rc1", False),
        ("0.99.0", False),
    ],
)
def test_tested_means_that_this_release_was_planned(
    small: catalogue.Catalogue, version: str, tested: bool
) -> None:
    assert small.tested("vllm", Version(version)) is tested


def test_the_functions_of_each_release_are_known(small: catalogue.Catalogue) -> None:
    for version, text in {
        "0.10.0": EARLY,
        "0.11.1": LATE,
        "0.12.0": LATE.replace("Allocate the", "Make the"),
    }.items():
        known = small.functions_of("vllm", Version(version), WORKER)
        assert known is not None
        assert differing(known, function_hashes(text.encode())) == ()


def test_the_functions_of_an_unknown_release_are_not_guessed(small: catalogue.Catalogue) -> None:
    assert small.functions_of("vllm", Version("0.99.0"), WORKER) is None


def test_the_shipped_catalogue_was_made_with_the_patches_of_this_kvpatch() -> None:
    shipped = catalogue.load()
    assert shipped.patches == {m.id: m.digest for m in series.discover().members}, (
        "patches changed since the catalogue was made: run `make generate`"
    )


def test_the_shipped_catalogue_knows_releases_of_both_eras() -> None:
    shipped = catalogue.load()
    assert shipped.tested("vllm", Version("0.8.5"))
    assert shipped.tested("vllm", Version("0.32.0"))
    assert not shipped.tested("vllm", Version("0.8.4"))
