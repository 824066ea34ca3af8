"""A second process that checks a share of a validate run's LMCache releases.

Reading source is bound by one processor. What the companion finds it keeps in the cache folder, as
another run of kvpatch would; where it fails, or dies, there is less there and no more to it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from .catalogue import load
from .checking import Checker
from .connection import connection
from .fold import Memo, Options
from .index import Wheel, configured
from .matrix import Release, Workshop
from .remote import RemoteWheel, Traffic
from .series import discover
from .verdicts import Kept

_START = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.stdin.readline())\n"
    "from kvpatch.companion import lines, serve\n"
    "serve(lines(sys.stdin), sys.stdout)\n"
)


@dataclass(frozen=True)
class Work:
    """What a companion is to know: the vLLM releases of the index, and the newest of each package.

    Pairs with other vLLM are left to those who started it.
    """

    cache: Path
    vllm: Sequence[RemoteWheel]
    newest: Mapping[str, RemoteWheel]

    @classmethod
    def of(
        cls,
        cache: Path,
        vllm: Sequence[Release],
        newest: Mapping[str, Release],
        sound: Callable[[Release], bool],
    ) -> Work | None:
        """Those that are ``sound`` (which may wait); None where a newest is not of the index."""
        wheels = [release.holder for release in vllm if sound(release) and release.key]
        ends = {name: release.holder for name, release in newest.items()}
        last = {name: wheel for name, wheel in ends.items() if isinstance(wheel, RemoteWheel)}
        if len(last) < len(ends):
            return None
        return cls(cache, [wheel for wheel in wheels if isinstance(wheel, RemoteWheel)], last)

    @property
    def data(self) -> dict[str, Any]:
        """It as JSON has it."""
        return {
            "cache": str(self.cache),
            "vllm": [_told(wheel) for wheel in self.vllm],
            "newest": {name: _told(wheel) for name, wheel in self.newest.items()},
        }


class Companion:
    """The process, still without work."""

    def __init__(self, process: subprocess.Popen[str], traffic: Traffic) -> None:
        self._process = process
        self._traffic = traffic
        self._thread: threading.Thread | None = None

    def begin(
        self,
        work: Callable[[], Work | None],
        waiting: deque[Release],
        taken: Callable[[Release], bool],
    ) -> None:
        """Have it take releases from the end of those that wait, until none is left.

        Args:
            work: gives what it is to know, in another thread; may block.
            waiting: LMCache releases; others may take from its other end at the same time.
            taken: called with each before it is checked, in that thread; may block. One that it
                finds unsound is left to others.
        """
        thread = threading.Thread(target=self._drive, args=(work, waiting, taken), daemon=True)
        # Where there can be no further thread, all is left to those who wait.
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def wait(self, most_s: float | None = None) -> None:
        """Until it is done with what it took, for so many seconds at most."""
        if self._thread is not None:
            self._thread.join(most_s)

    def _drive(
        self,
        work: Callable[[], Work | None],
        waiting: deque[Release],
        taken: Callable[[Release], bool],
    ) -> None:
        # Whatever goes wrong here, what it did not do is done by those who wait for it.
        with contextlib.suppress(Exception):
            told = work()
            if told is None:
                return
            self.say(told.data)
            while waiting:
                release = waiting.pop()
                # Of bytes without a name nothing is kept, and so nothing would come back.
                sound = taken(release) and release.key is not None
                if not sound or not isinstance(release.holder, RemoteWheel):
                    continue
                self.say(_told(release.holder))
                assert self._process.stdout is not None
                requests, size = json.loads(self._process.stdout.readline())
                self._traffic.add(size, requests)

    def say(self, data: Any) -> None:
        """Tell it something; what it can't hear is lost."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(data) + "\n")
            self._process.stdin.flush()


@contextlib.contextmanager
def companion(traffic: Traffic) -> Iterator[Companion | None]:
    """Start one, and end it afterwards; None where it can't be started.

    It lives in a session of its own, so that Ctrl-C is not for it, and ends with its input.
    """
    try:
        process = subprocess.Popen(
            [sys.executable or "", "-I", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
    except (OSError, ValueError):
        yield None
        return
    helper = Companion(process, traffic)
    try:
        helper.say([entry for entry in sys.path if isinstance(entry, str)])
        yield helper
    finally:
        process.kill()
        helper.wait()
        process.wait()
        for stream in (process.stdin, process.stdout):
            # What it did not read any more is not to be complained of.
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def affordable() -> bool:
    """Whether there is a processor for it."""
    try:
        return len(os.sched_getaffinity(0)) > 1
    except AttributeError:
        return (os.cpu_count() or 1) > 1


def lines(stream: IO[str]) -> Iterator[str]:
    """The lines of a stream, as they come; at its end the process ends, whatever it is at."""
    waiting: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for line in stream:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield waiting.get()


def serve(orders: Iterator[str], answers: IO[str]) -> None:
    """Check what is ordered, a line each, until there is no more: first the work, then wheels.

    Each is answered with the number of requests and of bytes that it took.
    """
    gc.disable()
    told = json.loads(next(orders))
    cache, traffic = Path(told["cache"]), Traffic()
    held: dict[tuple[str, int, int], bytes] = {}
    with connection(configured()) as session:

        def release(data: Mapping[str, Any]) -> Release:
            wheel, most = Wheel.of(data["wheel"]), data["max_download"]
            return Release.of(wheel, RemoteWheel(wheel, session, cache, traffic, most, held))

        vllm = [release(data) for data in told["vllm"]]
        newest = {name: release(data) for name, data in told["newest"].items()}
        workshop = Workshop(discover(), Options(known=load(), memo=Memo()))
        checker = Checker(workshop, Kept.by(workshop.series, cache), newest)
        for line in orders:
            before = traffic.requests, traffic.bytes
            checker.lmcache(release(json.loads(line)), vllm, lambda _: None)
            spent = [traffic.requests - before[0], traffic.bytes - before[1]]
            answers.write(json.dumps(spent) + "\n")
            answers.flush()


def _told(wheel: RemoteWheel) -> dict[str, Any]:
    return {"wheel": wheel.wheel.data, "max_download": wheel.max_download}
