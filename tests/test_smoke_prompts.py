from __future__ import annotations

from itertools import pairwise

import pytest
from kvpatch.smoke_prompts import ORDERS, STORED, build


class Bytes:
    """A tokenizer of bytes, with a BOS or without."""

    def __init__(self, *, bos: bool) -> None:
        self.start = [256] if bos else []

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*(self.start if add_special_tokens else []), *text.encode()]


def _split(tokens: list[int], mark: list[int]) -> list[tuple[int, ...]]:
    text = "".join(chr(token) for token in tokens)
    return [tuple(map(ord, part)) for part in text.split("".join(map(chr, mark)))]


@pytest.mark.parametrize("bos", [True, False])
def test_what_a_cache_gives_back_is_counted_without_separators(bos: bool) -> None:
    prompts = build(Bytes(bos=bos), " # # ", 280, 1)
    mark = list(b" # # ")
    of_each = {n: set(_split(prompts[n]["tokens"], mark)) for n in ("store", "together-store")}
    for name, prompt in prompts.items():
        if name in (*of_each, "one-token", "filler"):
            assert prompt["cached"] == 0
            continue
        stored = of_each["together-store" if name == "together-reordered" else "store"]
        got = 0
        for part in _split(prompt["tokens"], mark):
            if part not in stored:
                break
            got += len(part)
        assert got == prompt["cached"], name


def test_the_chunks_of_a_prompt_are_long_enough_together() -> None:
    prompts = build(Bytes(bos=True), " # # ", 600, 1)
    assert prompts["permutation"]["cached"] >= 600


def test_every_chunk_moves_in_some_order_and_each_order_is_a_permutation() -> None:
    assert all(sorted(order) == list(STORED) for order in ORDERS)
    assert all(any(order.index(chunk) != chunk for order in ORDERS) for chunk in STORED)


def test_chunks_differ_in_length_so_that_none_moves_by_whole_blocks_alone() -> None:
    prompts = build(Bytes(bos=False), " # # ", 280, 1)
    lengths = sorted(len(p) for p in _split(prompts["permutation"]["tokens"], list(b" # # ")) if p)
    assert all(one < other for one, other in pairwise(lengths))


def test_the_same_seed_gives_the_same_prompts_and_another_does_not() -> None:
    one, same, other = (build(Bytes(bos=True), " # # ", 280, seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_what_is_stored_in_parts_was_never_stored_before() -> None:
    prompts = build(Bytes(bos=True), " # # ", 280, 1)
    mark = list(b" # # ")
    first, other = (_split(prompts[n]["tokens"], mark) for n in ("store", "together-store"))
    # The start and the question are the same.
    assert not set(first[1:-1]) & set(other[1:-1])


def test_the_prompt_of_one_token_has_one() -> None:
    for bos in (True, False):
        assert len(build(Bytes(bos=bos), " # # ", 280, 1)["one-token"]["tokens"]) == 1


@pytest.mark.parametrize("bos", [True, False])
def test_no_prompt_begins_with_a_separator(bos: bool) -> None:
    mark = list(b" # # ")
    for prompt in build(Bytes(bos=bos), " # # ", 280, 1).values():
        assert prompt["tokens"][: len(mark)] != mark
