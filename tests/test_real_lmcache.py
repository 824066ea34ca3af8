"""The patches of LMCache on the files of every release in their ranges."""

from __future__ import annotations

import ast
import difflib
from functools import cache
from pathlib import Path

import pytest
from commands import differing, on
from fake_site import install, make_site
from kvpatch.blending import released_elsewhere
from kvpatch.outcome import Outcome
from kvpatch.patches.kv011_send_tokens import CLIENT, released_but_for_lookup
from kvpatch.plan import Options, plan
from kvpatch.tree import Package, Provenance
from lmcache_files import (
    MEMO,
    NEW_VLLM,
    OLD_VLLM,
    VLLM,
    Applied,
    lmcache_series,
    planned_release,
    stock_files,
    tree,
)
from packaging.version import Version
from releases import lmcache_releases

pytestmark = pytest.mark.releases

LAST = Version("0.5.7.dev0")
ALL = [release.version for release in lmcache_releases() if Version(release.version) < LAST]
FINAL = [r.version for r in lmcache_releases() if not r.pre and Version(r.version) < LAST]
# What depends on the pair is the same in a pre-release and its final one.
PAIRS = [(r, v) for r in ALL for v in (OLD_VLLM, VLLM, NEW_VLLM) if r in FINAL or v == NEW_VLLM]
EDGES = ["0.3.3", "0.3.9.post2", "0.4.4", "0.5.3", FINAL[-1]]


def _expected(release: str, vllm: str) -> dict[str, Outcome]:
    """What each patch comes to, by the releases alone."""
    # A pre-release is taken as its final one; a post release comes after it.
    lmcache = max(Version(release), Version(Version(release).base_version))
    pair = Version(vllm)
    ranges = {
        "KV003": ("0.3.3", "99", "0"),
        "KV004": ("0.3.3", "99", "0.12.0"),
        "KV005": ("0.3.3", "0.4.5", "0.11.1"),
        "KV006": ("0.4.7", "0.5.7", "0.26.0"),
        "KV007": ("0.3.3", "0.5.7", "0"),
        "KV008": ("0.3.3", "0.5.7", "0"),
        "KV009": ("0.4.4", "0.5.7", "0"),
        "KV010": ("0.3.3", "99", "0"),
        "KV011": ("0.3.10", "0.4.5", "0"),
        "KV012": ("0.3.3", "99", "0"),
        "KV013": ("0.3.4", "0.5.7", "0"),
        "KV014": ("0.3.10.post1", "99", "0"),
        "KV015": ("0.3.3", "99", "0"),
        "KV017": ("0.3.4", "0.5.7", "0"),
        "KV016": ("0.3.3", "0.5.7", "0"),
        "KV018": ("0.4.3", "0.5.7", "0"),
    }
    found = {}
    for patch_id, (first, end, since) in ranges.items():
        if not Version(first) <= lmcache < Version(end):
            found[patch_id] = Outcome.OUT_OF_RANGE
        elif pair < Version(since):
            found[patch_id] = Outcome.NOT_NEEDED
        else:
            found[patch_id] = Outcome.PENDING
    return found


@cache
def _unsound(original: bytes, after: bytes) -> str | None:
    """What is wrong with a rewritten file; many releases and pairs have the same one."""
    compile(after, "after", "exec")
    pair = ast.parse(original), ast.parse(after)
    client = b"class LMCacheLookupClient" in original
    sound = released_but_for_lookup if client else released_elsewhere
    kept = sound(*pair)
    return None if kept.holds else kept.reason


@cache
def _judged(patch_id: str, release: Version, content: bytes) -> bool:
    """Whether the post-condition of a patch holds for a file of that release."""
    member = next(item for item in lmcache_series().members if item.id == patch_id)
    return member.patch.post_condition(ast.parse(content), release).holds


@pytest.mark.parametrize(("release", "vllm"), PAIRS)
def test_every_patch_goes_into_every_release_of_its_range(release: str, vllm: str) -> None:
    found = planned_release(release, vllm)
    assert {patch.id: patch.outcome for patch in found.patches} == _expected(release, vllm)
    assert found.changes
    for file in found.changes:
        assert file.after is not None
        assert b"# kvpatch KV" in file.after
        assert _unsound(file.original, file.after) is None


@pytest.mark.parametrize("release", ALL)
def test_the_post_conditions_hold_after_and_not_before(release: str) -> None:
    found = planned_release(release)
    after = {file.path: file for file in found.changes}
    stock = stock_files(release)
    for member in lmcache_series().members:
        plans = next(patch for patch in found.patches if patch.id == member.id)
        if plans.outcome is not Outcome.PENDING:
            continue
        before = []
        for target in plans.targets:
            file = after[target.path]
            assert file.after is not None
            version = Package("lmcache", Version(release)).release
            assert _judged(member.id, version, file.after)
            before.append(_judged(member.id, version, stock[target.path]))
        assert not all(before), member.id


@pytest.mark.parametrize("release", ALL)
def test_a_second_apply_changes_nothing_and_each_original_is_kept(release: str) -> None:
    found = planned_release(release)
    for thorough in (False, True) if release in FINAL else (False,):
        options = Options(thorough=thorough, memo=MEMO)
        again = plan(lmcache_series(), Applied(release, NEW_VLLM, found), options)
        assert again.changes == ()
        assert not again.refused
        for file in again.files:
            assert file.original == stock_files(release)[file.path]


@pytest.mark.parametrize("release", EDGES)
def test_what_kvpatch_wrote_is_known_for_what_it_is_without_a_journal(release: str) -> None:
    found = planned_release(release)
    files = {**stock_files(release)}
    files |= {file.path: file.after for file in found.changes if file.after is not None}
    strange = plan(lmcache_series(), tree(release, NEW_VLLM, files, Provenance.OTHER))
    for before, after in zip(found.patches, strange.patches, strict=True):
        pending = before.outcome is Outcome.PENDING
        assert after.outcome is (Outcome.ABSORBED if pending else before.outcome)


@pytest.mark.parametrize("release", EDGES)
def test_lines_that_no_patch_names_stay_where_they_are(release: str) -> None:
    for file in planned_release(release).changes:
        assert file.after is not None
        before, after = file.original.splitlines(), file.after.splitlines()
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        gone = [
            line
            for tag, start, stop, _, _ in matcher.get_opcodes()
            if tag in ("replace", "delete")
            for line in before[start:stop]
        ]
        assert len(gone) <= 12, (file.path, gone)


@pytest.mark.parametrize("release", EDGES)
def test_apply_and_revert_give_every_byte_back(release: str, tmp_path: Path) -> None:
    stock = stock_files(release)
    site = make_site(tmp_path, NEW_VLLM)
    texts = {path: data.decode() for path, data in stock.items()}
    install(site.path, "lmcache", release, {"lmcache/__init__.py": "", **texts})
    assert on(site, "apply").code == 0
    changed = {path for path, data in stock.items() if (site.path / path).read_bytes() != data}
    assert changed == {file.path for file in planned_release(release).changes}
    assert on(site, "revert").code == 0
    assert differing(site.path) == []


_SENDS = {
    "0.3.15": "tokens_buf = self.encoder.encode(token_ids)",
    "0.4.4": "msg_buf = [token_ids, lookup_id, request_configs_str]",
}


@pytest.mark.parametrize("release", list(_SENDS))
@pytest.mark.parametrize(
    "edit",
    [
        "seen = list(token_ids); ids = token_ids; {renamed}",
        "log('%s', list(token_ids)); {sent}",
        "raw = token_ids; token_ids = list(token_ids); token_ids = raw; {sent}",
        "list = tuple; token_ids = list(token_ids); {sent}",
        "token_ids = list(token_ids); {sent}; msg_buf[0] = token_ids",
        "token_ids = iter(token_ids); {sent}",
        "{sent}",
    ],
)
def test_edits_of_the_lookup_that_may_send_something_else_are_not_believed(
    release: str, edit: str
) -> None:
    sent = _SENDS[release]
    text = ast.unparse(ast.parse(stock_files(release)[CLIENT]))
    assert text.count(sent) == 1
    renamed = sent.replace("token_ids", "ids", 1)
    edited = text.replace(sent, edit.format(sent=sent, renamed=renamed))
    ast.parse(edited)
    assert not _judged("KV011", Version(release), edited.encode())
    right = text.replace(sent, f"token_ids = list(token_ids); {sent}")
    assert _judged("KV011", Version(release), right.encode())
