"""In which releases there is something that one brought and another one has no longer."""

from __future__ import annotations

from packaging.version import Version

Lifespan = tuple[Version | None, Version | None]
"""The release that brought it, None for all; and the one without it again, None for none."""


def lives(span: Lifespan, release: Version) -> bool:
    """Whether a release has it."""
    since, until = span
    return (since is None or release >= since) and (until is None or release < until)
