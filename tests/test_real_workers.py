"""Both patches on the worker of every vLLM release, and on LMCache's real tracker.

Reads ``gpu_worker.py`` of every release on the index since 0.8.5, plans the series over it, and
judges the result by running it (:mod:`worker_stand_in`), which shares no code with transformers and
static form. LMCache's README, followed by hand, must be recognised for what it is in each release.
"""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
from functools import cache
from pathlib import Path

import pytest
from commands import on, snapshot
from fake_site import make_site
from hand_edits import IMPORTS, new_readme, old_readme
from kvpatch import catalogue
from kvpatch.guard import stock_without_guard
from kvpatch.outcome import Outcome
from kvpatch.plan import Options, Plan
from kvpatch.registration import registers_bare_model
from kvpatch.tree import Provenance
from packaging.version import Version
from planning import WORKER, outcomes, planned, reasons, replanned, written
from releases import release_file, vllm_releases
from worker_stand_in import (
    BARE,
    BLENDER_HOME,
    CONNECTORS,
    ENGINE_NAME_HOME,
    KINDS,
    NESTED_DEEP,
    OTHER,
    PLAIN,
    TRACKER_HOME,
    WRAPPED,
    LlamaForCausalLM,
    LMCache,
    Process,
    in_process_violations,
    other_violations,
)

pytestmark = pytest.mark.releases

RELEASES = [str(release) for release in vllm_releases()]
EARLY = [release for release in RELEASES if Version(release) < Version("0.11.1")]
BARE_ATTRIBUTE = [release for release in EARLY if Version(release) <= Version("0.10.0")]
WRAPPED_EARLY = [release for release in EARLY if release not in BARE_ATTRIBUTE]
LATE = [release for release in RELEASES if release not in EARLY]
NEWEST = RELEASES[-1]
LMCACHE_RELEASES = ["0.3.3", "0.4.4", "0.5.6", "0.5.7rc2"]


@cache
def stock_of(release: str) -> bytes:
    return bytes(release_file("vllm", release, WORKER))


@cache
def plan_of(release: str) -> Plan:
    return planned(stock_of(release), release)


@pytest.mark.parametrize("release", RELEASES)
def test_both_patches_go_into_the_worker_of_every_release(release: str) -> None:
    stock = stock_of(release)
    plan = plan_of(release)
    late = Outcome.PENDING if release in EARLY else Outcome.OUT_OF_RANGE
    assert outcomes(plan) == {"KV001": Outcome.PENDING, "KV002": late}
    after = written(plan)
    compile(after, WORKER, "exec")

    again = replanned(plan, release)
    settled = Outcome.ALREADY if release in EARLY else Outcome.OUT_OF_RANGE
    assert outcomes(again) == {"KV001": Outcome.ALREADY, "KV002": settled}
    assert again.changes == ()
    assert again.files[0].original == stock

    strange = planned(after, release, Provenance.OTHER)
    settled = Outcome.ABSORBED if release in EARLY else Outcome.OUT_OF_RANGE
    assert outcomes(strange) == {"KV001": Outcome.ABSORBED, "KV002": settled}
    assert strange.changes == ()


@pytest.mark.parametrize("release", RELEASES)
def test_apply_and_revert_on_disk_give_every_release_back(release: str, tmp_path: Path) -> None:
    site = make_site(tmp_path, release, worker=stock_of(release).decode())
    assert site.worker.read_bytes() == stock_of(release)
    before = snapshot(site.prefix)
    assert on(site, "apply").data["written"] is True
    assert site.worker.read_bytes() == written(plan_of(release))
    assert on(site, "verify").code == 0
    patched = snapshot(site.prefix)
    assert on(site, "apply").data["written"] is False
    assert snapshot(site.prefix) == patched
    assert on(site, "revert").data["written"] is True
    assert snapshot(site.prefix) == before


@pytest.mark.parametrize("release", [RELEASES[0], EARLY[-1], LATE[0], NEWEST])
def test_a_thorough_second_plan_comes_to_the_same_bytes(release: str) -> None:
    plan = plan_of(release)
    again = replanned(plan, release, thorough=True)
    assert again.changes == ()
    assert again.files[0].after == written(plan)


@pytest.mark.parametrize("release", RELEASES)
def test_every_other_line_of_every_release_stays_where_it_is(release: str) -> None:
    before = stock_of(release).splitlines(keepends=True)
    after = written(plan_of(release)).splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    replaced = [
        before[start:stop]
        for tag, start, stop, _, _ in matcher.get_opcodes()
        if tag in ("replace", "delete")
    ]
    if release in EARLY:
        assert replaced == [[b"    ensure_kv_transfer_initialized(vllm_config)\n"]]
        assert after.count(b"        ensure_kv_transfer_initialized(vllm_config)\n") == 1
    else:
        assert replaced == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_run_of_every_release_registers_the_bare_model_before_the_connector(
    release: str,
) -> None:
    stock, after = stock_of(release), written(plan_of(release))
    calls_get_model = b"self.model_runner.get_model()" in stock
    kinds = [kind for kind in KINDS if kind.unwraps is not None or not calls_get_model]
    assert in_process_violations(after, stock, [WRAPPED]) == []
    assert in_process_violations(after, stock, kinds, [PLAIN]) == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_run_of_every_release_with_another_connector_takes_the_stock_path(release: str) -> None:
    assert other_violations(written(plan_of(release)), stock_of(release)) == []


@pytest.mark.parametrize("release", RELEASES)
def test_a_run_of_every_release_as_it_was_released_fails_the_post_condition(release: str) -> None:
    early = release in EARLY
    found = in_process_violations(stock_of(release), None, [WRAPPED], early=early)
    assert len(found) == 2 * sum(connector.in_process for connector in CONNECTORS)


@pytest.mark.parametrize("release", RELEASES)
def test_the_static_form_agrees_with_the_run_of_every_release(release: str) -> None:
    stock, after = ast.parse(stock_of(release)), ast.parse(written(plan_of(release)))
    assert registers_bare_model(after, Version(release)).holds
    assert not registers_bare_model(stock, Version(release)).holds
    assert stock_without_guard(stock, after).holds


@pytest.mark.parametrize("release", RELEASES)
def test_lmcache_missing_leaves_every_release_starting(release: str) -> None:
    after = written(plan_of(release))
    gone = LMCache(errors=(ModuleNotFoundError("No module named 'lmcache'"),))
    run = Process(after, PLAIN.config, lmcache=gone).start()
    stock = Process(stock_of(release), PLAIN.config).start()
    assert [event[3:] for event in run.kinds("create")] == [
        event[3:] for event in stock.kinds("create")
    ]
    assert len(run.kinds("log")) == len(stock.kinds("log")) + 1


@pytest.mark.parametrize("release", ["0.8.4", "0.7.3"])
def test_a_release_below_the_range_is_out_of_range(release: str) -> None:
    plan = planned(bytes(release_file("vllm", release, WORKER)), release)
    assert set(outcomes(plan).values()) == {Outcome.OUT_OF_RANGE}
    assert plan.files == ()
    assert not plan.goal_holds


# What people do by hand


def _old_readme(release: str, *, registered: bool = True, deferred: bool = True) -> bytes:
    return old_readme(stock_of(release), registered=registered, deferred=deferred)


def _new_readme(release: str, model: str) -> bytes:
    return new_readme(stock_of(release), model)


def _by_hand(text: bytes, release: str) -> Plan:
    """What a host says of such an edit: it knows what was released."""
    return planned(text, release, Provenance.OTHER, options=Options(known=catalogue.load()))


@pytest.mark.parametrize("release", BARE_ATTRIBUTE)
def test_the_old_readme_by_hand_is_absorbed_where_the_attribute_is_the_bare_model(
    release: str,
) -> None:
    text = _old_readme(release)
    plan = _by_hand(text, release)
    assert outcomes(plan) == {"KV001": Outcome.ABSORBED, "KV002": Outcome.ABSORBED}
    assert plan.changes == ()
    assert in_process_violations(text, stock_of(release), [BARE]) == []


@pytest.mark.parametrize("release", WRAPPED_EARLY)
def test_the_old_readme_by_hand_is_foreign_where_cuda_graphs_wrap_the_attribute(
    release: str,
) -> None:
    text = _old_readme(release)
    plan = _by_hand(text, release)
    assert outcomes(plan) == {"KV001": Outcome.FOREIGN, "KV002": Outcome.FOREIGN}
    assert "CUDAGraphWrapper" in reasons(plan)
    assert in_process_violations(text, None, [WRAPPED])


@pytest.mark.parametrize("release", LATE)
def test_the_new_readme_by_hand_is_foreign_with_the_error_it_will_cause(release: str) -> None:
    text = _new_readme(release, "self.model_runner.model")
    plan = _by_hand(text, release)
    assert outcomes(plan)["KV001"] is Outcome.FOREIGN
    assert "Model type CUDAGraphWrapper is not supported" in reasons(plan)
    assert plan.changes == ()
    assert in_process_violations(text, None, [WRAPPED])


@pytest.mark.parametrize("release", LATE)
def test_the_new_readme_by_hand_with_get_model_is_absorbed(release: str) -> None:
    text = _new_readme(release, "self.model_runner.get_model()")
    plan = _by_hand(text, release)
    assert outcomes(plan)["KV001"] is Outcome.ABSORBED
    assert plan.changes == ()
    assert in_process_violations(text, stock_of(release), [WRAPPED, NESTED_DEEP]) == []


@pytest.mark.parametrize("release", BARE_ATTRIBUTE)
def test_registered_by_hand_but_not_deferred_is_foreign_and_said_exactly(release: str) -> None:
    text = _old_readme(release, deferred=False)
    plan = _by_hand(text, release)
    assert outcomes(plan) == {"KV001": Outcome.FOREIGN, "KV002": Outcome.FOREIGN}
    assert "registered, but only after the KV connector was created" in reasons(plan)
    assert in_process_violations(text, None, [BARE], early=True)


@pytest.mark.parametrize("release", EARLY)
def test_deferred_by_hand_but_not_registered_is_foreign(release: str) -> None:
    text = _old_readme(release, registered=False)
    plan = _by_hand(text, release)
    assert outcomes(plan) == {"KV001": Outcome.FOREIGN, "KV002": Outcome.FOREIGN}
    assert "waits for the model, but no model is registered" in reasons(plan)
    assert in_process_violations(text, None, [BARE], early=True)


# Hand edits that look right and can't work (FIELD.md 6 and 7)

TRACKER = "from lmcache.v1.compute.models.utils import VLLMModelTracker\n"
BROKEN_ANYWHERE = {
    "imported for type checkers alone": (
        IMPORTS.lstrip(),
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        + textwrap.indent(IMPORTS.strip(), "    ")
        + "\n",
        "VLLMModelTracker, which is not defined there",
    ),
    "imported under a condition": (
        TRACKER,
        f"import os\nif os.environ.get('USE_LMCACHE'):\n    {TRACKER}",
        "VLLMModelTracker, which is not defined there",
    ),
    "imported from a module that is not there": (
        TRACKER,
        TRACKER.replace("utils", "util"),
        "it imports lmcache.v1.compute.models.util.VLLMModelTracker",
    ),
    "one import forgotten": (TRACKER, "", "VLLMModelTracker, which is not defined there"),
    "the wrong name given": ("ENGINE_NAME, self", "'engine', self", "under another name"),
    "another object given": (
        "ENGINE_NAME, self.model_runner.",
        "ENGINE_NAME, self.vllm_config.",
        "what is registered can't be seen to be the model",
    ),
}
BROKEN_LATE = {
    "self lost": ("(self.vllm_config, kv_cache", "(vllm_config, kv_cache", "vllm_config, which is"),
    "one argument": ("self.vllm_config, kv_cache_config)\n", "self.vllm_config)\n", "takes"),
    "an unbound argument": (
        "ENGINE_NAME, self.model_runner.get_model()",
        "ENGINE_NAME, self.model_runner.get_model(kv_cfg)",
        "kv_cfg, which is not defined",
    ),
}
BROKEN_EARLY = {
    "self lost": (
        "        ensure_kv_transfer_initialized(self.vllm_config)\n",
        "        ensure_kv_transfer_initialized(vllm_config)\n",
        "load_model uses vllm_config, which is not defined there",
    ),
}


def _broken(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


@pytest.mark.parametrize("release", LATE)
@pytest.mark.parametrize("edit", [*BROKEN_ANYWHERE, *BROKEN_LATE])
def test_a_new_readme_by_hand_that_cannot_work_is_foreign(edit: str, release: str) -> None:
    old, new, reason = (BROKEN_ANYWHERE | BROKEN_LATE)[edit]
    text = _broken(_new_readme(release, "self.model_runner.get_model()").decode(), old, new)
    plan = _by_hand(text.encode(), release)
    assert outcomes(plan)["KV001"] is Outcome.FOREIGN
    assert reason in reasons(plan)
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN])


@pytest.mark.parametrize("release", BARE_ATTRIBUTE)
@pytest.mark.parametrize("edit", [*BROKEN_ANYWHERE, *BROKEN_EARLY])
def test_an_old_readme_by_hand_that_cannot_work_is_foreign(edit: str, release: str) -> None:
    old, new, reason = (BROKEN_ANYWHERE | BROKEN_EARLY)[edit]
    text = _broken(_old_readme(release).decode(), old, new)
    plan = _by_hand(text.encode(), release)
    assert outcomes(plan) == {"KV001": Outcome.FOREIGN, "KV002": Outcome.FOREIGN}
    assert reason in reasons(plan)
    assert in_process_violations(text.encode(), None, [BARE], [PLAIN], early=True)


@pytest.mark.parametrize("release", LATE)
def test_a_connector_created_after_the_kv_cache_by_hand_is_foreign(release: str) -> None:
    text = _new_readme(release, "self.model_runner.get_model()").decode()
    start = text.index("        VLLMModelTracker.register_model")
    end = text.index(CALL) + len(CALL)
    both, rest = text[start:end], text[:start] + text[end:]
    cache = re.search(
        r"^    def initialize_from_config.*?(?=^    @|^    def |^class |^def )",
        rest,
        re.DOTALL | re.MULTILINE,
    )
    assert cache is not None
    body = cache.group().rstrip() + "\n" + both + "\n"
    text = rest[: cache.start()] + body + rest[cache.end() :]
    plan = _by_hand(text.encode(), release)
    assert outcomes(plan)["KV001"] is Outcome.FOREIGN
    assert "after the KV cache was allocated" in reasons(plan)
    assert in_process_violations(text.encode(), None, [NESTED_DEEP], [PLAIN])


# A release that does not exist yet

CALL = "        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)\n"
FUTURE = "99.0.0"


def _future(old: str, new: str) -> Plan:
    text = stock_of(NEWEST).decode()
    assert text.count(old) == 1
    return planned(text.replace(old, new).encode(), FUTURE)


def test_an_unknown_newer_release_is_planned_by_its_anchors() -> None:
    plan = planned(stock_of(NEWEST), FUTURE)
    assert outcomes(plan) == {"KV001": Outcome.PENDING, "KV002": Outcome.OUT_OF_RANGE}
    assert written(plan) == written(plan_of(NEWEST))
    assert not any(patch.tested for patch in plan.patches)


def test_an_anchor_that_is_gone_is_missing() -> None:
    plan = _future(CALL, "")
    assert outcomes(plan)["KV001"] is Outcome.MISSING
    assert "has no statement that calls ensure_kv_transfer_initialized" in reasons(plan)
    assert plan.changes == ()


def test_an_anchor_that_is_there_twice_is_ambiguous() -> None:
    plan = _future(CALL, CALL + CALL)
    assert outcomes(plan)["KV001"] is Outcome.AMBIGUOUS
    assert "in 2 places" in reasons(plan)
    assert plan.changes == ()


def test_an_anchor_that_moved_to_another_method_is_missing() -> None:
    plan = _future("    def initialize_from_config(", "    def allocate_kv_cache(")
    assert outcomes(plan)["KV001"] is Outcome.MISSING
    assert "Worker.initialize_from_config is defined 0 times" in reasons(plan)
    assert plan.changes == ()


def test_an_anchor_that_became_part_of_a_larger_statement_is_missing_and_shown() -> None:
    larger = CALL.replace("ensure", "self.connector = ensure")
    plan = _future(CALL, larger)
    assert outcomes(plan)["KV001"] is Outcome.MISSING
    assert larger.strip() in reasons(plan)


def test_a_second_creation_before_the_model_exists_is_a_conflict() -> None:
    head = "    def load_model(self, *, load_dummy_weights: bool = False) -> None:\n"
    plan = _future(head, head + "        ensure_kv_transfer_initialized(self.vllm_config)\n")
    assert outcomes(plan)["KV001"] is Outcome.CONFLICT
    assert "only after the KV connector was created" in reasons(plan)
    assert plan.changes == ()


# LMCache's real tracker and blender builder


def _real_lmcache(release: str) -> LMCache:
    homes = (TRACKER_HOME, BLENDER_HOME)
    sources = {
        home: bytes(release_file("lmcache", release, home.replace(".", "/") + ".py"))
        for home in homes
    }
    engine_name = release_file("lmcache", release, ENGINE_NAME_HOME.replace(".", "/") + ".py")
    found = re.search(rb'^ENGINE_NAME = "[^"]+"$', bytes(engine_name), re.MULTILINE)
    assert found is not None
    return LMCache(sources={**sources, ENGINE_NAME_HOME: found[0]})


def _started(lmcache: str, vllm: str) -> Process:
    after = written(plan_of(vllm))
    return Process(after, PLAIN.config, lmcache=_real_lmcache(lmcache)).start()


def _again(run: Process, model: object = None) -> None:
    run.load_model(model)
    run.initialize_from_config()


PAIRS = [
    pytest.param(lmcache, vllm, id=f"LMCache {lmcache} on vLLM {vllm}")
    for lmcache in LMCACHE_RELEASES
    for vllm in (EARLY[-1], NEWEST)
]


@pytest.mark.parametrize(("lmcache", "vllm"), PAIRS)
def test_the_real_tracker_holds_the_bare_model_under_the_real_engine_name(
    lmcache: str, vllm: str
) -> None:
    run = _started(lmcache, vllm)
    assert run.world.tracked == {"vllm-instance": run.model}
    assert run.world.creations[0].tracked == {"vllm-instance": run.model}
    assert [event[2] for event in run.kinds("log") if "Registering" in str(event)] == ["info"]


@pytest.mark.parametrize(("lmcache", "vllm"), PAIRS)
def test_loading_the_same_model_again_logs_nothing_and_changes_nothing(
    lmcache: str, vllm: str
) -> None:
    run = _started(lmcache, vllm)
    logged = len(run.kinds("log"))
    fresh = Process(stock_of(vllm), PLAIN.config).start()
    before = len(fresh.kinds("log"))
    _again(run)
    _again(fresh)
    assert len(run.kinds("log")) - logged == len(fresh.kinds("log")) - before
    assert run.world.tracked == {"vllm-instance": run.model}


@pytest.mark.parametrize(("lmcache", "vllm"), PAIRS)
def test_another_model_takes_the_place_of_the_first_in_the_real_tracker(
    lmcache: str, vllm: str
) -> None:
    run = _started(lmcache, vllm)
    other = LlamaForCausalLM()
    _again(run, other)
    assert run.world.tracked == {"vllm-instance": other}
    assert not any("already registered" in str(event) for event in run.kinds("log"))


@pytest.mark.parametrize(("lmcache", "vllm"), PAIRS)
def test_another_model_stops_the_start_where_a_real_blender_was_built_on_the_first(
    lmcache: str, vllm: str
) -> None:
    run = _started(lmcache, vllm)
    builder = run.world.load(BLENDER_HOME).LMCBlenderBuilder
    arguments = [None, None] if lmcache == "0.3.3" else [None, None, None]
    builder.get_or_create("vllm-instance", *arguments)
    _again(run)
    with pytest.raises(RuntimeError, match="was built on another model") as caught:
        _again(run, LlamaForCausalLM())
    assert "\n" not in str(caught.value)
    assert run.world.tracked == {"vllm-instance": run.model}


@pytest.mark.parametrize(("lmcache", "vllm"), PAIRS)
def test_a_blender_built_under_another_name_stops_nothing(lmcache: str, vllm: str) -> None:
    run = _started(lmcache, vllm)
    run.world.load(BLENDER_HOME).LMCBlenderBuilder._blenders["another-instance"] = object()
    other = LlamaForCausalLM()
    _again(run, other)
    assert run.world.tracked == {"vllm-instance": other}


@pytest.mark.parametrize("lmcache", LMCACHE_RELEASES)
def test_the_real_tracker_is_never_asked_for_another_connector(lmcache: str) -> None:
    run = Process(written(plan_of(NEWEST)), OTHER.config, lmcache=_real_lmcache(lmcache)).start()
    assert run.world.modules == {}
    assert run.kinds("import") == []
