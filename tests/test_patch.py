"""What a patch declares of the releases it is for."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from kvpatch.outcome import Outcome
from kvpatch.patch import Judgement, Need, Patch, Refusal, Target
from packaging.version import Version


def _same(module: Any) -> Any:
    return module


def _holds(*_: object) -> Judgement:
    return Judgement(True, "it holds")


PATCH = Patch(
    id="KV900",
    distribution="vllm",
    targets=(Target("vllm/a.py", ">=1.0", _same),),
    versions=">=1.0,<2.0",
    why="Something is broken.",
    how="It is mended.",
    upstream="https://example.org/1",
    retire_when="It is mended upstream.",
    post_condition=_holds,
    faithful=_holds,
    needs=(Need("KV901", "<1.5"), Need("KV902", ">=1.4")),
)


@pytest.mark.parametrize("release", ["1.0", "1.9.9", "1.4.post1", "1.2+cpu", "1.5rc1"])
def test_a_release_between_the_bounds_is_in_range(release: str) -> None:
    assert PATCH.in_range(Version(release))


@pytest.mark.parametrize("release", ["0.9", "2.0", "2.0+cpu", "1.0rc1", "2.0.post1"])
def test_a_release_outside_the_bounds_is_not_in_range(release: str) -> None:
    assert not PATCH.in_range(Version(release))


@pytest.mark.parametrize(
    ("release", "needed"),
    [("1.0", ("KV901",)), ("1.4", ("KV901", "KV902")), ("1.5", ("KV902",)), ("0.1", ("KV901",))],
)
def test_what_a_patch_needs_depends_on_the_release(release: str, needed: tuple[str, ...]) -> None:
    assert PATCH.needed_with(Version(release)) == needed


def test_a_patch_that_needs_nothing_needs_nothing_with_any_release() -> None:
    lonely = Patch(**{**vars(PATCH), "needs": ()})
    assert lonely.needed_with(Version("1.0")) == ()


def test_a_refusal_carries_its_outcome_and_its_sentence() -> None:
    refusal = Refusal(Outcome.AMBIGUOUS, "the anchor is there twice")
    assert refusal.outcome is Outcome.AMBIGUOUS
    assert refusal.reason == str(refusal) == "the anchor is there twice"


def test_a_post_condition_is_called_with_a_module_and_a_release() -> None:
    assert PATCH.post_condition(ast.parse(""), Version("1.0")).holds


def test_a_patch_can_not_be_changed_once_it_is_declared() -> None:
    with pytest.raises(AttributeError):
        PATCH.id = "KV901"  # type: ignore[misc]
