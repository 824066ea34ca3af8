"""Runs a command under a time limit and leaves nothing of it behind, its grandchildren included."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 10.0
_POLL_S = 0.1
_ORDERLY = b"resource_tracker"


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit status (None: past its limit), both streams, seconds it took.

    ``left`` counts the processes that outlived it and had to be stopped.
    """

    code: int | None
    output: str
    seconds: float
    left: int


def run(
    argv: Sequence[str | Path],
    *,
    limit: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    keep: Sequence[int] = (),
    tick: Callable[[float], None] | None = None,
    every: float = 30.0,
) -> Ended:
    """Runs argv in a session of its own for at most ``limit`` seconds, and ends that session.

    ``keep`` are file descriptors the command inherits; ``tick`` is told the seconds gone by,
    ``every`` so many of them. The command's stdin stays open and silent, so that it can notice
    the death of this process.

    Raises:
        OSError: the command can't be started.
    """
    start = time.monotonic()
    # A file and not a pipe: a grandchild that holds a pipe open would keep the reader waiting.
    with tempfile.TemporaryFile() as stream:
        child = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            pass_fds=tuple(keep),
            start_new_session=True,
        )
        left = 0
        try:
            code = _wait(child, start + limit, tick, every, start)
        finally:
            left = end_session(child.pid)
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
        stream.seek(0)
        output = stream.read().decode("utf-8", "replace")
    return Ended(code, output, time.monotonic() - start, left)


def end_session(session: int, grace: float = GRACE_S) -> int:
    """Ends every process of a session, politely first; says how many there were."""
    found = members(session)
    _send(found, signal.SIGTERM)
    _until_gone(session, grace)
    # multiprocessing's tracker removes the shared memory of the dead, then ends by itself.
    stubborn = [pid for pid in members(session) if _ORDERLY not in _command(pid)]
    _send(stubborn, signal.SIGKILL)
    _until_gone(session, grace / 3)
    _send(members(session), signal.SIGKILL)
    _until_gone(session, grace / 3)
    return len(found)


def members(session: int) -> list[int]:
    """The living processes of a session (none where there is no /proc)."""
    try:
        names = [path.name for path in Path("/proc").iterdir()]
    except OSError:
        return []
    return [pid for pid in map(int, filter(str.isdigit, names)) if _belongs(pid, session)]


def _belongs(pid: int, session: int) -> bool:
    try:
        if os.getsid(pid) != session:
            return False
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _until_gone(session: int, limit: float) -> None:
    end = time.monotonic() + limit
    while members(session) and time.monotonic() < end:
        time.sleep(_POLL_S)


def _wait(
    child: subprocess.Popen[bytes],
    end: float,
    tick: Callable[[float], None] | None,
    every: float,
    start: float,
) -> int | None:
    due = start + every
    while True:
        now = time.monotonic()
        if now >= end:
            return None
        try:
            return child.wait(min(end, due) - now if now < due else 0)
        except subprocess.TimeoutExpired:
            if tick is not None and time.monotonic() >= due:
                tick(due - start)
        if time.monotonic() >= due:
            due += every
