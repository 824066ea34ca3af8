"""The prompts of a smoke, as token ids of the target's tokenizer: the same for every engine.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import random
from typing import Any

CHUNKS = 4
_TEXT = """
cache key value layer token chunk prefix order position rotary head query block slot page shift
blend store load ratio mask score weight sample batch queue worker engine model prompt river stone
light winter market garden letter silver window bridge summer forest island paper
"""
WORDS = tuple(_TEXT.split())
# Every chunk moves in some of them, over short and long distances.
ORDERS = ((2, 0, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2), (0, 2, 1, 3), (1, 2, 3, 0))
STORED = (0, 1, 2, 3)


def build(tokenizer: Any, separator: str, least: int, seed: int) -> dict[str, dict[str, Any]]:
    """Every prompt by its name.

    Args:
        tokenizer: of the target's transformers.
        separator: LMCache's ``blend_special_str``, tokenized as a client would.
        least: tokens that the chunks of a prompt have at least together.
        seed: of the words.

    Returns:
        For each name ``tokens``, and ``cached``: how many of them a cache that holds the chunks of
        ``store`` can give back (separators are not stored).
    """
    source = random.Random(seed)  # noqa: S311
    # A prompt that starts with a separator is no prompt that a client sends.
    start = list(tokenizer.encode("")) or text(tokenizer, source, 9)
    mark = list(tokenizer.encode(separator, add_special_tokens=False))
    each = least // CHUNKS + 1
    # Unequal lengths, so that no chunk moves by whole blocks alone.
    chunks = [text(tokenizer, source, each + 7 * number) for number in range(CHUNKS)]
    question = text(tokenizer, source, 9)
    fresh = text(tokenizer, source, each)

    def joined(*parts: list[int]) -> list[int]:
        tokens = list(start)
        for part in parts:
            tokens += mark + part
        return tokens

    def picked(order: tuple[int, ...]) -> list[list[int]]:
        return [chunks[index] for index in order]

    whole = len(start) + sum(map(len, chunks))
    prompts: dict[str, dict[str, Any]] = {
        "store": {"tokens": joined(*picked(STORED), question), "cached": 0},
        "twice": {"tokens": joined(*picked(STORED), question), "cached": whole + len(question)},
        "permutation": {"tokens": joined(*picked(ORDERS[0])), "cached": whole},
        "new-chunk": {
            "tokens": joined(chunks[2], chunks[0], fresh, chunks[1], question),
            "cached": len(start) + len(chunks[2]) + len(chunks[0]),
        },
        "one-token": {"tokens": start[:1], "cached": 0},
    }
    for number, order in enumerate(ORDERS):
        asked = text(tokenizer, source, 8)
        prompts[f"reordered-{number}"] = {
            "tokens": joined(*picked(order), asked),
            "cached": whole,
        }
    # For steps that end inside a prompt; the first two are cut behind what is cached of them.
    prompts["together-inside"] = prompts["reordered-0"]
    prompts["together-after"] = prompts["new-chunk"]
    chunks = [text(tokenizer, source, each + 7 * number) for number in range(CHUNKS)]
    whole = len(start) + sum(map(len, chunks))
    prompts["together-store"] = {"tokens": joined(*picked(STORED), question), "cached": 0}
    prompts["together-reordered"] = {"tokens": joined(*picked(ORDERS[0]), asked), "cached": whole}
    prompts["filler"] = {"tokens": text(tokenizer, source, each), "cached": 0}
    return prompts


def text(tokenizer: Any, source: random.Random, least: int) -> list[int]:
    """Words until they are that many tokens."""
    words: list[str] = []
    tokens: list[int] = []
    while len(tokens) < least:
        words.append(source.choice(WORDS))
        tokens = list(tokenizer.encode(" ".join(words), add_special_tokens=False))
    return tokens
