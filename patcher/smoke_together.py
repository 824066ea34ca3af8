"""Whether prompts are right that vLLM computes over several steps, as its default lets it."""

from __future__ import annotations

from collections.abc import Sequence

from .smoke_measure import Answer, Measured, Verdict, failure, found_and_within

# What has to be answered rightly, with all that is cached reused.
ASKED = {
    "together-reordered": "chunks that were stored over several steps",
    "together-after": "cached chunks, and a first step that ends after them",
    "together-inside": "cached chunks, and a first step that ends right behind them",
}


def together(measured: Measured) -> Verdict:
    """Beside a prompt that fills a step: what is loaded for the other, and what it stores."""
    if not measured.blend.done:
        told = failure(measured.blend)
        return False, None, None, f"a step that ends inside a prompt ended the engine: {told}"
    parts = [part for part in map(part_of, measured.blended("together-")) if part]
    if not parts:
        return None, None, None, "not checked: vLLM computed no prompt over several steps"
    found = {prompt: found_and_within(measured, prompt) for prompt in ASKED}
    most = max((one[1] for one in found.values() if isinstance(one[1], float)), default=None)
    told = f"first steps of {', '.join(map(str, parts))} tokens: "
    wrong = [f"{ASKED[prompt]}: {one[3]}" for prompt, one in found.items() if not one[0]]
    if wrong:
        return False, most, measured.tolerance, told + "; ".join(wrong)
    seen = f"largest difference {most:.2g} nats, allowed {measured.tolerance:.2g}"
    return True, most, measured.tolerance, f"{told}all stored, all reused; {seen}"


def part_of(answer: Answer) -> int:
    """How many of a prompt's tokens its first step had room for, 0 where that was for all."""
    steps: Sequence[Sequence[int]] = answer.get("parts") or ()
    return steps[0][1] if len(steps) > 1 and len(steps[0]) > 1 else 0
