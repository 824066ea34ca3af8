"""What a step loads and stores of a prompt that takes several, from real releases' own function."""

from __future__ import annotations

import dataclasses
import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
from lmcache_files import executed, patched_text, stock_files
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"
RELEASES = ["0.3.4", "0.3.9.post2", "0.4.4", "0.5.6"]
STORING = RELEASES[1:]
CHUNK, PROMPT = 64, 200


def meta(text: str, scheduled: int, *, hit: int = 0, blends: bool = True, **more: Any) -> Any:
    """What the released function makes of a prompt of which that many tokens are scheduled."""
    tracker = SimpleNamespace(
        req_id="a",
        prompt_len=PROMPT,
        token_ids=list(range(scheduled)),
        allocated_block_ids=list(range(-(-scheduled // 16))),
        num_saved_tokens=hit,
        disagg_spec=None,
        mm_hashes=None,
        mm_positions=None,
        request_configs=None,
        is_decode_phase=False,
        skip_save=False,
    )
    vars(tracker).update(more)
    space = executed(
        text,
        ["SaveSpec", "LoadSpec", "ReqMeta"],
        cdiv=lambda a, b: -(-a // b),
        dataclass=dataclasses.dataclass,
        field=dataclasses.field,
        lmcache_get_or_create_config=lambda: SimpleNamespace(enable_blending=blends),
        logger=logging.getLogger("stand-in"),
        math=math,
        torch=torch,
    )
    load = None
    if hit:
        load = space["LoadSpec"](vllm_cached_tokens=0, lmcache_cached_tokens=hit, can_load=True)
    found = space["ReqMeta"].from_request_tracker(
        tracker, 16, CHUNK, load_spec=load, discard_partial_chunks=False
    )
    return found, tracker


def saves(found: Any) -> bool:
    return found is not None and found.save_spec.can_save


@pytest.mark.parametrize("release", RELEASES)
def test_a_hit_that_ends_behind_the_last_whole_chunk_is_loaded_whole(release: str) -> None:
    found, _ = meta(patched_text(release, ADAPTER), 120, hit=99)
    assert len(found.token_ids) == len(found.slot_mapping) == 99
    stock, _ = meta(stock_files(release)[ADAPTER].decode(), 120, hit=99)
    assert len(stock.token_ids) == CHUNK


@pytest.mark.parametrize("release", RELEASES)
def test_a_hit_that_ends_before_it_changes_nothing(release: str) -> None:
    found, tracker = meta(patched_text(release, ADAPTER), 140, hit=99, blends=False)
    stock, before = meta(stock_files(release)[ADAPTER].decode(), 140, hit=99, blends=False)
    assert list(found.token_ids) == list(stock.token_ids)
    assert tracker == before


@pytest.mark.parametrize("release", STORING)
def test_while_blending_the_last_step_stores_and_no_other(release: str) -> None:
    text = patched_text(release, ADAPTER)
    early, tracker = meta(text, 150)
    assert early is None
    assert tracker.num_saved_tokens == 0
    loading, tracker = meta(text, 150, hit=99)
    assert (saves(loading), tracker.num_saved_tokens) == (False, 99)
    last, tracker = meta(text, PROMPT)
    assert saves(last)
    assert (len(last.token_ids), last.save_spec.skip_leading_tokens) == (PROMPT, 0)
    assert tracker.num_saved_tokens == PROMPT


@pytest.mark.parametrize("release", STORING)
def test_a_last_step_of_one_token_stores_too(release: str) -> None:
    assert saves(meta(patched_text(release, ADAPTER), PROMPT, is_decode_phase=True)[0])
    stock = stock_files(release)[ADAPTER].decode()
    assert not saves(meta(stock, PROMPT, is_decode_phase=True)[0])
    decoding = meta(patched_text(release, ADAPTER), PROMPT + 1, is_decode_phase=True)
    assert not saves(decoding[0])


@pytest.mark.parametrize("release", STORING)
def test_without_blending_each_step_stores_its_chunks(release: str) -> None:
    for scheduled in (150, PROMPT):
        found, tracker = meta(patched_text(release, ADAPTER), scheduled, blends=False)
        stock, before = meta(stock_files(release)[ADAPTER].decode(), scheduled, blends=False)
        assert saves(found)
        assert list(found.token_ids) == list(stock.token_ids)
        assert tracker == before
