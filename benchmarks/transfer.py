"""What moving a layer of a packed KV cache costs, against a plain gather or scatter of its bytes.

Needs torch; runs on a GPU where there is one. Exits 1 where a transfer takes more than twice the
time of the plain operation.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from kvpatch.patches.kv006_transfer_packed import TRANSFER

HEADS, SIZE, BLOCK, TOKENS, BLOCKS = 8, 128, 16, 8192, 2048
ROUNDS = 30
LIMIT = 2.0


class Direction(Enum):
    """LMCache's ``TransferDirection``."""

    H2D = 0
    D2H = 1


def main() -> int:
    """Time both directions in both layouts, and print one line each."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    space: dict[str, Any] = {"torch": torch}
    exec(TRANSFER, space)
    transfer = space["_kvpatch_layer_transfer"](None)
    slots = torch.randperm(BLOCKS * BLOCK, device=device)[:TOKENS]
    at = (slots // BLOCK, slots % BLOCK)
    size = TOKENS * HEADS * 2 * SIZE * 2 / 2**20
    print(f"{TOKENS} tokens of {HEADS} heads of {SIZE}, bfloat16, {size:.0f} MiB, on {device}")
    worst = 0.0
    for layout in ("BS_NH", "NH_BS"):
        first, second = (BLOCK, HEADS) if layout == "BS_NH" else (HEADS, BLOCK)
        shape = (BLOCKS, first, second, 2 * SIZE)
        cache = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        by_token = cache if layout == "BS_NH" else cache.transpose(1, 2)
        tokens = torch.zeros(2, TOKENS, HEADS * SIZE, dtype=torch.bfloat16, device=device)
        rows = torch.zeros(TOKENS, HEADS, 2 * SIZE, dtype=torch.bfloat16, device=device)
        name = f"NL_X_NB_{layout}_CS"

        def move(direction: Direction, cache: Any = cache, name: str = name) -> None:
            transfer(tokens, cache, slots, direction, name)  # noqa: B023

        def gather(by_token: Any = by_token) -> None:
            by_token[at]

        def scatter(by_token: Any = by_token, rows: Any = rows) -> None:
            by_token[at] = rows

        for plain, direction in ((gather, Direction.D2H), (scatter, Direction.H2D)):
            base = seconds(plain, device)
            taken = seconds(lambda way=direction, go=move: go(way), device)  # type: ignore[misc]
            worst = max(worst, taken / base)
            print(
                f"{name} {direction.name}: {taken * 1e3:.2f} ms, plain {plain.__name__} "
                f"{base * 1e3:.2f} ms, {taken / base:.2f} times"
            )
    return int(worst > LIMIT)


def seconds(run: Callable[[], None], device: str) -> float:
    """The shortest time of a run: what else the machine does only makes it longer."""
    taken = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return min(taken)


if __name__ == "__main__":
    sys.exit(main())
