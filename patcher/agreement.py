"""What a real run came to, held against what reading says of the very files that ran."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .letters import Finding, Scope

MASKED: Mapping[str, tuple[str, ...]] = {"cpu": ("A", "K", "S", "V"), "cuda": ("S",)}
"""Letters that a smoke on a device can't tell of: on a CPU the harness stands in for attention and
KV cache layout, and there are no CUDA graphs; S strikes without blending or with GDS, which a smoke
at its defaults doesn't try."""

# Where the environment lies says nothing of the pair.
_FOLDER = re.compile(r"/[^\s']*-packages/")


@dataclass(frozen=True)
class Agreement:
    """A run beside the verdict.

    ``expected`` is the first letter of the verdict that the run can tell of, ``struck`` the one
    whose place the run failed at; empty for none. ``failed`` says how it failed, empty where it
    blends.
    """

    expected: str
    struck: str
    failed: str

    @property
    def agrees(self) -> bool:
        """Whether the run failed at the letter that was to come first, or at none as none was."""
        return self.expected == self.struck and bool(self.failed) == bool(self.expected)


def agreement(
    findings: Sequence[Finding], masked: Collection[str], smoked: Mapping[str, Any], failed: str
) -> Agreement:
    """Hold a smoke against the verdict on the files it ran.

    Args:
        findings: of the verdict on the installed pair as it was run, the first failure first.
        masked: letters that the run can't tell of.
        smoked: ``data`` of the smoke's report.
        failed: the first thing that was wrong with the run; empty where it blends.
    """
    told = [f for f in findings if f.scope is Scope.ALWAYS and f.letter not in masked]
    failure = smoked.get("failure") or {}
    struck = letter_at(told, failure.get("places", ())) if failed else ""
    how = _FOLDER.sub("", str(failure.get("told", failed))) if failed else ""
    return Agreement(told[0].letter if told else "", struck, how)


def letter_at(findings: Sequence[Finding], places: Sequence[Sequence[Any]]) -> str:
    """The letter of the finding at the innermost of those places; empty where none is there."""
    letters = {(finding.path, finding.line): finding.letter for finding in reversed(findings)}
    found = (letters.get((str(path), int(line))) for path, line, *_ in places)
    return next(filter(None, found), "")
