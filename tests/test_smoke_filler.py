from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvpatch.smoke_filler import Parts, filler


def test_a_filler_leaves_what_it_was_told_to_leave() -> None:
    found = filler([5, 6, 7], 2048, 1)
    assert len(found) == 2047
    assert found[:4] == [5, 6, 7, 5]


class Runner:
    """Stands in for a model runner."""

    def execute_model(self, scheduled: Any, tensors: Any = None) -> Any:
        return scheduled, tensors


def test_what_each_step_computes_is_seen_and_the_runner_is_left_as_it_was() -> None:
    runner = Runner()
    parts = Parts(runner)
    step = SimpleNamespace(num_scheduled_tokens={"0": 2047, "1": 1})
    assert runner.execute_model(step, 3) == (step, 3)
    # Steps that compute nothing, and a release that doesn't say.
    runner.execute_model(SimpleNamespace(num_scheduled_tokens={}))
    runner.execute_model(SimpleNamespace())
    runner.execute_model(SimpleNamespace(num_scheduled_tokens={"1": 15}), tensors=None)
    parts.remove()
    runner.execute_model(step)
    assert parts.seen == [[2047, 1], [15]]
    assert "execute_model" not in vars(runner)
