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
from typing import IO

GRACE_S = 10.0
_POLL_S = 0.1
_FIRST_POLL_S = 0.0005
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


@dataclass(frozen=True)
class Command:
    """What is to be run: argv, its environment (None: this process's) and its folder.

    ``keep`` are file descriptors it inherits; ``tick`` is told the seconds gone by.
    """

    argv: Sequence[str | Path]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    keep: Sequence[int] = ()
    tick: Callable[[float], None] | None = None


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
    """Runs argv as ``run_together`` does, alone.

    Raises:
        OSError: the command can't be started.
    """
    [ended] = run_together([Command(argv, env, cwd, keep, tick)], limit=limit, every=every)
    return ended


def run_together(commands: Sequence[Command], *, limit: float, every: float = 30.0) -> list[Ended]:
    """Runs commands at the same time, each in a session of its own, and ends those sessions.

    None lasts longer than ``limit`` seconds; each one's ``tick`` is called ``every`` so many of
    them. A command's stdin stays open and silent, so that it can notice the death of this process.

    Returns:
        How each ended, in the order of the commands.

    Raises:
        OSError: a command can't be started.
    """
    children: list[_Child] = []
    with contextlib.ExitStack() as streams:
        try:
            for command in commands:
                # A file and not a pipe: a grandchild that holds a pipe open would keep the
                # reader waiting.
                stream = streams.enter_context(tempfile.TemporaryFile())
                children.append(_Child(command, stream, every))
            _wait(children, time.monotonic() + limit)
        finally:
            # All of them at once: each may take as long as it is given.
            for child in children:
                child.ask_to_end()
            for child in children:
                child.end()
        return [child.ended() for child in children]


class _Child:
    """A command that runs, until its session is ended."""

    def __init__(self, command: Command, stream: IO[bytes], every: float) -> None:
        self.command = command
        self.stream = stream
        self.every = every
        self.begin = time.monotonic()
        self.due = every
        self.code: int | None = None
        self.seconds: float | None = None
        self.left = 0
        self.process = subprocess.Popen(
            [str(part) for part in command.argv],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=None if command.env is None else dict(command.env),
            cwd=command.cwd,
            pass_fds=tuple(command.keep),
            start_new_session=True,
        )

    @property
    def over(self) -> bool:
        """Whether it is over; its session is ended then, and the status known."""
        if self.seconds is None and self.process.poll() is not None:
            self.code = self.process.returncode
            self.end()
        return self.seconds is not None

    def tick(self) -> None:
        """Tells the seconds gone by, when it is time to."""
        if time.monotonic() - self.begin < self.due:
            return
        if self.command.tick is not None:
            self.command.tick(self.due)
        self.due += self.every

    def ask_to_end(self) -> None:
        """Asks all of a session that still runs to end, and waits for nothing."""
        if self.seconds is None:
            found = members(self.process.pid)
            self.left = len(found)
            _send(found, signal.SIGTERM)

    def end(self) -> None:
        """Ends its session."""
        if self.seconds is not None:
            return
        self.left = max(self.left, end_session(self.process.pid))
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.seconds = time.monotonic() - self.begin

    def ended(self) -> Ended:
        """How it ended."""
        self.stream.seek(0)
        output = self.stream.read().decode("utf-8", "replace")
        return Ended(self.code, output, self.seconds or 0.0, self.left)


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


def _wait(children: Sequence[_Child], end: float) -> None:
    """Until all are over, or the end has come."""
    pause = _FIRST_POLL_S
    while True:
        running = [child for child in children if not child.over]
        if not running:
            return
        if time.monotonic() >= end:
            return
        time.sleep(min(pause, max(end - time.monotonic(), 0.0)))
        # Short commands are not kept waiting, and long ones are not asked all the time.
        pause = min(pause * 2, _POLL_S)
        for child in running:
            child.tick()
