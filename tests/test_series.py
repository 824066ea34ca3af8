"""Every patch of the series, its fields and its examples; and the choice of patches."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from kvpatch.outcome import ExitCode, KvpatchError, Outcome
from kvpatch.patch import Example, ExampleKind, Need, Patch
from kvpatch.plan import Options, Plan, plan
from kvpatch.series import Member, Series, check, discover, select
from kvpatch.tree import FolderTree, Package, Provenance
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from planning import OneFile

SERIES = discover()
CASES = [
    pytest.param(member, example, id=f"{member.id} {example.name}")
    for member in SERIES.members
    for example in member.examples
]
OPTIONAL = {"cures", "needs", "when", "take_out"}


def _beside(member: Member, example: Example) -> dict[str, str]:
    """The release of the other distribution, where the example names one."""
    other = {"vllm": "lmcache", "lmcache": "vllm"}[member.patch.distribution]
    return {other: example.beside} if example.beside else {}


def _path(member: Member, example: Example) -> str:
    if example.path:
        return example.path
    for target in member.patch.targets:
        if SpecifierSet(target.versions).contains(Version(example.version), prereleases=True):
            return target.path
    return member.patch.targets[0].path


def _chosen(member: Member, example: Example) -> Series:
    """The patch and what it needs, for the one file of the example."""
    version = Version(example.version)
    chosen = select(SERIES, {member.patch.distribution: version}, [member.id]).series
    if not example.path:
        return chosen
    assert example.path in {target.path for target in member.patch.targets}
    return Series(tuple(_narrowed(found, example.path) for found in chosen.members))


def _narrowed(member: Member, path: str) -> Member:
    targets = tuple(target for target in member.patch.targets if target.path == path)
    return replace(member, patch=replace(member.patch, targets=targets))


def _plan(
    member: Member, example: Example, text: bytes, provenance: Provenance = Provenance.PRISTINE
) -> Plan:
    versions = {member.patch.distribution: example.version, **_beside(member, example)}
    packages = {name: Package(name, Version(version)) for name, version in versions.items()}
    files = {_path(member, example): text}
    return plan(_chosen(member, example), FolderTree(packages, files, provenance))


def _again(member: Member, example: Example, first: Plan, thorough: bool) -> Plan:
    (file,) = first.files
    tree = OneFile(
        file.after,
        example.version,
        Provenance.OURS,
        file.original,
        file.patches,
        path=file.path,
        owner=member.patch.distribution,
        beside=_beside(member, example),
    )
    return plan(_chosen(member, example), tree, Options(thorough=thorough))


@pytest.mark.parametrize(("member", "example"), CASES)
def test_every_example_of_every_patch_becomes_what_it_says(
    member: Member, example: Example
) -> None:
    before = example.before.encode()
    found = _plan(member, example, before)
    verdict = next(patch for patch in found.patches if patch.id == member.id)
    if example.kind is ExampleKind.REWRITTEN:
        assert verdict.outcome is Outcome.PENDING
        (file,) = found.changes
        assert file.after is not None
        assert example.after is not None
        assert file.after.decode() == example.after
        compile(file.after, file.path, "exec")
        for thorough in (False, True):
            again = _again(member, example, found, thorough)
            assert {patch.outcome for patch in again.patches} == {Outcome.ALREADY}
            assert again.changes == ()
            assert again.files[0].original == before
        strange = _plan(member, example, file.after, Provenance.OTHER)
        assert {patch.outcome for patch in strange.patches} == {Outcome.ABSORBED}
    else:
        assert found.changes == ()
        wanted = {
            ExampleKind.UNTOUCHED: (Outcome.OUT_OF_RANGE, Outcome.NOT_NEEDED),
            ExampleKind.ABSORBED: (Outcome.ABSORBED,),
            ExampleKind.REFUSED: (example.outcome,),
        }[example.kind]
        assert verdict.outcome in wanted
        assert (example.reason or "") in verdict.reason
        if example.kind is ExampleKind.REFUSED:
            assert example.reason
            assert found.refused


@pytest.mark.parametrize("member", SERIES.members, ids=lambda member: member.id)
def test_every_patch_has_examples_of_all_four_kinds(member: Member) -> None:
    assert {example.kind for example in member.examples} == set(ExampleKind)
    names = [example.name for example in member.examples]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("member", SERIES.members, ids=lambda member: member.id)
def test_every_required_field_of_a_patch_says_something(member: Member) -> None:
    for entry in fields(Patch):
        if entry.name not in OPTIONAL:
            assert getattr(member.patch, entry.name), entry.name
    assert member.title
    assert member.patch.upstream.startswith("https://")
    assert member.patch.distribution in ("vllm", "lmcache")
    for sentence in (member.patch.why, member.patch.how, member.patch.retire_when):
        assert sentence.endswith("."), sentence
        assert len(sentence.split()) >= 5


@pytest.mark.parametrize("member", SERIES.members, ids=lambda member: member.id)
def test_a_pair_that_a_patch_was_run_on_is_one_that_takes_it(member: Member) -> None:
    patch = member.patch
    pairs = re.findall(r"vLLM ([\w.]+) with LMCache ([\w.]+)", patch.proved)
    assert bool(pairs) is patch.proved.startswith("run on a CPU")
    for vllm, lmcache in pairs:
        there = {"vllm": Version(vllm), "lmcache": Version(lmcache.rstrip("."))}
        assert patch.in_range(there[patch.distribution])
        assert patch.when is None or patch.when.holds(there)


@pytest.mark.parametrize("member", SERIES.members, ids=lambda member: member.id)
def test_every_range_of_a_patch_can_be_parsed_and_every_path_stays_below_the_site_folder(
    member: Member,
) -> None:
    SpecifierSet(member.patch.versions)
    for need in member.patch.needs:
        SpecifierSet(need.versions)
    for target in member.patch.targets:
        SpecifierSet(target.versions)
        assert not target.path.startswith("/")
        assert ".." not in target.path.split("/")


def test_ids_are_unique_and_in_series_order() -> None:
    ids = [member.id for member in SERIES.members]
    assert ids == sorted(set(ids))
    assert ids[:2] == ["KV001", "KV002"]


def test_one_file_has_one_transformer_of_a_patch_in_each_release() -> None:
    for member in SERIES.members:
        for release in ("0.8.5", "0.10.0", "0.11.0", "0.11.1", "0.33.0", "99.0"):
            if not member.patch.in_range(Version(release)):
                continue
            paths = [
                target.path
                for target in member.patch.targets
                if SpecifierSet(target.versions).contains(release, prereleases=True)
            ]
            assert paths
            assert len(paths) == len(set(paths))


def test_discovery_gives_the_same_digest_twice() -> None:
    assert discover().digest == SERIES.digest
    digests = {member.digest for member in SERIES.members}
    assert len(digests) == len(SERIES.members)


def test_the_digest_of_a_series_changes_with_its_members() -> None:
    assert Series(SERIES.members[:1]).digest != SERIES.digest
    changed = replace(SERIES.members[0], digest="0" * 64)
    assert Series((changed, *SERIES.members[1:])).digest != SERIES.digest


def test_a_second_patch_of_the_same_id_is_a_fault_of_kvpatch() -> None:
    with pytest.raises(KvpatchError, match="is there twice") as caught:
        check([SERIES.members[0], SERIES.members[1], SERIES.members[0]])
    assert caught.value.code == "bad-series"
    assert caught.value.exit_code is ExitCode.BUG


def test_a_need_of_a_patch_that_does_not_exist_is_a_fault_of_kvpatch() -> None:
    member = SERIES.members[0]
    lonely = replace(member, patch=replace(member.patch, needs=(Need("KV999", ">=0"),)))
    with pytest.raises(KvpatchError, match="needs KV999, which does not exist"):
        check([lonely])


def test_a_patch_is_found_whatever_the_case_of_its_id() -> None:
    assert SERIES.get("kv001").id == "KV001"


def test_an_unknown_id_is_a_usage_error_that_names_the_nearest() -> None:
    with pytest.raises(KvpatchError) as caught:
        SERIES.get("KVO05")
    assert caught.value.code == "unknown-patch"
    assert caught.value.exit_code is ExitCode.USAGE
    assert "KV005" in caught.value.hint


@pytest.mark.parametrize("given", ["kv1", "KV1", "1", "KV0001", "kv-1"])
def test_a_number_written_otherwise_names_the_patch_that_has_it(given: str) -> None:
    with pytest.raises(KvpatchError) as caught:
        SERIES.get(given)
    assert caught.value.hint == "did you mean KV001? `kvpatch list` shows them all"


EARLY = {"vllm": Version("0.10.0")}
LATE = {"vllm": Version("0.32.0")}


def _ids(series: Series) -> list[str]:
    return [member.id for member in series.members]


def test_all_patches_are_chosen_where_none_is_named() -> None:
    both = {**EARLY, "lmcache": Version("0.5.6")}
    chosen = select(SERIES, both)
    assert _ids(chosen.series) == _ids(SERIES)
    assert chosen.taken_along == ()


def test_patches_of_a_distribution_that_is_not_installed_are_not_chosen() -> None:
    assert _ids(select(SERIES, EARLY).series) == ["KV001", "KV002"]
    assert _ids(select(SERIES, {}).series) == _ids(SERIES)
    assert _ids(select(SERIES, {}, only=["KV003"]).series) == ["KV003"]


def test_the_registration_comes_along_with_whatever_is_named() -> None:
    both = {**LATE, "lmcache": Version("0.5.6")}
    chosen = select(SERIES, both, only=["KV010"])
    assert _ids(chosen.series) == ["KV001", "KV010"]
    assert chosen.taken_along == ("KV001",)
    # Only what is meant for these releases is left out.
    assert "KV003" in chosen.left_out
    assert not {"KV002", "KV005"} & set(chosen.left_out)
    assert select(SERIES, both).left_out == ()
    early = {**EARLY, "lmcache": Version("0.3.9")}
    assert _ids(select(SERIES, early, only=["KV010"]).series) == ["KV001", "KV002", "KV010"]
    skipping = select(SERIES, both, only=["KV010"], skip=["KV001"])
    assert _ids(skipping.series) == ["KV010"]


@pytest.mark.parametrize(("only", "along"), [("KV001", "KV002"), ("KV002", "KV001")])
def test_what_a_chosen_patch_needs_comes_along_and_is_named(only: str, along: str) -> None:
    chosen = select(SERIES, EARLY, only=[only])
    assert _ids(chosen.series) == ["KV001", "KV002"]
    assert chosen.taken_along == (along,)


def test_nothing_comes_along_where_the_release_does_not_need_it() -> None:
    chosen = select(SERIES, LATE, only=["KV001"])
    assert _ids(chosen.series) == ["KV001"]
    assert chosen.taken_along == ()


def test_nothing_comes_along_where_the_distribution_is_not_installed() -> None:
    assert _ids(select(SERIES, {}, only=["KV002"]).series) == ["KV002"]


def test_a_prerelease_needs_what_its_range_says() -> None:
    chosen = select(SERIES, {"vllm": Version("0.10.0rc1")}, only=["KV001"])
    assert _ids(chosen.series) == ["KV001", "KV002"]


@pytest.mark.parametrize("skip", ["KV001", "KV002"])
def test_skipping_what_a_chosen_patch_needs_is_a_usage_error(skip: str) -> None:
    with pytest.raises(KvpatchError, match=f"needs {skip}, which is to be skipped") as caught:
        select(SERIES, EARLY, skip=[skip])
    assert caught.value.code == "skip-needed"
    assert caught.value.exit_code is ExitCode.USAGE


def test_skipping_is_fine_where_nothing_needs_the_patch() -> None:
    assert _ids(select(SERIES, LATE, skip=["KV002"]).series) == ["KV001"]


def test_skipping_both_of_two_that_need_each_other_is_fine() -> None:
    chosen = select(SERIES, EARLY, skip=["KV001", "KV002"])
    assert not {"KV001", "KV002"} & set(_ids(chosen.series))


def test_a_patch_both_chosen_and_skipped_is_a_usage_error() -> None:
    with pytest.raises(KvpatchError) as caught:
        select(SERIES, LATE, only=["KV001"], skip=["kv001"])
    assert caught.value.exit_code is ExitCode.USAGE


def test_an_unknown_id_to_skip_is_a_usage_error() -> None:
    with pytest.raises(KvpatchError, match="there is no patch KV777"):
        select(SERIES, LATE, skip=["KV777"])
