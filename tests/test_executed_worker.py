"""What the inserted code does when it runs, for every connector configuration and every failure."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
from planning import planned, written
from worker_stand_in import (
    BARE,
    BARE_GET_MODEL,
    BLENDER_HOME,
    CONNECTORS,
    ENGINE_NAME,
    KINDS,
    NESTED,
    OTHER,
    PLAIN,
    TRACKER_HOME,
    WRAPPED,
    Connector,
    Kind,
    LlamaForCausalLM,
    LMCache,
    Process,
    in_process_violations,
    other_violations,
)

HEAD = b"""
import torch
from vllm.distributed.kv_transfer import ensure_kv_transfer_initialized
from vllm.logger import init_logger
from vllm.v1.worker.worker_base import WorkerBase

logger = init_logger(__name__)
"""

EARLY = (
    HEAD
    + b"""

class Worker(WorkerBase):
    def load_model(self):
        with torch.pool():
            self.model_runner.load_model()

    def initialize_from_config(self, kv_cache_config):
        self.model_runner.initialize_kv_cache(kv_cache_config)


def init_worker_distributed_environment(vllm_config, rank):
    torch.init(rank)
    ensure_kv_transfer_initialized(vllm_config)
    logger.info("done")
"""
)

LATE = (
    HEAD
    + b"""

class Worker(WorkerBase):
    def load_model(self):
        self.model_runner.load_model()
        if torch.ready():
            torch.done()

    @torch.inference_mode()
    def initialize_from_config(self, kv_cache_config):
        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)
        self.model_runner.initialize_kv_cache(kv_cache_config)


def init_worker_distributed_environment(vllm_config, rank):
    torch.init(rank)
"""
)

STOCK = {"0.11.0": EARLY, "0.32.0": LATE}
PATCHED = {release: written(planned(text, release)) for release, text in STOCK.items()}
RELEASES = tuple(STOCK)
IN_PROCESS = [connector for connector in CONNECTORS if connector.in_process]
ELSE = [connector for connector in CONNECTORS if not connector.in_process]


def _name(item: Any) -> str:
    return str(item.name)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("connector", IN_PROCESS, ids=_name)
def test_lmcaches_connector_is_created_once_after_the_bare_model_was_registered(
    connector: Connector, release: str
) -> None:
    text, stock = PATCHED[release], STOCK[release]
    assert in_process_violations(text, stock, [WRAPPED], [connector]) == []
    run = Process(text, connector.config).start()
    assert run.world.registrations == [(ENGINE_NAME, run.model)]
    order = [event[1] for event in run.kinds("register", "create")]
    assert order == ["register", "create"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("connector", ELSE, ids=_name)
def test_every_other_connector_and_none_take_exactly_the_stock_path(
    connector: Connector, release: str
) -> None:
    assert other_violations(PATCHED[release], STOCK[release], [connector]) == []
    run = Process(PATCHED[release], connector.config).start()
    assert run.kinds("register", "import") == []
    assert run.world.modules == {}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", KINDS, ids=_name)
def test_the_model_is_unwrapped_until_nothing_is_left_to_unwrap(kind: Kind, release: str) -> None:
    run = Process(PATCHED[release], PLAIN.config, kind).start()
    assert run.world.registrations == [(ENGINE_NAME, run.model)]
    assert run.world.creations[0].tracked == {ENGINE_NAME: run.model}


def test_the_deferred_connector_is_created_at_the_end_of_load_model() -> None:
    run = Process(PATCHED["0.11.0"], PLAIN.config).start()
    assert [event[:2] for event in run.kinds("register", "create")] == [
        ("load_model", "register"),
        ("load_model", "create"),
    ]
    stock = Process(EARLY, PLAIN.config).start()
    assert [event[0] for event in stock.kinds("create")] == ["init_device"]


def test_the_connector_gets_the_very_objects_it_always_got() -> None:
    run = Process(PATCHED["0.32.0"], PLAIN.config).start()
    (creation,) = run.world.creations
    assert creation.args[0] is run.config
    assert creation.args[1] is run.kv_cache_config
    assert dict(creation.kwargs) == {}
    run = Process(PATCHED["0.11.0"], PLAIN.config).start()
    (creation,) = run.world.creations
    assert creation.args == (run.config,)


def test_an_instance_attribute_of_that_name_does_not_make_a_model_a_wrapper() -> None:
    run = Process(PATCHED["0.32.0"], PLAIN.config, BARE_GET_MODEL)
    run.model.unwrap = lambda: None  # type: ignore[attr-defined]
    run.start()
    assert run.world.registrations == [(ENGINE_NAME, run.model)]


FAILURES: dict[str, Exception] = {
    "it is not installed": ModuleNotFoundError("No module named 'lmcache'"),
    "a name is gone": ImportError("cannot import name 'ENGINE_NAME'"),
    "the extension does not load": OSError("libcudart.so.13: cannot open shared object file"),
    "the extension does not fit torch": RuntimeError("undefined symbol"),
    "an attribute is gone": AttributeError("module 'torch' has no attribute 'x'"),
    "a percent sign is in the message": ImportError("100% %s %d broken"),
}


def _warnings(run: Process) -> list[tuple[str, ...]]:
    return [event for event in run.kinds("log") if event[2] == "warning"]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("error", FAILURES.values(), ids=FAILURES.keys())
def test_vllm_goes_on_where_lmcache_can_not_be_imported_and_says_so_once(
    error: Exception, release: str
) -> None:
    run = Process(PATCHED[release], PLAIN.config, lmcache=LMCache(errors=(error,))).start()
    stock = Process(STOCK[release], PLAIN.config).start()
    assert [event[3:] for event in run.kinds("create")] == [
        event[3:] for event in stock.kinds("create")
    ]
    assert run.world.registrations == []
    (warning,) = _warnings(run)
    sentence = ast.literal_eval(warning[3])
    assert sentence.startswith("kvpatch: LMCache can't be imported")
    assert repr(error) in sentence
    _load(run)
    assert len(_warnings(run)) == 1


@pytest.mark.parametrize("release", RELEASES)
def test_an_interrupt_while_lmcache_is_imported_is_not_swallowed(release: str) -> None:
    interrupted: Any = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        Process(PATCHED[release], PLAIN.config, lmcache=LMCache(errors=(interrupted,))).start()


@pytest.mark.parametrize("release", RELEASES)
def test_a_failing_lmcache_is_not_even_tried_for_another_connector(release: str) -> None:
    gone = LMCache(errors=(ModuleNotFoundError("No module named 'lmcache'"),))
    run = Process(PATCHED[release], OTHER.config, lmcache=gone).start()
    assert _warnings(run) == []
    assert run.kinds("import") == []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", [BARE, WRAPPED, NESTED], ids=_name)
def test_the_same_model_loaded_again_is_not_registered_again(kind: Kind, release: str) -> None:
    run = Process(PATCHED[release], PLAIN.config, kind).start()
    for _ in range(2):
        _load(run)
    assert run.world.registrations == [(ENGINE_NAME, run.model)]
    assert _warnings(run) == []


@pytest.mark.parametrize("release", RELEASES)
def test_another_model_takes_the_place_of_the_first(release: str) -> None:
    run = Process(PATCHED[release], PLAIN.config).start()
    other = LlamaForCausalLM()
    _load(run, other)
    assert run.world.tracked == {ENGINE_NAME: other}
    assert run.world.creations[-1].tracked == {ENGINE_NAME: other}


@pytest.mark.parametrize("release", RELEASES)
def test_a_model_of_another_engine_stays_in_the_tracker(release: str) -> None:
    run = Process(PATCHED[release], PLAIN.config)
    strange = object()
    run.world.load(TRACKER_HOME).VLLMModelTracker._vllm_models["another"] = strange
    run.start()
    _load(run, LlamaForCausalLM())
    assert run.world.tracked == {"another": strange, ENGINE_NAME: run.runner.next_model}


def _load(run: Process, model: object = None) -> None:
    run.load_model(model)
    run.initialize_from_config()


def _with_blender(run: Process, name: str) -> None:
    builder = SimpleNamespace(_blenders={name: object()})
    run.world.modules[BLENDER_HOME] = SimpleNamespace(LMCBlenderBuilder=builder)


@pytest.mark.parametrize("release", RELEASES)
def test_another_model_under_a_built_blender_stops_the_start_with_one_sentence(
    release: str,
) -> None:
    run = Process(PATCHED[release], PLAIN.config).start()
    _with_blender(run, ENGINE_NAME)
    created = len(run.world.creations)
    with pytest.raises(RuntimeError, match="was built on another model; restart vLLM") as caught:
        _load(run, LlamaForCausalLM())
    assert "\n" not in str(caught.value)
    assert len(run.world.creations) == created
    assert run.world.tracked == {ENGINE_NAME: run.model}


@pytest.mark.parametrize("release", RELEASES)
def test_the_same_model_under_a_built_blender_goes_on(release: str) -> None:
    run = Process(PATCHED[release], PLAIN.config).start()
    _with_blender(run, ENGINE_NAME)
    _load(run)
    assert run.world.tracked == {ENGINE_NAME: run.model}


@pytest.mark.parametrize("release", RELEASES)
def test_a_blender_of_another_engine_stops_nothing(release: str) -> None:
    run = Process(PATCHED[release], PLAIN.config).start()
    _with_blender(run, "another")
    other = LlamaForCausalLM()
    _load(run, other)
    assert run.world.tracked == {ENGINE_NAME: other}


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_of_kvpatch_is_imported_at_run_time(release: str) -> None:
    for node in ast.walk(ast.parse(PATCHED[release])):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("kvpatch") for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("kvpatch")


def test_an_import_that_fails_otherwise_the_second_time_is_still_said_once() -> None:
    errors = (RuntimeError("undefined symbol"), ImportError("cannot load module more than once"))
    run = Process(PATCHED["0.32.0"], PLAIN.config, lmcache=LMCache(errors=errors)).start()
    run.initialize_from_config()
    assert len(_warnings(run)) == 1


# The executing form itself: it must see what is wrong

REGISTERING = b"""
from lmcache.integration.vllm.utils import ENGINE_NAME
from lmcache.v1.compute.models.utils import VLLMModelTracker
""" + LATE.replace(
    b"        ensure_kv_transfer_initialized(",
    b"        VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.get_model())\n"
    b"        ensure_kv_transfer_initialized(",
)


def _found(text: bytes, kind: Kind = WRAPPED, stock: bytes | None = LATE) -> str:
    return " | ".join(in_process_violations(text, stock, [kind], [PLAIN]))


def test_a_run_is_content_with_the_bare_model_registered_by_hand() -> None:
    assert _found(REGISTERING) == ""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"self.model_runner.get_model()", b"self.model_runner.model", "another object than"),
        (b"self.model_runner.get_model()", b"object()", "another object than"),
        (b"(ENGINE_NAME,", b"('vllm-instance',", "in the tracker"),
        (b"        VLLMModelTracker.register", b"        VLLMModelTracker.get", "instead of None"),
        (b"(self.vllm_config, kv_cache_config)", b"(self.vllm_config, None)", "created by"),
        (b"(self.vllm_config, kv_cache_config)", b"(kv_cache_config)", "created by"),
        (b"        self.model_runner.initialize_kv", b"        # self.", "something else changed"),
        (b"        self.model_runner.load_model()\n", b"        pass\n", "AttributeError"),
        (
            b"        ensure_kv_transfer_initialized(self.vllm_config, kv_cache_config)\n",
            b"",
            "0 creations, not 1",
        ),
        (
            b"    torch.init(rank)\n",
            b"    torch.init(rank)\n    ensure_kv_transfer_initialized(vllm_config)\n",
            "2 creations, not 1",
        ),
    ],
)
def test_a_run_sees_what_is_wrong_with_lmcaches_connector(
    old: bytes, new: bytes, problem: str
) -> None:
    assert REGISTERING.count(old) == 1
    assert problem in _found(REGISTERING.replace(old, new))


def test_a_run_sees_a_registration_after_the_connector() -> None:
    lines = REGISTERING.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b"VLLMModelTracker.register_model" in line)
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    assert "in the tracker" in _found(b"".join(lines))


def test_a_run_sees_the_released_code_failing() -> None:
    assert "created with {} in the tracker" in _found(LATE)
    assert "created with {} in the tracker" in _found(EARLY, BARE, EARLY)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"torch.init(rank)", b"torch.init(rank + 1); torch.more()"),
        (b"        self.model_runner.initialize_kv", b"        # self."),
        (b"(self.vllm_config, kv_cache_config)", b"(self.vllm_config)"),
        (b"torch.done()", b"torch.undone()"),
        (b"torch.ready()", b"False"),
        (b"import torch", b"import torch\nimport lmcache.integration.vllm.utils"),
    ],
)
def test_a_run_sees_what_is_not_the_stock_path_for_another_connector(
    old: bytes, new: bytes
) -> None:
    assert LATE.count(old) == 1
    assert other_violations(LATE, LATE, [OTHER]) == []
    assert other_violations(LATE.replace(old, new), LATE, [OTHER])


def test_a_run_sees_another_connector_created_at_another_moment() -> None:
    moved = EARLY.replace(b"    ensure_kv_transfer_initialized(vllm_config)\n", b"").replace(
        b"            self.model_runner.load_model()\n",
        b"            self.model_runner.load_model()\n"
        b"        ensure_kv_transfer_initialized(self.vllm_config)\n",
    )
    assert other_violations(moved, EARLY, [OTHER])


def test_a_run_sees_registration_that_asks_for_more_than_lmcaches_connector() -> None:
    text = PATCHED["0.32.0"].replace(b"if _kvpatch_uses_lmcache(self.vllm_config):", b"if True:")
    assert text != PATCHED["0.32.0"]
    assert any("lmcache was imported" in item for item in other_violations(text, LATE))
