from __future__ import annotations

from dataclasses import replace

import pytest
from fake_site import EARLY, LATE, WORKER
from kvpatch import catalogue, fold, series
from kvpatch.digest import sha256 as digest
from kvpatch.fold import Options, plan_file
from kvpatch.outcome import Outcome
from kvpatch.patch import Judgement
from kvpatch.tree import FolderTree, Package, Provenance
from packaging.version import Version


def _items(version: str) -> list[tuple[series.Member, object]]:
    from packaging.specifiers import SpecifierSet

    return [
        (member, target)
        for member in series.discover().members
        for target in member.patch.targets
        if member.patch.distribution == "vllm"
        if SpecifierSet(target.versions).contains(version)
    ]


def _planned(text: str, version: str, options: Options | None = None, items=None):  # type: ignore[no-untyped-def]
    package = Package("vllm", Version(version))
    tree = FolderTree({"vllm": package}, {WORKER: text.encode()}, Provenance.PRISTINE)
    chosen = _items(version) if items is None else items
    return plan_file(tree, "vllm", package, WORKER, chosen, options or Options())


def _catalogue(text: str, version: str) -> catalogue.Catalogue:
    import json

    data = json.loads(
        catalogue.build(series.discover(), {"vllm": {version: {WORKER: text.encode()}}})
    )
    keys = ("patches", "releases", "plans", "functions", "rests")
    return catalogue.Catalogue(*(data[key] for key in keys))


def test_a_result_that_the_catalogue_judged_is_not_judged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = _catalogue(LATE, "0.32.0")
    anew, _ = _planned(LATE, "0.32.0")
    monkeypatch.setattr(fold, "judge", None)
    file, told = _planned(LATE, "0.32.0", Options(known=known))
    assert file.after == anew.after
    assert told["KV001"].outcome is Outcome.PENDING


def test_a_thorough_plan_judges_it_again() -> None:
    known = _catalogue(LATE, "0.32.0")
    ((member, target),) = _items("0.32.0")
    patch = replace(member.patch, post_condition=lambda *_: Judgement(False, "not today"))
    items = [(replace(member, patch=patch), target)]
    _, told = _planned(LATE, "0.32.0", Options(known=known, thorough=True), items)
    assert told["KV001"].outcome is Outcome.CONFLICT


def test_a_result_that_is_not_the_one_the_catalogue_judged_is_judged() -> None:
    known = _catalogue(LATE, "0.32.0")
    wrong = {key: {**value, "after": "0" * 64} for key, value in known.plans.items()}
    file, told = _planned(LATE, "0.32.0", Options(known=replace(known, plans=wrong)))
    assert told["KV001"].outcome is Outcome.PENDING
    assert file.after_digest != "0" * 64


def test_a_brief_plan_has_the_digest_and_not_the_bytes() -> None:
    known = _catalogue(EARLY, "0.10.0")
    file, told = _planned(EARLY, "0.10.0", Options(known=known, brief=True))
    full, _ = _planned(EARLY, "0.10.0")
    assert (file.after, file.after_digest) == (None, full.after_digest)
    assert {target.outcome for target in told.values()} == {Outcome.PENDING}


def test_a_file_plan_says_what_it_is_and_what_it_would_be() -> None:
    file, _ = _planned(LATE, "0.32.0")
    assert file.before_digest == digest(LATE.encode())
    assert file.pending
    assert file.original == LATE.encode()
    assert set(file.patches) == {"KV001"}
