"""For tests of what must not wait."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

LIMIT_S = 20


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Fail where what is inside waits, for a pipe's other end or so."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it waited for {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
