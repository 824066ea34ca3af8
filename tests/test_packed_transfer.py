"""Layers of a packed KV cache, moved by the code that real LMCache files are given (KV006).

Compared element by element with a loop of its own that takes the layout's definition literally.
"""

from __future__ import annotations

import random
from enum import Enum
from functools import cache
from itertools import product
from typing import Any

import pytest
from lmcache_files import executed, patched_text
from tensors import load_torch

torch = load_torch()

pytestmark = [pytest.mark.releases, pytest.mark.tensors]

PATH = "lmcache/v1/gpu_connector/gpu_connectors.py"
RELEASES = ["0.4.7", "0.5.0", "0.5.3", "0.5.6"]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


class Direction(Enum):
    """LMCache's ``TransferDirection``."""

    H2D = 0
    D2H = 1


class Layout(Enum):
    """Names of LMCache's ``EngineKVFormat``; the numbers are of no importance here."""

    NL_X_NB_NH_BS_CS = 1
    NL_X_NB_BS_NH_CS = 2
    NL_X_NB_NH_BS_TWO_HS = 3
    NL_X_TWO_NB_BS_NH_HS = 4


class Kernel:
    """Stands in for LMCache's kernel and remembers how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.calls.append((args, kwargs))


@cache
def inserted(release: str) -> Any:
    """What the patch put into that release."""
    space = executed(patched_text(release, PATH), ["_kvpatch_layer_transfer"], torch=torch)
    return space["_kvpatch_layer_transfer"]


def transfer(release: str = "0.5.6", kernel: Any = None) -> Any:
    """The patched transfer of that release around a kernel."""
    return inserted(release)(kernel or Kernel())


def by_loop(tokens: Any, cache: Any, slots: list[int], direction: Direction, major: bool) -> None:
    """One number at a time; ``cache`` is ``[blocks, heads, block_size, 2 * size]``."""
    heads, block, size = cache.shape[1], cache.shape[2], cache.shape[3] // 2
    for row, slot in enumerate(slots):
        if slot < 0:
            continue
        for part, head, place in product(range(2), range(heads), range(size)):
            at = (slot // block, head, slot % block, part * size + place)
            flat = (row, part) if major else (part, row)
            there = (*flat, head * size + place)
            if direction is Direction.H2D:
                cache[at] = tokens[there]
            else:
                tokens[there] = cache[at]


def numbers(*shape: int, dtype: Any, source: Any) -> Any:
    return torch.randn(*shape, generator=source).to(dtype)


def cases(seed: int) -> Any:
    """Random shapes and slots; every fourth slot or so is skipped."""
    choose = random.Random(seed)
    blocks, heads, size = (
        choose.randint(1, 6),
        choose.choice([1, 2, 3, 8]),
        choose.choice([2, 4, 5]),
    )
    block = choose.choice([1, 4, 7, 16])
    count = choose.randint(1, blocks * block)
    slots = choose.sample(range(blocks * block), count)
    return blocks, heads, block, size, [-1 if choose.random() < 0.25 else slot for slot in slots]


def stored(shape: tuple[int, ...], order: str, dtype: Any, source: Any) -> Any:
    """A cache that is seen as ``[blocks, heads, block_size, 2 * size]``, stored in that order."""
    blocks, heads, block, width = shape
    if order == "heads first":
        return numbers(blocks, heads, block, width, dtype=dtype, source=source)
    if order == "tokens first":
        base = numbers(blocks, block, heads, width, dtype=dtype, source=source)
        return base.transpose(1, 2)
    base = numbers(blocks, heads + 1, block, width, dtype=dtype, source=source)
    return base[:, :heads]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("order", ["heads first", "tokens first", "padded blocks"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("major", [True, False], ids=["token major", "parts first"])
@pytest.mark.parametrize("direction", list(Direction))
def test_every_number_is_where_a_loop_puts_it(
    direction: Direction, major: bool, dtype: Any, order: str, seed: int
) -> None:
    blocks, heads, block, size, slots = cases(seed)
    source = torch.Generator().manual_seed(seed)
    cache = stored((blocks, heads, block, 2 * size), order, dtype, source)
    lead = (len(slots), 2) if major else (2, len(slots))
    tokens = numbers(*lead, heads * size, dtype=dtype, source=source)
    wanted_cache, wanted_tokens = cache.clone(), tokens.clone()
    by_loop(wanted_tokens, wanted_cache, slots, direction, major)
    # LMCache sorts the axes by stride before it asks for a layer.
    physical = cache.transpose(1, 2) if order == "tokens first" else cache
    layout = Layout.NL_X_NB_BS_NH_CS if order == "tokens first" else Layout.NL_X_NB_NH_BS_CS
    kernel = Kernel()
    move = transfer(kernel=kernel)
    move(tokens, physical, torch.tensor(slots), direction, layout, token_major=major)
    assert torch.equal(cache, wanted_cache)
    assert torch.equal(tokens, wanted_tokens)
    assert kernel.calls == []


@pytest.mark.parametrize("release", RELEASES)
def test_what_goes_in_comes_out_in_every_release(release: str) -> None:
    source = torch.Generator().manual_seed(1)
    cache = torch.zeros(4, 2, 8, 12)
    tokens = numbers(2, 20, 12, dtype=torch.float32, source=source)
    slots = torch.randperm(32, generator=source)[:20]
    back = torch.zeros_like(tokens)
    move = transfer(release)
    move(tokens, cache, slots, Direction.H2D, Layout.NL_X_NB_NH_BS_CS, token_major=False)
    move(back, cache, slots, Direction.D2H, Layout.NL_X_NB_NH_BS_CS, token_major=False)
    assert torch.equal(back, tokens)
    assert int((cache != 0).sum()) == 2 * 20 * 12


@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize("physical", [True, False], ids=["sorted by stride", "as vLLM sees it"])
def test_as_many_heads_as_tokens_in_a_block_are_told_apart(
    heads_first: bool, physical: bool
) -> None:
    source = torch.Generator().manual_seed(2)
    order = "heads first" if heads_first else "tokens first"
    cache = stored((3, 4, 4, 6), order, torch.float32, source)
    tokens = torch.zeros(2, 5, 12)
    slots = [0, 3, 6, 11, 9]
    wanted = tokens.clone()
    by_loop(wanted, cache, slots, Direction.D2H, False)
    given = cache.transpose(1, 2) if physical and not heads_first else cache
    layout = Layout.NL_X_NB_NH_BS_CS if heads_first else Layout.NL_X_NB_BS_NH_CS
    transfer()(tokens, given, torch.tensor(slots), Direction.D2H, layout)
    assert torch.equal(tokens, wanted)


def test_a_layout_that_tells_them_not_apart_is_refused() -> None:
    cache = torch.zeros(2, 4, 4, 2, 3)
    with pytest.raises(NotImplementedError, match="can't tell 4 heads from blocks of 4 tokens"):
        transfer()(
            torch.zeros(2, 1, 12),
            cache,
            torch.tensor([0]),
            Direction.D2H,
            Layout.NL_X_NB_NH_BS_TWO_HS,
        )


def test_a_cache_whose_last_axis_was_split_is_moved_too() -> None:
    source = torch.Generator().manual_seed(3)
    cache = numbers(2, 3, 4, 10, dtype=torch.float32, source=source)
    tokens, wanted = torch.zeros(2, 6, 15), torch.zeros(2, 6, 15)
    by_loop(wanted, cache, list(range(6)), Direction.D2H, False)
    split = cache.view(2, 3, 4, 2, 5)
    layout = Layout.NL_X_NB_NH_BS_TWO_HS
    transfer()(tokens, split, torch.arange(6), Direction.D2H, layout)
    assert torch.equal(tokens, wanted)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5, 6), (3, 2, 4, 5, 6), (3, 4, 6)])
def test_every_other_shape_goes_to_the_kernel_as_it_came(shape: tuple[int, ...]) -> None:
    kernel = Kernel()
    given = (torch.zeros(2, 1, 30), torch.zeros(*shape), torch.tensor([0]), Direction.D2H)
    transfer(kernel=kernel)(*given, Layout.NL_X_TWO_NB_BS_NH_HS, token_major=True)
    [(args, kwargs)] = kernel.calls
    assert [id(arg) for arg in args[:4]] == [id(arg) for arg in given]
    assert kwargs == {"token_major": True}


@pytest.mark.parametrize(
    ("cache", "tokens"),
    [
        (torch.uint8, torch.uint8),
        (torch.float8_e4m3fn, torch.float8_e4m3fn),
        (torch.float8_e5m2, torch.bfloat16),
        (torch.bfloat16, torch.float16),
    ],
)
def test_storage_that_can_not_be_moved_is_refused_by_name(cache: Any, tokens: Any) -> None:
    with pytest.raises(NotImplementedError, match=str(cache).replace(".", r"\.")):
        transfer()(
            torch.zeros(2, 1, 6).to(tokens),
            torch.zeros(1, 2, 4, 6).to(cache),
            torch.tensor([0]),
            Direction.D2H,
            Layout.NL_X_NB_NH_BS_CS,
        )


def test_a_cache_of_another_number_of_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="does not hold 5 heads of 3"):
        transfer()(
            torch.zeros(2, 1, 15),
            torch.zeros(1, 2, 4, 6),
            torch.tensor([0]),
            Direction.D2H,
            Layout.NL_X_NB_NH_BS_CS,
        )
