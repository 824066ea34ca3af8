"""Makes a request to end (SIGTERM) an interruption, so that what is open is closed on the way."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """While it lasts SIGTERM raises KeyboardInterrupt, as SIGINT does (in the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
