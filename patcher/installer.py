"""Installs into a virtual environment by its pip, or by uv, and says why it failed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from .bounded import Ended, run
from .interpreters import clean_environment
from .outcome import ExitCode, KvpatchError

Say = Callable[[str], None]

INSTALL_LIMIT_S = 3600.0
QUERY_LIMIT_S = 600.0


@dataclass(frozen=True)
class Lack:
    """A requirement that pip can't find, and what pip said."""

    requirement: str
    said: str


@dataclass(frozen=True)
class Installer:
    """Installs into one environment.

    Its children inherit ``lock``, a descriptor that holds the environment's lock, so that the
    lock lasts until the last of them is gone even if this process is killed.
    """

    python: Path
    lock: int
    say: Say

    def lacking(self, wanted: str) -> Lack | None:
        """What pip can't find for this Python: the requirement or the torch it pins."""
        report = self.python.parent.parent / "report.json"
        asked = self._query("--report", str(report), wanted)
        if asked.code != 0:
            return Lack(wanted, asked.output)
        text = report.read_text(encoding="utf-8")
        report.unlink()
        torch = torch_requirement(text, os.uname().machine)
        asked = self._query(torch) if torch else asked
        return None if torch is None or asked.code == 0 else Lack(torch, asked.output)

    def install(self, what: str, arguments: Sequence[str]) -> None:
        """Installs by pip; the last argument names the requirement.

        Raises:
            KvpatchError: ``no-download``, ``no-space``; exit 4.
        """
        self.say(f"installing {what}")
        ended = self._run(self._pip("install", *arguments), INSTALL_LIMIT_S)
        if ended.code != 0:
            raise refused(f"installing {what} by pip", arguments[-1], ended)

    def install_by_uv(self, uv: str, lacking: str) -> None:
        """Installs what pip is ``lacking``, by uv, with torch from where its CPU builds are.

        Raises:
            KvpatchError: ``no-download``, ``no-space``; exit 4.
        """
        self.say(f"installing {lacking} by uv, with torch's build for CPUs")
        command = [uv, "pip", "install", "--python", str(self.python), "--torch-backend", "cpu"]
        ended = self._run([*command, "--quiet", "--no-progress", lacking], INSTALL_LIMIT_S)
        if ended.code != 0:
            raise refused("pip finds none, and installing it by uv", lacking, ended)

    def uninstall(self, names: Sequence[str]) -> None:
        """Takes packages out again; absent ones are fine.

        Raises:
            KvpatchError: ``no-download``; exit 4.
        """
        ended = self._run(self._pip("uninstall", "-y", *names), QUERY_LIMIT_S)
        if ended.code != 0:
            raise refused("removing packages that the CPU build can't use", names[0], ended)

    def _query(self, *arguments: str) -> Ended:
        query = ("install", "--dry-run", "--no-deps", "--ignore-installed", "--retries", "2")
        return self._run(self._pip(*query, "--only-binary", ":all:", *arguments), QUERY_LIMIT_S)

    def _pip(self, *arguments: str) -> list[str]:
        pip = [str(self.python), "-I", "-m", "pip", "--disable-pip-version-check", "--no-input"]
        return [*pip, "-q", *arguments]

    def _run(self, argv: Sequence[str], limit: float) -> Ended:
        return run(
            argv,
            limit=limit,
            env=clean_environment(os.environ),
            keep=[self.lock],
            tick=lambda seconds: self.say(f"  still at it after {seconds:.0f} s"),
        )


def torch_requirement(report: str, machine: str) -> str | None:
    """The torch that a pip ``--report`` asks for on that machine; None where there is none."""
    try:
        items = json.loads(report)["install"]
        stated = [text for item in items for text in item["metadata"].get("requires_dist", ())]
        for requirement in map(Requirement, stated):
            where = {"platform_machine": machine, "extra": ""}
            applies = requirement.marker is None or requirement.marker.evaluate(where)
            if requirement.name == "torch" and applies:
                return f"torch{requirement.specifier}"
    except (ValueError, KeyError, TypeError, InvalidRequirement):
        return None
    return None


def refused(step: str, wanted: str, ended: Ended) -> KvpatchError:
    """The error of an installer that failed, with the package that is missing and its words."""
    why = "took too long" if ended.code is None else "failed"
    said = " / ".join(meaningful(ended.output)) or "no reason was given"
    if "No space left on device" in ended.output:
        return KvpatchError(
            "no-space",
            f"No space left while {step}.",
            "Make room (the whole takes about 4 GB), or set XDG_CACHE_HOME to a larger place.",
            ExitCode.ENVIRONMENT,
        )
    return KvpatchError(
        "no-download",
        f"{missing_package(ended.output, wanted)} is missing: {step} {why}: {said}",
        "Let pip (or uv) reach an index that has it, and run it again.",
        ExitCode.ENVIRONMENT,
    )


def meaningful(output: str, most: int = 3) -> list[str]:
    """The lines of an installer's output that say why it failed."""
    lines = [line.strip() for line in output.splitlines()]
    said = [line for line in lines if line and not re.search(r"Location '.*' is ignored", line)]
    errors = [line for line in said if re.match(r"error|cause|caused by", line, re.IGNORECASE)]
    return errors[:most] or said[-most:]


def missing_package(output: str, fallback: str) -> str:
    """The package an installer could not get, as far as its output names it."""
    patterns = (
        r"No matching distribution found for ([^\s(]+)",
        r"satisfies the requirement ([^\s(]+)",
        r"Cannot install ([^\s,]+)[^\n]* because",
        r"there is no version of ([^\s,]+)",
        r"Because ([^\s,]+) was not found",
        r"Failed to (?:download|fetch|build):? `([^\s`/]+)`",
    )
    found = [match[1] for pattern in patterns for match in re.finditer(pattern, output)]
    return found[0].rstrip(".,:") if found else fallback
