"""A prompt that takes most of a step's token budget, so that another one gets only part of it.

Runs in the target's interpreter, with Python 3.9 or newer; nothing of kvpatch.
"""

from __future__ import annotations

from typing import Any


def filler(tokens: list[int], budget: int, spare: int) -> list[int]:
    """The tokens again and again, until they leave ``spare`` tokens of a step's budget."""
    length = max(budget - spare, 1)
    return (tokens * (length // len(tokens) + 1))[:length]


class Parts:
    """How many tokens of each request vLLM computes, step by step, in the order it names them.

    ``seen`` stays empty where this release's runner is not told that.
    """

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.seen: list[list[int]] = []
        original = runner.execute_model

        def execute_model(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            counts = getattr(scheduled, "num_scheduled_tokens", None)
            if isinstance(counts, dict) and counts:
                self.seen.append([int(count) for count in counts.values()])
            return original(scheduled, *args, **kwargs)

        runner.execute_model = execute_model

    def remove(self) -> None:
        """Let the runner be as before."""
        del self.runner.execute_model
