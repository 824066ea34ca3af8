"""The verb ``lint``: finds the release, reads what was named, and reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import key_history
from .lint import Linted, Surroundings, lint
from .outcome import ExitCode, KvpatchError, Report
from .release import Release, find_release
from .rules import Finding, Level, spelt
from .schema import Unknown
from .yaml_source import YamlFile, read_yaml

if TYPE_CHECKING:
    from .launch import Launch


@dataclass(frozen=True, eq=False, repr=False)
class Asked:
    """What the user named besides the file; None for what was not named."""

    python: Path | None = None
    site: Path | None = None
    lmcache: str | None = None
    vllm: str | None = None
    env_file: Path | None = None
    pid: int | None = None
    serve: str | None = None
    sarif: Path | None = None
    fix: bool = False


def run_lint(path: Path, asked: Asked) -> Report:
    """Check a configuration file, and mend it where that was asked for.

    Raises:
        KvpatchError: exit 2 for what can't be asked, 3 for a file that can't be mended, 4 for
            what can't be read.
    """
    if asked.env_file is not None and asked.pid is not None:
        raise KvpatchError(
            "two-environments",
            "--env-file and --pid both name an environment",
            "give one of them",
            ExitCode.USAGE,
        )
    launch, environ = _surroundings(asked)
    file = read_yaml(path)
    release = find_release(asked.python, asked.site, asked.lmcache, asked.vllm)
    around = Surroundings(
        environ,
        asked.pid is not None,
        launch,
        release.vllm,
        release.python,
        release.gds_blends,
        release.absence,
    )
    history = key_history.load()

    def check(one: YamlFile) -> Linted:
        return lint(one, release.schema, history, around)

    notes: list[str] = []
    fixed: list[str] = []
    if asked.fix:
        from .mend import mended, write_over

        after, fixes = mended(file, lambda one: check(one).findings)
        fixed = [fix.sentence for fix in fixes]
        if after.text != file.text:
            write_over(path, after.text)
            notes.append(f"wrote {path}: {len(fixes)} fixed")
        file = after
    linted = check(file)
    if asked.sarif is not None:
        from .sarif import sarif

        _write(asked.sarif, json.dumps(sarif(str(path), linted.findings), indent=2) + "\n")
    data = {
        "file": str(path),
        "lmcache": str(release.lmcache),
        "vllm": str(release.vllm) if release.vllm else None,
        "findings": [_finding_data(finding) for finding in linted.findings],
        "fixed": fixed,
        "values": _values(linted),
    }
    code = ExitCode.DONE if linted.clean else ExitCode.NO
    text = _text(str(path), release, linted, fixed)
    return Report("lint", text, data, code, notes=tuple(notes))


def _surroundings(asked: Asked) -> tuple[Launch | None, Mapping[str, str] | None]:
    """The command and the environment that were named."""
    launch, environ = None, None
    if asked.serve is not None:
        from .launch import parse_launch

        launch = parse_launch(asked.serve)
    if asked.env_file is not None or asked.pid is not None:
        from . import environment

        if asked.env_file is not None:
            environ = environment.from_file(asked.env_file)
        elif asked.pid is not None:
            environ = environment.from_process(asked.pid)
    return launch, environ


def _text(path: str, release: Release, linted: Linted, fixed: list[str]) -> str:
    beside = f" with vLLM {release.vllm}" if release.vllm else ""
    lines = [f"{path}, for LMCache {release.lmcache}{beside}"]
    lines += [f"  fixed: {sentence}" for sentence in fixed]
    for finding in linted.findings:
        place = f"{path}:{finding.line}:{finding.column}" if finding.line else finding.source
        lines.append("")
        lines.append(f"{place}: {finding.level.value} {finding.rule.id} {finding.message}")
        lines.append(f"    {finding.rule.why}")
        if finding.fix is not None:
            lines.append(f"    --fix would {finding.fix.sentence}")
    counts = dict.fromkeys(Level, 0)
    for finding in linted.findings:
        counts[finding.level] += 1
    parts = [f"{number} {level.value}{'s' * (number != 1)}" for level, number in counts.items()]
    total = ", ".join(parts) if linted.findings else "nothing to say against it"
    return "\n".join([*lines, "", total])


def _finding_data(finding: Finding) -> Mapping[str, Any]:
    return {
        "rule": finding.rule.id,
        "name": finding.rule.name,
        "level": finding.level.value,
        "message": finding.message,
        "why": finding.rule.why,
        "key": finding.key,
        "source": finding.source,
        "line": finding.line or None,
        "column": finding.column or None,
        "fix": finding.fix.sentence if finding.fix else None,
    }


def _values(linted: Linted) -> Mapping[str, Any]:
    """What LMCache will have for every key that was written somewhere, and from where."""
    if linted.effective is None:
        return {}
    return {
        name: {"value": _jsonable(seen.value), "source": seen.source}
        for name, seen in linted.effective.values.items()
        if seen.source != "default"
    }


def _jsonable(value: Any) -> Any:
    if isinstance(value, Unknown):
        return None
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return spelt(value)
    return value


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise KvpatchError(
            "not-written",
            f"{path} can't be written: {error.strerror}",
            "name a file in a folder that is there and may be written",
            ExitCode.ENVIRONMENT,
        ) from None
