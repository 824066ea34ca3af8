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
RENEWING = ["0.4.3", "0.4.7", "0.5.1", "0.5.6"]
NAMES = ("LMCacheConnectorV1Impl", "_kvpatch_computed_whole", "_kvpatch_promised")
BLOCK, BLOCKS = 16, 9
HALF = BLOCKS // 2 * BLOCK
PIN_TIMEOUT = 300


class Lookup:
    """A client that knows every prompt, and counts how often one is looked up, and so pinned."""

    def __init__(self, unknown: int | None) -> None:
        self.unknown = unknown
        self.asked = 0

    def lookup_cache(self, lookup_id: str) -> int | None:
        return self.unknown

    def clear_lookup_status(self, lookup_id: str) -> None:
        pass

    def lookup(self, tokens: Any, **_: Any) -> int:
        self.asked += 1
        return len(tokens)


class RememberingLookup(Lookup):
    """One that remembers what it found for a request, as LMCache's do."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.found: dict[str, int] = {}

    def lookup_cache(self, lookup_id: str) -> int | None:
        return self.found.get(lookup_id, -1)

    def clear_lookup_status(self, lookup_id: str) -> None:
        self.found.pop(lookup_id, None)

    def lookup(self, tokens: Any, lookup_id: str = "", **_: Any) -> int:
        self.found[lookup_id] = super().lookup(tokens)
        return self.found[lookup_id]


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
    made.config = SimpleNamespace(
        enable_blending=blends,
        min_retrieve_tokens=0,
        pin_timeout_sec=PIN_TIMEOUT,
        use_layerwise=True,
    )
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


def matched(made: Any, tokens: int, generated: int = 0, name: str = "a", **more: Any) -> int:
    """How many tokens a request of that length is to load; it may have more than it must."""
    ids = list(range(tokens))
    request = SimpleNamespace(
        request_id=name,
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, in a list of one."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def waiting(release: str) -> Any:
    made = connector(patched_text(release, ADAPTER))
    made.lookup_client = RememberingLookup()
    return made


@pytest.mark.parametrize("release", RENEWING)
def test_a_request_that_waits_is_looked_up_anew_before_its_pins_are_given_up(
    release: str, clock: list[float]
) -> None:
    made = waiting(release)
    asked = []
    for seconds in range(0, 3 * PIN_TIMEOUT, 10):
        clock[0] = 1000.0 + seconds
        assert matched(made, HALF) == HALF - 1
        asked.append(made.lookup_client.asked)
    # Nothing is asked for again at once, and never a pin gets as old as it may.
    assert asked[:4] == [1, 1, 1, 1]
    steps = [place for place in range(1, len(asked)) if asked[place] > asked[place - 1]]
    assert max(b - a for a, b in zip([0, *steps], steps, strict=False)) * 10 < PIN_TIMEOUT / 2
    assert len(steps) > 2


@pytest.mark.parametrize("release", RENEWING)
def test_a_request_that_was_left_alone_for_long_is_looked_up_anew(
    release: str, clock: list[float]
) -> None:
    made = waiting(release)
    matched(made, HALF)
    clock[0] += 10 * PIN_TIMEOUT
    # Others come and go meanwhile, and nothing is kept of them for good.
    for number in range(50):
        matched(made, HALF, name=f"other {number}")
        clock[0] += PIN_TIMEOUT
    assert len(made._kvpatch_asked) < 5
    before = made.lookup_client.asked
    matched(made, HALF)
    assert made.lookup_client.asked == before + 1


@pytest.mark.parametrize("release", RENEWING)
def test_without_layers_and_while_a_lookup_goes_on_nothing_is_asked_again(
    release: str, clock: list[float]
) -> None:
    made = waiting(release)
    made.config.use_layerwise = False
    matched(made, HALF)
    clock[0] += PIN_TIMEOUT
    matched(made, HALF)
    assert made.lookup_client.asked == 1
    made.config.use_layerwise = True
    made.lookup_client.found["a"] = None
    assert matched(made, HALF) is None
    assert made.lookup_client.asked == 1
