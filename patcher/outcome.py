"""What a verb can end with: outcomes per patch and file, exit codes, errors with a next step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of every verb."""

    DONE = 0
    NO = 1
    USAGE = 2
    REFUSED = 3
    ENVIRONMENT = 4
    BUG = 5


class Outcome(str, Enum):
    """What a plan says about one patch, or about one file of it. Stable words."""

    APPLIED = "applied"
    ALREADY = "already"
    PENDING = "pending"
    ABSORBED = "absorbed"
    OUT_OF_RANGE = "out-of-range"
    NOT_NEEDED = "not-needed"
    NOT_INSTALLED = "not-installed"
    MISSING = "missing"
    AMBIGUOUS = "ambiguous"
    FOREIGN = "foreign"
    CONFLICT = "conflict"

    @property
    def fine(self) -> bool:
        """Whether nothing is left to do for it (``out-of-range`` also asks for the goal)."""
        return self in _FINE

    @property
    def in_place(self) -> bool:
        """Whether its work is done, by kvpatch or by others."""
        return self in _IN_PLACE

    @property
    def elsewhere(self) -> bool:
        """Whether it is for other releases, pairs or distributions than the installed ones."""
        return self in _ELSEWHERE

    @property
    def refused(self) -> bool:
        """Whether it keeps the whole plan from being applied."""
        return self in _REFUSED


_IN_PLACE = frozenset({Outcome.APPLIED, Outcome.ALREADY, Outcome.ABSORBED})
_ELSEWHERE = frozenset({Outcome.OUT_OF_RANGE, Outcome.NOT_NEEDED, Outcome.NOT_INSTALLED})
_FINE = _IN_PLACE | {Outcome.NOT_NEEDED, Outcome.OUT_OF_RANGE}
_REFUSED = frozenset({Outcome.MISSING, Outcome.AMBIGUOUS, Outcome.FOREIGN, Outcome.CONFLICT})

SEVERITY: tuple[Outcome, ...] = (
    Outcome.ALREADY,
    Outcome.APPLIED,
    Outcome.ABSORBED,
    Outcome.NOT_NEEDED,
    Outcome.OUT_OF_RANGE,
    Outcome.NOT_INSTALLED,
    Outcome.PENDING,
    Outcome.FOREIGN,
    Outcome.CONFLICT,
    Outcome.AMBIGUOUS,
    Outcome.MISSING,
)


def worst(outcomes: list[Outcome]) -> Outcome:
    """The outcome of a patch: the worst of its files'.

    Raises:
        ValueError: for no outcome at all.
    """
    return max(outcomes, key=SEVERITY.index)


class KvpatchError(Exception):
    """A failure a user can act on.

    Args:
        code: a stable word for ``errors[].code``, such as ``no-vllm``.
        message: one sentence that says what is wrong.
        hint: one sentence that says what to do next.
        exit_code: how the command ends.
    """

    def __init__(
        self, code: str, message: str, hint: str, exit_code: ExitCode = ExitCode.REFUSED
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    @property
    def again(self) -> KvpatchError:
        """The same failure, to be raised once more."""
        return KvpatchError(self.code, self.message, self.hint, self.exit_code)


SCHEMA = 1
_STATUS = {
    ExitCode.DONE: "ok",
    ExitCode.NO: "no",
    ExitCode.REFUSED: "refused",
}


@dataclass(frozen=True)
class Report:
    """What a verb has to say, before it is printed; notes go to stderr, beside the text."""

    command: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    exit_code: ExitCode = ExitCode.DONE
    errors: tuple[KvpatchError, ...] = ()
    notes: tuple[str, ...] = ()

    def envelope(self) -> str:
        """The JSON envelope, with the same keys for every verb; a number that is none is null."""
        return json.dumps(
            {
                "schema": SCHEMA,
                "command": self.command,
                "status": _STATUS.get(self.exit_code, "error"),
                "exit_code": int(self.exit_code),
                "data": _finite(self.data),
                "errors": [
                    {"code": error.code, "message": error.message, "hint": error.hint}
                    for error in self.errors
                ],
            },
            indent=2,
        )


def _finite(value: Any) -> Any:
    """The value with None for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
