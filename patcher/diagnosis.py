"""What a doctor's check comes to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(str, Enum):
    """The outcome of a check. Stable words."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    NOTE = "note"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """One row: what was looked at, how it stands, why, and what to do (empty for nothing)."""

    name: str
    state: State
    reason: str
    todo: str = ""


def ok(name: str, reason: str) -> Check:
    """A check that found nothing wrong."""
    return Check(name, State.OK, reason)


def warn(name: str, reason: str, todo: str) -> Check:
    """A check that found what may go wrong."""
    return Check(name, State.WARN, reason, todo)


def fail(name: str, reason: str, todo: str) -> Check:
    """A check that found what goes wrong."""
    return Check(name, State.FAIL, reason, todo)


def not_checked(name: str, reason: str, todo: str = "") -> Check:
    """A check that could not be made, or was not asked for."""
    return Check(name, State.NOT_CHECKED, reason, todo)
