"""A plan as a pure function of a series and a tree: every outcome, every provenance."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from kvpatch import catalogue
from kvpatch.digest import sha256 as digest
from kvpatch.fold import Memo
from kvpatch.outcome import Outcome
from kvpatch.patch import Condition, Judgement, Patch, Refusal, Target
from kvpatch.plan import Options, Plan, plan
from kvpatch.series import Member, Series
from kvpatch.tree import FolderTree, Package, Provenance, Source
from packaging.version import Version
from planning import WORKER, OneFile, outcomes, planned, reasons, replanned, series, written

EARLY = b"""
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def load_model(self):
        self.model_runner.load_model()


def init_worker_distributed_environment(vllm_config, rank):
    ensure_kv_transfer_initialized(vllm_config)
"""

LATE = b"""
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def initialize_from_config(self, kv_cache_config):
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
"""

BY_HAND = b"""
from lmcache.integration.vllm.utils import ENGINE_NAME
from lmcache.v1.compute.models.utils import VLLMModelTracker
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized


class Worker:
    def initialize_from_config(self, kv_cache_config):
        VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.%s)
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
"""


def test_both_patches_are_pending_on_an_early_release() -> None:
    found = planned(EARLY, "0.10.0")
    assert outcomes(found) == {"KV001": Outcome.PENDING, "KV002": Outcome.PENDING}
    assert found.goal_holds
    assert found.refused == ()
    (file,) = found.changes
    assert (file.state, file.content, file.original) == ("pristine", EARLY, EARLY)
    assert file.basis == "pristine"
    assert file.after is not None
    assert file.after_digest == hashlib.sha256(file.after).hexdigest() == digest(file.after)
    assert file.before_digest == hashlib.sha256(EARLY).hexdigest()
    assert set(file.patches) == {"KV001", "KV002"}


def test_planning_twice_gives_equal_plans() -> None:
    assert planned(EARLY, "0.10.0") == planned(EARLY, "0.10.0")


@pytest.mark.parametrize(
    ("version", "text", "first", "second"),
    [
        ("0.8.4", EARLY, Outcome.OUT_OF_RANGE, Outcome.OUT_OF_RANGE),
        ("0.8.5", EARLY, Outcome.PENDING, Outcome.PENDING),
        ("0.8.5rc1", EARLY, Outcome.PENDING, Outcome.PENDING),
        ("0.8.5.post1", EARLY, Outcome.PENDING, Outcome.PENDING),
        ("0.11.0", EARLY, Outcome.PENDING, Outcome.PENDING),
        ("0.11.0+cpu", EARLY, Outcome.PENDING, Outcome.PENDING),
        ("0.11.1rc1", LATE, Outcome.PENDING, Outcome.OUT_OF_RANGE),
        ("0.11.1.dev1", LATE, Outcome.PENDING, Outcome.OUT_OF_RANGE),
        ("0.11.1", LATE, Outcome.PENDING, Outcome.OUT_OF_RANGE),
        ("0.11.1+cu129", LATE, Outcome.PENDING, Outcome.OUT_OF_RANGE),
        ("99.0", LATE, Outcome.PENDING, Outcome.OUT_OF_RANGE),
        ("0.11.0", LATE, Outcome.MISSING, Outcome.PENDING),
        ("0.11.1", EARLY, Outcome.MISSING, Outcome.OUT_OF_RANGE),
    ],
)
def test_a_release_decides_which_anchors_are_looked_for(
    version: str, text: bytes, first: Outcome, second: Outcome
) -> None:
    assert outcomes(planned(text, version)) == {"KV001": first, "KV002": second}


def test_a_release_out_of_range_names_the_range_and_misses_the_goal() -> None:
    found = planned(EARLY, "0.8.4")
    assert "vllm 0.8.4 is not in >=0.8.5" in reasons(found)
    assert not found.goal_holds
    assert found.changes == ()


def test_a_distribution_that_is_not_there_is_not_installed() -> None:
    found = plan(series(), FolderTree({}, {}))
    assert set(outcomes(found).values()) == {Outcome.NOT_INSTALLED}
    assert "vllm is not installed here" in reasons(found)
    assert not found.goal_holds
    assert [patch.version for patch in found.patches] == [None, None]


def test_a_file_that_is_not_there_is_missing_and_never_success() -> None:
    found = plan(series(), OneFile(None, "0.32.0"))
    assert outcomes(found)["KV001"] is Outcome.MISSING
    assert f"{WORKER} is not there" in reasons(found)
    assert found.refused
    assert found.files == ()


@dataclass(frozen=True)
class Unreadable(OneFile):
    """A tree whose file can't be read as one."""

    def source(self, name: str, path: str) -> Source | None:
        raise Refusal(Outcome.FOREIGN, f"{path} is a folder")


def test_a_path_that_is_not_a_file_is_refused_with_the_trees_reason() -> None:
    found = plan(series(), Unreadable(b"", "0.32.0"))
    assert outcomes(found)["KV001"] is Outcome.FOREIGN
    assert f"{WORKER} is a folder" in reasons(found)
    assert found.files == ()


@pytest.mark.parametrize(
    "text", [b"class Worker(:\n", b"\x00", b"def f():\npass\n", b"\xff\xff", b""]
)
def test_a_file_that_does_not_parse_is_refused_and_not_a_traceback(text: bytes) -> None:
    for provenance in (Provenance.PRISTINE, Provenance.OTHER, Provenance.UNKNOWN):
        found = planned(text, "0.32.0", provenance)
        assert outcomes(found)["KV001"].refused
        assert reasons(found)
        assert found.changes == ()


def test_a_refused_patch_keeps_the_others_of_its_file_from_going_in() -> None:
    text = EARLY.replace(b"initialized(vllm_config)", b"initialized(vllm_config, rank)")
    found = planned(text, "0.10.0")
    assert outcomes(found) == {"KV001": Outcome.PENDING, "KV002": Outcome.MISSING}
    assert [patch.id for patch in found.refused] == ["KV002"]
    assert "KV002 of the same file was refused" in reasons(found)
    assert found.changes == ()


def test_a_patch_alone_that_would_not_do_its_work_is_a_conflict() -> None:
    found = planned(EARLY, "0.10.0", ids=["KV001"])
    assert outcomes(found) == {"KV001": Outcome.CONFLICT}
    assert "KV001 would not do its work" in reasons(found)
    assert found.changes == ()


def test_a_patch_without_the_one_it_needs_is_a_conflict() -> None:
    found = planned(EARLY, "0.10.0", ids=["KV002"])
    assert outcomes(found) == {"KV002": Outcome.CONFLICT}
    assert "KV002 needs KV001" in reasons(found)


def test_a_name_of_ours_in_a_released_file_is_a_conflict() -> None:
    text = LATE + b"\n\ndef _kvpatch_uses_lmcache(c):\n    return False\n"
    found = planned(text, "0.32.0")
    assert outcomes(found)["KV001"] is Outcome.CONFLICT
    assert "already defines _kvpatch_uses_lmcache" in reasons(found)


def test_a_released_file_that_registers_the_model_itself_is_absorbed() -> None:
    found = planned(BY_HAND % b"get_model()", "0.40.0")
    assert outcomes(found)["KV001"] is Outcome.ABSORBED
    assert found.goal_holds
    assert found.changes == ()
    assert found.refused == ()


# Files of every provenance


def test_a_file_of_ours_by_hash_is_already_without_being_planned_anew() -> None:
    first = planned(EARLY, "0.10.0")
    again = replanned(first, "0.10.0")
    assert outcomes(again) == {"KV001": Outcome.ALREADY, "KV002": Outcome.ALREADY}
    (file,) = again.files
    assert (file.state, file.original, file.content) == ("ours", EARLY, written(first))
    assert file.patches == first.files[0].patches
    assert not file.pending
    assert again.goal_holds


def test_a_file_of_ours_is_planned_from_its_original_when_asked_thoroughly() -> None:
    first = planned(EARLY, "0.10.0")
    tampered = OneFile(
        written(first) + b"# More.\n",
        "0.10.0",
        Provenance.OURS,
        EARLY,
        first.files[0].patches,
    )
    brief = plan(series(), tampered)
    assert brief.changes == ()
    found = plan(series(), tampered, Options(thorough=True))
    assert written(found) == written(first)
    assert found.files[0].original == EARLY


def test_a_patch_that_changed_since_is_pending_from_the_original() -> None:
    first = planned(LATE, "0.32.0")
    ours = OneFile(written(first), "0.32.0", Provenance.OURS, LATE, {"KV001": "0" * 64})
    found = plan(series(), ours)
    assert found.files[0].original == LATE
    assert found.files[0].after == written(first)
    older = OneFile(LATE + b"# Older.\n", "0.32.0", Provenance.OURS, LATE, {"KV001": "0" * 64})
    found = plan(series(), older)
    assert outcomes(found)["KV001"] is Outcome.PENDING
    assert written(found) == written(first)
    assert found.files[0].original == LATE


def test_a_patch_that_came_is_pending_beside_one_that_is_in_place() -> None:
    digests = dict(planned(EARLY, "0.10.0").files[0].patches)
    ours = OneFile(
        EARLY + b"# Half.\n", "0.10.0", Provenance.OURS, EARLY, {"KV001": digests["KV001"]}
    )
    found = plan(series(), ours)
    assert outcomes(found) == {"KV001": Outcome.ALREADY, "KV002": Outcome.PENDING}
    assert "other patches of the file are pending" in reasons(found)
    assert written(found) == written(planned(EARLY, "0.10.0"))


def test_a_file_of_ours_goes_back_to_its_original_where_no_patch_is_left_for_it() -> None:
    first = planned(LATE, "0.32.0")
    ours = OneFile(
        written(first),
        "0.32.0",
        Provenance.OURS,
        LATE,
        first.files[0].patches,
        owned_paths=(WORKER,),
    )
    found = plan(Series(()), ours)
    assert written(found) == LATE
    assert dict(found.files[0].patches) == {}


def test_a_file_owned_by_a_patch_out_of_range_goes_back_to_its_original() -> None:
    first = planned(EARLY, "0.10.0")
    ours = OneFile(
        written(first),
        "0.8.4",
        Provenance.OURS,
        EARLY,
        first.files[0].patches,
        owned_paths=(WORKER,),
    )
    found = plan(series(), ours)
    assert set(outcomes(found).values()) == {Outcome.OUT_OF_RANGE}
    assert written(found) == EARLY


@pytest.mark.parametrize("provenance", [Provenance.OTHER, Provenance.UNKNOWN])
def test_a_strange_file_that_does_the_work_is_absorbed_and_says_what_it_is(
    provenance: Provenance,
) -> None:
    found = planned(BY_HAND % b"get_model()", "0.32.0", provenance)
    assert outcomes(found)["KV001"] is Outcome.ABSORBED
    assert "not what was released" in reasons(found)
    assert found.changes == ()
    assert found.goal_holds


@pytest.mark.parametrize("text", [LATE, BY_HAND % b"model", b"", b"x = (\n"])
def test_a_strange_file_that_does_not_do_the_work_is_foreign_even_where_anchors_match(
    text: bytes,
) -> None:
    found = planned(text, "0.32.0", Provenance.OTHER)
    assert outcomes(found)["KV001"] is Outcome.FOREIGN
    assert found.files[0].state == "foreign"
    assert found.changes == ()
    assert "not what was released" in reasons(found)


def test_a_file_without_a_known_hash_is_refused() -> None:
    found = planned(LATE, "0.32.0", Provenance.UNKNOWN)
    assert outcomes(found)["KV001"] is Outcome.FOREIGN
    assert found.files[0].state == "unknown"
    assert found.changes == ()


def test_a_foreign_file_is_patched_on_top_where_that_was_asked_for() -> None:
    text = LATE + b"\n# Somebody's own.\n"
    found = planned(text, "0.32.0", Provenance.OTHER, options=Options(accept_foreign=True))
    assert outcomes(found)["KV001"] is Outcome.PENDING
    (file,) = found.changes
    assert (file.basis, file.original) == ("foreign", text)
    assert written(found).count(b"# Somebody's own.") == 1


def test_an_unverified_file_is_patched_on_top_where_that_was_asked_for() -> None:
    found = planned(LATE, "0.32.0", Provenance.UNKNOWN, options=Options(allow_unverified=True))
    assert outcomes(found)["KV001"] is Outcome.PENDING
    assert (found.files[0].basis, found.files[0].original) == ("unverified", LATE)


@pytest.mark.parametrize(
    ("provenance", "options"),
    [
        (Provenance.OTHER, Options(allow_unverified=True)),
        (Provenance.UNKNOWN, Options(accept_foreign=True)),
    ],
)
def test_each_flag_is_for_its_own_kind_of_file(provenance: Provenance, options: Options) -> None:
    found = planned(LATE, "0.32.0", provenance, options=options)
    assert outcomes(found)["KV001"] is Outcome.FOREIGN
    assert found.changes == ()


def test_an_accepted_file_without_the_anchor_is_still_missing() -> None:
    found = planned(b"x = 1\n", "0.32.0", Provenance.OTHER, options=Options(accept_foreign=True))
    assert outcomes(found)["KV001"] is Outcome.MISSING
    assert found.changes == ()


def test_a_file_changed_since_we_wrote_it_names_the_functions_that_differ() -> None:
    first = planned(LATE, "0.32.0")
    text = (
        written(first)
        .replace(b"return False", b"return None")
        .replace(b"ensure_kv_transfer_initialized(self", b"ensure_something(self")
    )
    changed = OneFile(text, "0.32.0", Provenance.OTHER, LATE, first.files[0].patches)
    found = plan(series(), changed)
    assert outcomes(found)["KV001"] is Outcome.FOREIGN
    reason = reasons(found)
    assert "Worker.initialize_from_config" in reason
    assert "_kvpatch_uses_lmcache" in reason
    assert "_kvpatch_register_model" not in reason


def test_a_foreign_file_of_a_known_release_names_the_functions_that_differ() -> None:
    text = catalogue.build(series(), {"vllm": {"0.32.0": {WORKER: LATE}}})
    known = _loaded(text)
    strange = LATE.replace(b"kv_cache_config)\n", b"kv_cache_config)  # mine\n")
    found = planned(strange, "0.32.0", Provenance.OTHER, options=Options(known=known))
    assert "in Worker.initialize_from_config" in reasons(found)
    assert all(patch.tested for patch in found.patches)


@pytest.mark.parametrize("strange", [LATE + b"\n", LATE.replace(b"\n", b"\r\n")])
def test_a_foreign_file_that_differs_in_no_function_says_so(strange: bytes) -> None:
    text = catalogue.build(series(), {"vllm": {"0.32.0": {WORKER: LATE}}})
    found = planned(strange, "0.32.0", Provenance.OTHER, options=Options(known=_loaded(text)))
    assert "in blank lines or line ends alone" in reasons(found)


def test_a_release_the_catalogue_does_not_know_is_not_tested() -> None:
    known = _loaded(catalogue.build(series(), {"vllm": {"0.32.0": {WORKER: LATE}}}))
    for version, tested in (("0.32.0", True), ("0.32.0+cpu", True), ("0.33.0", False)):
        found = planned(LATE, version, options=Options(known=known))
        assert [patch.tested for patch in found.patches] == [tested, tested]
    found = planned(LATE, "0.32.0rc1", options=Options(known=known))
    assert not any(patch.tested for patch in found.patches)


def test_a_post_release_the_catalogue_does_not_know_is_not_tested() -> None:
    known = _loaded(catalogue.build(series(), {"vllm": {"0.32.0": {WORKER: LATE}}}))
    found = planned(LATE, "0.32.0.post1", options=Options(known=known))
    assert not any(patch.tested for patch in found.patches)


def test_a_brief_plan_takes_the_outcome_from_the_catalogue_and_the_same_digest() -> None:
    known = _loaded(catalogue.build(series(), {"vllm": {"0.10.0": {WORKER: EARLY}}}))
    brief = planned(EARLY, "0.10.0", options=Options(known=known, brief=True))
    whole = planned(EARLY, "0.10.0")
    assert outcomes(brief) == outcomes(whole)
    assert brief.files[0].after is None
    assert brief.files[0].after_digest == whole.files[0].after_digest
    assert brief.files[0].pending


def test_a_brief_plan_works_out_what_the_catalogue_does_not_know() -> None:
    known = _loaded(catalogue.build(series(), {"vllm": {"0.10.0": {WORKER: EARLY}}}))
    other = EARLY + b"# Another release.\n"
    assert written(planned(other, "0.10.0", options=Options(known=known, brief=True)))


def test_a_brief_plan_of_some_patches_does_not_take_the_outcome_of_all() -> None:
    known = _loaded(catalogue.build(series(), {"vllm": {"0.10.0": {WORKER: EARLY}}}))
    found = planned(EARLY, "0.10.0", ids=["KV001"], options=Options(known=known, brief=True))
    assert outcomes(found) == {"KV001": Outcome.CONFLICT}


def _loaded(text: str) -> catalogue.Catalogue:
    import json

    data = json.loads(text)
    keys = ("patches", "releases", "plans", "functions", "rests")
    return catalogue.Catalogue(*(data[key] for key in keys))


def test_a_rewrite_that_is_kept_is_used_again_and_comes_to_the_same_plan() -> None:
    kept = Memo()
    first = planned(EARLY, "0.10.0", options=Options(memo=kept))
    assert [item.after for item in kept.rewrites.values()] == [written(first)]
    again = planned(EARLY, "0.10.2", options=Options(memo=kept))
    assert written(again) == written(first)
    assert len(kept.rewrites) == len(kept.transformed) == 1
    assert outcomes(planned(EARLY, "0.10.0", ids=["KV001"], options=Options(memo=kept))) == {
        "KV001": Outcome.CONFLICT
    }
    assert written(first) == written(planned(EARLY, "0.10.0"))


# Patches of several files and of a condition


def _marked(mark: bytes) -> Target:
    def transform(module: object) -> object:
        from kvpatch import rewrite

        text = rewrite.generate(module)  # type: ignore[arg-type]
        if b"anchor" not in text:
            raise Refusal(Outcome.MISSING, "there is no anchor")
        return rewrite.parse(text + mark)

    return Target("", "", transform)  # type: ignore[arg-type]


def _yes(*_: object) -> Judgement:
    return Judgement(True, "it holds")


def _has(mark: str) -> object:
    def judge(module: ast.Module, _: Version) -> Judgement:
        holds = mark in ast.dump(module)
        return Judgement(holds, f"{mark} is {'there' if holds else 'not there'}")

    return judge


def _member(
    patch_id: str, targets: Mapping[str, str], condition: Condition | None = None
) -> Member:
    mark = f"mark_{patch_id}"
    transform = _marked(f"{mark} = 1\n".encode()).transform
    patch = Patch(
        id=patch_id,
        distribution="vllm",
        targets=tuple(Target(path, spec, transform) for path, spec in targets.items()),
        versions=">=1.0",
        why="Why.",
        how="How.",
        upstream="https://example.org",
        retire_when="Never.",
        post_condition=_has(mark),  # type: ignore[arg-type]
        faithful=_yes,
        when=condition,
    )
    return Member(patch, "A title", (), hashlib.sha256(mark.encode()).hexdigest())


def _folder(files: Mapping[str, bytes], lmcache: str | None = None) -> FolderTree:
    packages = {"vllm": Package("vllm", Version("1.0"))}
    if lmcache is not None:
        packages["lmcache"] = Package("lmcache", Version(lmcache))
    return FolderTree(packages, files)


TWO = Series((_member("KV801", {"vllm/a.py": ">=1.0", "vllm/b.py": ">=1.0"}),))


def _after(found: Plan) -> dict[str, bytes | None]:
    return {file.path: file.after for file in found.changes}


def test_a_patch_of_two_files_changes_both() -> None:
    found = plan(TWO, _folder({"vllm/a.py": b"anchor = 1\n", "vllm/b.py": b"anchor = 2\n"}))
    assert outcomes(found) == {"KV801": Outcome.PENDING}
    assert _after(found) == {
        "vllm/a.py": b"anchor = 1\nmark_KV801 = 1\n",
        "vllm/b.py": b"anchor = 2\nmark_KV801 = 1\n",
    }
    assert [target.path for target in found.patches[0].targets] == ["vllm/a.py", "vllm/b.py"]


def test_the_outcome_of_a_patch_is_the_worst_of_its_files() -> None:
    found = plan(
        TWO, _folder({"vllm/a.py": b"anchor = 1\n", "vllm/b.py": b"mark_KV801 = anchor = 1\n"})
    )
    told = {target.path: target.outcome for target in found.patches[0].targets}
    assert told == {"vllm/a.py": Outcome.PENDING, "vllm/b.py": Outcome.ABSORBED}
    assert outcomes(found) == {"KV801": Outcome.PENDING}


def test_a_file_of_a_patch_that_lost_its_anchor_keeps_the_whole_patch_out() -> None:
    found = plan(TWO, _folder({"vllm/a.py": b"anchor = 1\n", "vllm/b.py": b"other = 1\n"}))
    assert outcomes(found) == {"KV801": Outcome.MISSING}
    assert found.changes == ()


_TWO_PATHS = _member("KV802", {"vllm/old.py": ">=1.0", "vllm/new.py": ">=1.0"})
MOVED = Series(
    (
        replace(
            _TWO_PATHS,
            patch=replace(
                _TWO_PATHS.patch,
                targets=tuple(replace(t, file="moved") for t in _TWO_PATHS.patch.targets),
            ),
        ),
    )
)


@pytest.mark.parametrize("path", ["vllm/old.py", "vllm/new.py"])
def test_a_file_that_has_another_path_in_some_releases_is_looked_for_at_both(path: str) -> None:
    found = plan(MOVED, _folder({path: b"anchor = 1\n"}))
    assert outcomes(found) == {"KV802": Outcome.PENDING}
    assert list(_after(found)) == [path]


def test_a_file_at_both_of_its_paths_is_ambiguous() -> None:
    both = {"vllm/old.py": b"anchor = 1\n", "vllm/new.py": b"anchor = 1\n"}
    found = plan(MOVED, _folder(both))
    assert outcomes(found) == {"KV802": Outcome.AMBIGUOUS}
    assert found.changes == ()


def test_a_file_at_none_of_its_paths_is_missing() -> None:
    found = plan(MOVED, _folder({}))
    assert outcomes(found) == {"KV802": Outcome.MISSING}
    assert "vllm/old.py is not there; vllm/new.py is not there" in reasons(found)


def test_patches_of_one_file_are_folded_in_series_order() -> None:
    both = Series((_member("KV803", {"vllm/a.py": ""}), _member("KV804", {"vllm/a.py": ""})))
    found = plan(both, _folder({"vllm/a.py": b"anchor = 1\n"}))
    assert _after(found) == {"vllm/a.py": b"anchor = 1\nmark_KV803 = 1\nmark_KV804 = 1\n"}
    assert list(found.files[0].patches) == ["KV803", "KV804"]


def test_a_patch_already_in_the_released_file_is_absorbed_beside_one_that_is_pending() -> None:
    both = Series((_member("KV803", {"vllm/a.py": ""}), _member("KV804", {"vllm/a.py": ""})))
    found = plan(both, _folder({"vllm/a.py": b"mark_KV803 = anchor = 1\n"}))
    assert outcomes(found) == {"KV803": Outcome.ABSORBED, "KV804": Outcome.PENDING}
    assert list(found.files[0].patches) == ["KV804"]


def test_a_refusal_in_one_file_keeps_every_other_file_from_being_changed() -> None:
    apart = Series((_member("KV803", {"vllm/a.py": ""}), _member("KV804", {"vllm/b.py": ""})))
    found = plan(apart, _folder({"vllm/a.py": b"anchor = 1\n", "vllm/b.py": b"other = 1\n"}))
    assert outcomes(found) == {"KV803": Outcome.PENDING, "KV804": Outcome.MISSING}
    assert found.changes == ()
    assert [patch.id for patch in found.refused] == ["KV804"]


OLD_LMCACHE = Condition(
    "LMCache is older than 0.5",
    lambda pair: "lmcache" in pair and pair["lmcache"] < Version("0.5"),
)


@pytest.mark.parametrize(
    ("lmcache", "outcome"),
    [("0.4.6", Outcome.PENDING), ("0.5.6", Outcome.NOT_NEEDED), (None, Outcome.NOT_NEEDED)],
)
def test_a_condition_of_the_pair_decides_whether_a_patch_is_needed(
    lmcache: str | None, outcome: Outcome
) -> None:
    conditional = Series((_member("KV805", {"vllm/a.py": ""}, OLD_LMCACHE),))
    found = plan(conditional, _folder({"vllm/a.py": b"anchor = 1\n"}, lmcache))
    assert outcomes(found) == {"KV805": outcome}
    if outcome is Outcome.NOT_NEEDED:
        assert "LMCache is older than 0.5" in reasons(found)
        assert found.changes == ()


def test_a_result_that_does_not_parse_is_a_conflict() -> None:
    member = _member("KV806", {"vllm/a.py": ""})
    broken = Target("vllm/a.py", "", _marked(b"if True: pass\n").transform)
    patch = replace(member.patch, targets=(broken,), post_condition=_fails)
    found = plan(Series((replace(member, patch=patch),)), _folder({"vllm/a.py": b"anchor = 1\n"}))
    assert outcomes(found) == {"KV806": Outcome.CONFLICT}
    assert "KV806 would not do its work: never" in reasons(found)


def _fails(*_: object) -> Judgement:
    return Judgement(False, "never")


def test_a_patch_that_changes_the_stock_path_is_a_conflict() -> None:
    member = _member("KV807", {"vllm/a.py": ""})
    patch = replace(member.patch, faithful=_fails)
    found = plan(Series((replace(member, patch=patch),)), _folder({"vllm/a.py": b"anchor = 1\n"}))
    assert outcomes(found) == {"KV807": Outcome.CONFLICT}
    assert found.changes == ()


def test_the_patch_whose_post_condition_fails_is_the_one_that_is_refused() -> None:
    bad, good = _member("KV808", {"vllm/a.py": ""}), _member("KV809", {"vllm/a.py": ""})
    bad = replace(bad, patch=replace(bad.patch, post_condition=_fails))
    found = plan(Series((bad, good)), _folder({"vllm/a.py": b"anchor = 1\n"}))
    assert [patch.id for patch in found.refused] == ["KV808"]


def test_a_plan_without_patches_says_nothing_and_does_not_reach_the_goal() -> None:
    found = plan(Series(()), OneFile(LATE, "0.32.0"))
    assert found == Plan((), ())
    assert not found.goal_holds
