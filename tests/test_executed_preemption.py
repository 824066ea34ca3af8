"""What becomes of a preempted request: real releases' own connector, driven as by vLLM's scheduler.

vLLM frees all blocks of such a request, asks for a hit anew and sends all of its new blocks.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from lmcache_files import OLD_VLLM, executed, patched_text, stock_files
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"
RELEASES = ["0.3.3", "0.3.4", "0.3.6", "0.3.7", "0.3.9", "0.3.9.post2"]
LOADING = [
    *("0.3.10", "0.3.10.post1", "0.3.10.post2", "0.3.11", "0.3.15", "0.4.2", "0.4.3", "0.4.7"),
    *("0.5.0", "0.5.3", "0.5.6"),
]
"""These load the hit of a preempted request."""
STORING = RELEASES[3:]
DEFINITIONS = [
    "SaveSpec",
    "LoadSpec",
    "DisaggSpec",
    "RequestTracker",
    "ReqMeta",
    "LMCacheConnectorMetadata",
    "LMCacheConnectorV1Impl",
]
BLOCK, CHUNK, PROMPT = 16, 64, 200
OLD, NEW = range(100, 120), range(200, 220)


class Scheduler:
    """Schedules one request on a release's connector, as an old vLLM does or a newer one."""

    def __init__(self, text: str, *, listed: bool = False, blends: bool = False) -> None:
        asked = ("_kvpatch_computed_whole", "_kvpatch_promised")
        guard = [name for name in asked if f"def {name}(" in text]
        space = executed(
            text,
            [*DEFINITIONS, *guard],
            KVConnectorMetadata=object,
            _lmcache_nvtx_annotate=lambda function: function,
            cdiv=lambda a, b: -(-a // b),
            dataclass=dataclasses.dataclass,
            extract_mm_features=lambda *_, **__: ([], []),
            extract_request_configs=lambda _: None,
            field=dataclasses.field,
            lmcache_get_or_create_config=lambda: SimpleNamespace(enable_blending=blends),
            logger=logging.getLogger("stand-in"),
            math=math,
            tmp_disagg_tracker={},
            torch=torch,
            uuid=uuid,
        )
        cache = SimpleNamespace(num_gpu_blocks=1000, block_size=BLOCK)
        lookup = SimpleNamespace(
            lookup=lambda *_, **__: self.stored,
            lookup_cache=lambda **_: -1 if "!= -1" in text else None,
            clear_lookup_status=lambda _: None,
            supports_producer_reuse=lambda: True,
        )
        self.stored = 0
        self.listed = listed
        self.connector = object.__new__(space["LMCacheConnectorV1Impl"])
        self.blocks: list[int] = []
        self.held: list[int] = []
        """The request's blocks as vLLM's worker keeps them."""
        self.started = False
        vars(self.connector).update(
            _block_size=BLOCK,
            _discard_partial_chunks=False,
            _lmcache_chunk_size=CHUNK,
            _lookup_requests_in_step=[],
            _max_tokens_per_load=0,
            _request_trackers={},
            _requests_priority={},
            _save_decode_cache=False,
            _unfinished_requests={},
            async_loading=False,
            _parent=SimpleNamespace(_vllm_config=SimpleNamespace(cache_config=cache)),
            config=SimpleNamespace(
                enable_blending=blends,
                min_retrieve_tokens=0,
                pin_timeout_sec=300,
                priority_limit=None,
                save_decode_cache=False,
                use_layerwise=True,
            ),
            force_skip_save=False,
            kv_role="kv_both",
            load_specs={},
            lookup_client=lookup,
            _manager=SimpleNamespace(lookup_client=lookup),
            skip_last_n_tokens=0,
        )
        self.request = SimpleNamespace(
            request_id="a",
            prompt_token_ids=list(range(PROMPT)),
            all_token_ids=list(range(PROMPT)),
            num_tokens=PROMPT,
            priority=0,
            sampling_params=None,
            mm_hashes=[],
            mm_positions=[],
            num_computed_tokens=0,
        )

    @property
    def tracker(self) -> Any:
        return self.connector._request_trackers["a"]

    def generate(self, count: int) -> None:
        """The request has that many tokens more than its prompt."""
        self.request.all_token_ids = list(range(PROMPT + count))
        self.request.num_tokens = PROMPT + count

    def preempt(self) -> None:
        self.request.num_computed_tokens = 0
        self.blocks = []

    def ask(self, cached: int = 0) -> int:
        """What vLLM takes for loaded where it has that many tokens itself."""
        found: int = self.connector.get_num_new_matched_tokens(self.request, cached)
        return found

    def step(
        self,
        scheduled: int,
        blocks: range = OLD,
        cached: int | None = None,
        *,
        skips: bool = False,
    ) -> Any:
        """One step for the request, with what is loaded and stored in it; None for nothing.

        Args:
            scheduled: tokens that it computes.
            blocks: where its blocks are taken from.
            cached: tokens that vLLM's own cache has, where the request starts or is resumed.
            skips: whether vLLM loads nothing of a hit, as it does for ``prompt_logprobs``.
        """
        if cached is not None:
            external = 0 * self.ask(cached) if skips else self.ask(cached)
            self.connector.update_state_after_alloc(self.request, external)
            self.request.num_computed_tokens = cached + external
        first, resumed = not self.started, self.started and cached is not None
        self.started = True
        computed = self.request.num_computed_tokens
        after = computed + scheduled
        before = len(self.blocks)
        self.blocks = list(blocks[: -(-after // BLOCK)])
        new_blocks = ([*self.blocks[before:]],)
        output = SimpleNamespace(
            finished_req_ids=set(),
            scheduled_new_reqs=[],
            scheduled_cached_reqs=self._cached("a", computed, after, new_blocks, resumed),
            num_scheduled_tokens={"a": scheduled},
        )
        if first:
            output.scheduled_cached_reqs = self._cached("", 0, 0, ([],), False)
            output.scheduled_new_reqs = [
                SimpleNamespace(
                    req_id="a",
                    prompt_token_ids=list(range(PROMPT)),
                    block_ids=new_blocks,
                    num_computed_tokens=computed,
                    sampling_params=None,
                    mm_hashes=[],
                    mm_positions=[],
                )
            ]
        found = self.connector.build_connector_meta(output).requests
        self.request.num_computed_tokens = after
        # In one process the worker is told by the same objects, and after LMCache.
        if first or resumed:
            self.held = new_blocks[0]
        else:
            self.held.extend(new_blocks[0])
        return found[0] if found else None

    def _cached(self, name: str, start: int, end: int, blocks: Any, resumed: bool) -> Any:
        """What vLLM says of a request that it scheduled before: a list up to 0.9.1."""
        one = SimpleNamespace(
            req_id=name,
            resumed_from_preemption=resumed,
            num_computed_tokens=start,
            new_token_ids=self.request.all_token_ids[start:end],
            new_block_ids=blocks,
        )
        if self.listed:
            return [one] if name else []
        return SimpleNamespace(
            req_ids=[name] if name else [],
            resumed_from_preemption=[resumed],
            new_token_ids=[[]],
            new_block_ids=[blocks],
        )


def patched(release: str, **more: Any) -> Scheduler:
    return Scheduler(patched_text(release, ADAPTER, OLD_VLLM), **more)


def stock(release: str, **more: Any) -> Scheduler:
    return Scheduler(stock_files(release)[ADAPTER].decode(), **more)


def blocks_of(found: Any) -> list[int]:
    """The blocks that a step's loads and stores touch, in order."""
    return list(dict.fromkeys((found.slot_mapping // BLOCK).tolist()))


def saves(found: Any) -> bool:
    return found is not None and found.save_spec.can_save


each_loading = pytest.mark.parametrize("release", LOADING)
each_release = pytest.mark.parametrize("release", RELEASES)
each_form = pytest.mark.parametrize("listed", [True, False], ids=["list", "columns"])


@each_release
@each_form
def test_what_vllm_takes_for_loaded_is_loaded(release: str, listed: bool) -> None:
    for made, held in ((stock, False), (patched, True)):
        engine = made(release, listed=listed)
        engine.stored = 128
        first = engine.step(PROMPT - 128, cached=0)
        assert first.load_spec.lmcache_cached_tokens == 128
        engine.generate(1)
        engine.preempt()
        engine.stored = PROMPT
        found = engine.step(engine.request.num_tokens, NEW, cached=0)
        taken = engine.request.num_computed_tokens - engine.request.num_tokens
        loads = found is not None and found.load_spec is not None
        assert (taken == 0 or loads) is held


@each_release
@each_form
def test_a_resumed_request_is_stored_from_the_blocks_that_it_has(
    release: str, listed: bool
) -> None:
    for made, held in ((stock, False), (patched, True)):
        engine = made(release, listed=listed)
        assert saves(engine.step(100, cached=0))
        engine.preempt()
        engine.step(90, NEW, cached=0)
        found = engine.step(PROMPT - 90, NEW)
        assert saves(found)
        assert (blocks_of(found) == engine.blocks[: len(blocks_of(found))]) is held
        if held:
            assert [int(token) for token in found.token_ids] == list(range(len(found.token_ids)))
            assert len(found.token_ids) > CHUNK


@each_release
@each_form
def test_what_vllm_itself_kept_of_a_preempted_request_counts(release: str, listed: bool) -> None:
    engine = patched(release, listed=listed)
    engine.step(150, cached=0)
    engine.preempt()
    # Another request with the same prompt has come further.
    engine.step(20, NEW, cached=160)
    assert engine.tracker.token_ids == list(range(180))
    assert engine.tracker.allocated_block_ids == engine.blocks


@each_release
def test_tokens_that_were_generated_before_are_computed_again(release: str) -> None:
    engine = patched(release)
    engine.step(PROMPT, cached=0)
    for count in range(1, 6):
        engine.generate(count)
        engine.step(1)
    engine.preempt()
    assert engine.step(PROMPT + 5, NEW, cached=0) is None
    assert engine.tracker.token_ids == engine.request.all_token_ids
    assert engine.tracker.num_saved_tokens == PROMPT
    engine.generate(6)
    engine.step(1, NEW)
    assert engine.tracker.token_ids == engine.request.all_token_ids
    assert engine.tracker.allocated_block_ids == engine.blocks


@each_release
def test_asking_again_while_the_request_waits_changes_nothing(release: str) -> None:
    engine = patched(release)
    assert (engine.ask(), engine.ask()) == (0, 0)
    engine.stored = PROMPT
    assert engine.ask() == PROMPT - 1
    engine.step(1, cached=0)
    engine.preempt()
    assert (engine.ask(32), engine.ask(48), engine.ask()) == (0, 0, 0)
    engine.step(PROMPT, NEW, cached=0)
    assert engine.tracker.token_ids == engine.request.all_token_ids


@pytest.mark.parametrize("release", STORING)
def test_while_blending_a_prompt_that_was_preempted_is_stored_in_its_last_step(
    release: str,
) -> None:
    engine = patched(release, blends=True)
    assert not saves(engine.step(100, cached=0))
    engine.preempt()
    assert not saves(engine.step(90, NEW, cached=0))
    found = engine.step(PROMPT - 90, NEW)
    assert saves(found)
    assert (len(found.token_ids), found.save_spec.skip_leading_tokens) == (PROMPT, 0)
    assert blocks_of(found) == engine.blocks


@each_release
def test_a_producer_that_looks_nothing_up_forgets_the_blocks_too(release: str) -> None:
    engine = patched(release)
    engine.connector.kv_role = "kv_producer"
    del engine.connector.lookup_client.supports_producer_reuse
    engine.connector.update_state_after_alloc(engine.request, engine.ask())
    engine.connector._request_trackers["a"] = SimpleNamespace(
        token_ids=[1], allocated_block_ids=[1]
    )
    assert engine.ask() == 0
    assert (engine.tracker.token_ids, engine.tracker.allocated_block_ids) == ([], [])


@each_loading
@each_form
def test_a_hit_that_grew_while_the_request_waited_is_loaded_whole(
    release: str, listed: bool
) -> None:
    engine = patched(release, listed=listed)
    engine.step(100, cached=0)
    engine.preempt()
    # Another request with the same prompt has come further.
    engine.stored = 192
    found = engine.step(PROMPT - 192, NEW, cached=0)
    assert found.load_spec.lmcache_cached_tokens == 192
    assert [int(token) for token in found.token_ids[:192]] == list(range(192))
    assert blocks_of(found)[:12] == engine.blocks[:12]
    assert engine.tracker.token_ids == engine.request.all_token_ids


@each_loading
@each_form
def test_what_vllm_itself_has_of_a_request_that_is_loaded_counts(
    release: str, listed: bool
) -> None:
    engine = patched(release, listed=listed)
    engine.step(150, cached=0)
    engine.preempt()
    engine.stored = 64
    engine.step(20, NEW, cached=160)
    assert engine.tracker.token_ids == list(range(180))
    engine.step(20, NEW)
    assert engine.tracker.token_ids == engine.request.all_token_ids
    assert engine.tracker.allocated_block_ids == engine.blocks


@each_loading
@each_form
def test_a_preempted_prompt_that_is_stored_whole_by_now_has_its_last_token_computed(
    release: str, listed: bool
) -> None:
    engine = patched(release, listed=listed)
    engine.step(100, cached=0)
    engine.preempt()
    engine.stored = PROMPT
    found = engine.step(1, NEW, cached=0)
    assert found.load_spec.lmcache_cached_tokens == PROMPT
    assert engine.tracker.token_ids == engine.request.all_token_ids


@each_loading
@each_form
def test_the_blocks_of_a_resumed_request_are_counted_once(release: str, listed: bool) -> None:
    for made, held in ((stock, False), (patched, True)):
        engine = made(release, listed=listed)
        engine.step(100, cached=0)
        engine.preempt()
        for scheduled, cached in ((40, 0), (40, None), (40, None)):
            engine.step(scheduled, NEW, cached)
        found = engine.step(PROMPT - 120, NEW)
        assert saves(found)
        assert (engine.tracker.allocated_block_ids == engine.blocks == engine.held) is held
        slots = [engine.blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(PROMPT)]
        kept = found.slot_mapping.tolist()
        assert (kept == slots[: len(kept)]) is held


@pytest.mark.parametrize("release", LOADING[1:])
def test_a_hit_that_vllm_loads_nothing_of_is_computed(release: str) -> None:
    for made, held in ((stock, False), (patched, True)):
        engine = made(release)
        engine.step(100, cached=0)
        engine.preempt()
        engine.stored = 128
        if not held:
            with pytest.raises(AssertionError, match="num_computed_tokens 0"):
                engine.step(90, NEW, cached=0, skips=True)
            continue
        found = engine.step(90, NEW, cached=0, skips=True)
        assert found is None or not (found.load_spec and found.load_spec.can_load)
        assert engine.tracker.token_ids == list(range(90))
        found = engine.step(PROMPT - 90, NEW)
        assert saves(found)
        assert blocks_of(found) == engine.blocks[: len(blocks_of(found))]
        assert engine.tracker.token_ids == engine.request.all_token_ids


@pytest.mark.parametrize(
    ("release", "cached", "stored", "scheduled"),
    [
        ("0.3.10", 160, 64, 20),
        ("0.3.10", 0, 192, 8),
        ("0.3.10.post1", 160, 64, 20),
        ("0.3.10.post2", 32, 0, 20),
        ("0.3.10.post2", 0, PROMPT, 1),
        ("0.3.11", 0, PROMPT, 1),
        ("0.4.2", 0, PROMPT, 1),
    ],
)
def test_as_released_it_goes_on_with_other_tokens_or_ends_the_engine(
    release: str, cached: int, stored: int, scheduled: int
) -> None:
    def goes_right(engine: Scheduler) -> bool:
        engine.step(100, cached=0)
        engine.preempt()
        engine.stored = stored
        try:
            engine.step(scheduled, NEW, cached=cached)
            engine.step(1, NEW)
        except AssertionError:
            return False
        computed = engine.request.num_computed_tokens
        return bool(engine.tracker.token_ids == engine.request.all_token_ids[:computed])

    assert not goes_right(stock(release))
    assert goes_right(patched(release))
