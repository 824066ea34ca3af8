"""Which hits vLLM is told of, from real releases' own function."""

from __future__ import annotations

import ast
import logging
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from lmcache_files import executed_bare, patched_text, stock_files
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

ADAPTER = "lmcache/integration/vllm/vllm_v1_adapter.py"
RELEASES = ["0.3.4", "0.3.6", "0.3.9.post2", "0.3.10", "0.4.4", "0.5.6"]
NAMES = ("LMCacheConnectorV1Impl", "_kvpatch_computed_whole")
BLOCK, BLOCKS = 16, 9
HALF = BLOCKS // 2 * BLOCK


class Lookup:
    """A client that knows every prompt, and counts how often one is looked up, and so pinned."""

    def __init__(self, unknown: int | None) -> None:
        self.unknown = unknown
        self.asked = 0

    def lookup_cache(self, lookup_id: str) -> int | None:
        return self.unknown

    def lookup(self, tokens: Any, **_: Any) -> int:
        self.asked += 1
        return len(tokens)


def connector(text: str, *, blends: bool = True) -> Any:
    """The scheduler's half of LMCache's connector, which holds nothing but what a hit takes."""
    kept = [node for node in ast.parse(text).body if getattr(node, "name", None) in NAMES]
    space = executed_bare(
        kept,
        {
            "LoadSpec": SimpleNamespace,
            "extract_mm_features": lambda _: ([], []),
            "extract_request_configs": lambda _: None,
            "logger": logging.getLogger("stand-in"),
            "torch": torch,
            "uuid": uuid,
        },
    )
    made = object.__new__(space["LMCacheConnectorV1Impl"])
    cache = SimpleNamespace(num_gpu_blocks=BLOCKS, block_size=BLOCK)
    made._parent = SimpleNamespace(_vllm_config=SimpleNamespace(cache_config=cache))
    made.config = SimpleNamespace(enable_blending=blends, min_retrieve_tokens=0)
    made.kv_role = "kv_both"
    # LMCache 0.3.10 takes none for a request that it doesn't know, and newer ones -1.
    made.lookup_client = Lookup(-1 if ") != -1:" in text else None)
    made.async_loading = False
    made.load_specs = {}
    made.skip_last_n_tokens = made._max_tokens_per_load = 0
    made._requests_priority = {}
    made._request_trackers = {}
    made._lookup_requests_in_step = []
    return made


def matched(made: Any, tokens: int, generated: int = 0, **more: Any) -> int:
    """How many tokens a request of that length is to load; it may have more than it must."""
    ids = list(range(tokens))
    request = SimpleNamespace(
        request_id="a",
        all_token_ids=ids,
        prompt_token_ids=ids[: tokens - generated],
        num_tokens=tokens,
        priority=3,
        mm_hashes=None,
        **{"sampling_params": None, **more},
    )
    found: int = made.get_num_new_matched_tokens(request, 0)
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_a_prompt_of_half_of_the_cache_is_blended(release: str) -> None:
    made = connector(patched_text(release, ADAPTER))
    assert matched(made, HALF) == HALF - 1
    assert made.load_specs["a"].lmcache_cached_tokens == HALF


@pytest.mark.parametrize("release", RELEASES)
def test_a_longer_one_gets_no_hits_and_pins_nothing(
    release: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = connector(patched_text(release, ADAPTER))
    assert [matched(made, length) for length in (HALF + 1, BLOCKS * BLOCK)] == [0, 0]
    assert made.lookup_client.asked == 0
    # LMCache asserts that it is there when a request goes on that was preempted.
    assert vars(made.load_specs["a"]) == {
        "vllm_cached_tokens": 0,
        "lmcache_cached_tokens": 0,
        "can_load": False,
    }
    (told,) = [one.getMessage() for one in caplog.records if "kvpatch" in one.getMessage()]
    assert f"{HALF + 1} tokens takes more than half of the KV cache ({BLOCKS * BLOCK} " in told


@pytest.mark.parametrize("release", RELEASES[3:])
def test_what_it_generated_counts_once_it_is_computed_anew(release: str) -> None:
    made = connector(patched_text(release, ADAPTER))
    assert matched(made, HALF + 1, generated=1) == made.lookup_client.asked == 0


@pytest.mark.parametrize("release", RELEASES)
def test_without_blending_all_is_loaded(release: str) -> None:
    for text in (patched_text(release, ADAPTER), stock_files(release)[ADAPTER].decode()):
        assert matched(connector(text, blends=False), HALF + 1) == HALF


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("blends", [True, False])
def test_a_prompt_whose_log_probs_are_asked_for_is_computed_whole(
    release: str, blends: bool
) -> None:
    def loaded(text: str, **more: Any) -> int:
        return matched(connector(text, blends=blends), HALF, **more)

    asks = SimpleNamespace(prompt_logprobs=0)
    plain = SimpleNamespace(prompt_logprobs=None)
    patched, stock = patched_text(release, ADAPTER), stock_files(release)[ADAPTER].decode()
    assert loaded(stock, sampling_params=asks) == HALF - 1
    assert loaded(patched, sampling_params=asks) == 0
    assert loaded(patched, sampling_params=plain) == HALF - 1
    # From vLLM 0.12 on it says so itself, of other requests too.
    assert loaded(patched, sampling_params=plain, skip_reading_prefix_cache=True) == 0
    assert loaded(patched, sampling_params=asks, skip_reading_prefix_cache=False) == HALF - 1


@pytest.mark.parametrize("release", RELEASES[1:])
def test_its_priority_is_kept_for_what_it_stores(release: str) -> None:
    made = connector(patched_text(release, ADAPTER))
    matched(made, HALF + 1)
    assert made._requests_priority == {"a": 3}
