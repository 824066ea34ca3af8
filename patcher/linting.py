"""The verb ``lint``: finds the release, reads what was named, and reports."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import key_history
from .coercion import CONFIG_VARIABLE, PREFIX
from .lint import Linted, lint
from .manifest import see_no_manifest
from .outcome import ExitCode, KvpatchError, Report
from .processes import server_behind
from .prompt_size import prompt_mib
from .release import Release, find_release
from .rules import Finding, Level, spelt
from .schema import Unknown
from .secrecy import masked
from .surroundings import Surroundings
from .yaml_source import YamlFile, read_yaml

if TYPE_CHECKING:
    from . import serve_file
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


def run_lint(path: Path | None, asked: Asked) -> Report:
    """Check a configuration file, and mend it where that was asked for.

    Without a path, it is the file that the variables or the command name, or what they say where
    they name none.

    Raises:
        KvpatchError: exit 2 for what can't be asked, 3 for a file that can't be mended, 4 for
            what can't be read.
    """
    if asked.env_file is not None and asked.pid is not None:
        raise KvpatchError(
            "two-environments",
            "--env-file and --pid both name an environment",
            "give one of the two",
            ExitCode.USAGE,
        )
    if path is None and asked.fix:
        raise KvpatchError(
            "nothing-to-fix",
            "--fix mends a file, and none was named",
            "name the file, or leave --fix out",
            ExitCode.USAGE,
        )
    notes = []
    if asked.pid is not None and (server := server_behind(asked.pid)) != asked.pid:
        notes.append(
            f"note: process {asked.pid} wrote a title over its variables; those of process "
            f"{server} are checked, which started it"
        )
        asked = replace(asked, pid=server)
    launch, environ = _surroundings(asked)
    if launch is not None:
        launch = launch.started_with(environ or ())
        launch = launch if environ is None else launch.told()
    follows = launch is not None and "config" in launch.flags
    if path is None and environ is None and not (follows or _says_something(launch)):
        raise _nothing_to_check(launch)
    notes += [launch.several] if launch and launch.several else []
    if launch is not None and launch.unsure.any:
        from .lint_unsure import note

        notes += note(launch)
    named = _named(launch, environ, asked.pid, given=path is not None)
    shown = ""
    if path is None and named is not None:
        path, shown = named
    file = read_yaml(path, shown) if path else YamlFile(_variables(asked), "", written=False)
    see_no_manifest(file)
    release = find_release(asked.python, asked.site, asked.lmcache, asked.vllm)
    if launch is not None:
        from . import serve_file

        launch = serve_file.followed(launch, release.vllm, _base(asked))
        if path is None and environ is None and not _says_something(launch):
            raise _nothing_to_check(launch)
    around = Surroundings(
        environ=environ,
        running=asked.pid is not None,
        launch=launch,
        vllm=release.vllm,
        python=release.python,
        gds_blends=release.gds_blends,
        absence=release.absence,
        config_at=shown or (str(named[0]) if named else ""),
        ranks_agree=release.ranks_agree,
        on_cpu=release.on_cpu,
        config_changed=_changed(launch, environ, asked.pid),
        prompt_mib=lambda: prompt_mib(launch),
    )
    history = key_history.load()

    def check(one: YamlFile) -> Linted:
        return lint(one, release.schema, history, around)

    if asked.pid is not None and launch is None:
        notes.append(
            f"note: the command of process {asked.pid} starts no vLLM server, so no flags were "
            "checked; give them with --serve"
        )
    if asked.env_file is not None and environ is not None:
        notes += _otherwise(asked.env_file, environ, release)
    notes += _untested(release)
    if not file.written and not release.schema.reading.converts_file:
        notes.append(
            f"note: of LMCache {release.lmcache} names of variables are checked, values are not"
        )
    fixed: list[str] = []
    refused: KvpatchError | None = None
    if asked.fix:
        from .mend import mended, write_over

        try:
            after, fixes = mended(file, lambda one: check(one).findings)
        except KvpatchError as error:
            # What was found is told all the same.
            after, fixes, refused = file, (), error
        fixed = [fix.sentence for fix in fixes]
        if path is not None and after.text != file.text:
            write_over(path, after.text)
            notes.append(f"wrote {path}: {len(fixes)} fixed")
        file = after
    linted = check(file)
    if asked.fix and refused is None and not fixed and not linted.clean:
        notes.append("note: nothing of this is certain enough for --fix; mend it by hand")
    if asked.sarif is not None:
        from .outputs import put
        from .sarif import sarif

        put(asked.sarif, json.dumps(sarif(file.path, linted.findings), indent=2) + "\n")
    data = {
        "file": file.path if file.written else None,
        "lmcache": str(release.lmcache),
        "vllm": str(release.vllm) if release.vllm else None,
        "serve_config": _serve_config(launch) or None,
        "findings": [_finding_data(finding, file) for finding in linted.findings],
        "fixed": fixed,
        "values": _values(linted, release.schema.extra),
    }
    text = _text(file, release, linted, fixed, _serve_config(launch))
    if refused is not None:
        return Report("lint", text, data, refused.exit_code, (refused,), tuple(notes))
    code = ExitCode.DONE if linted.clean else ExitCode.NO
    return Report("lint", text, data, code, notes=tuple(notes))


def _surroundings(asked: Asked) -> tuple[Launch | None, Mapping[str, str] | None]:
    """The command and the environment that were named."""
    launch, environ = None, None
    if asked.serve is not None:
        from . import serve_option

        launch = serve_option.launch_of(asked.serve)
    if asked.env_file is not None or asked.pid is not None:
        from . import environment

        if asked.env_file is not None:
            environ = environment.from_file(asked.env_file)
        elif asked.pid is not None:
            environ = environment.from_process(asked.pid)
            if asked.serve is None:
                from .launch import server_of

                launch = server_of(environment.command_of(asked.pid))
    return launch, environ


def _untested(release: Release) -> Iterator[str]:
    """A note for each release of the two that is newer than those this kvpatch knows."""
    from .pairs import load

    known = load()
    beyond = release.vllm is not None and release.vllm.public not in known.vllm
    if beyond or release.lmcache.public not in known.lmcache:
        from .templates import Pair, like

        template = like(blends=True, gds=False)
        for told in template.untested(Pair(release.lmcache, release.vllm)):
            yield f"note: {told}"


def _otherwise(path: Path, environ: Mapping[str, str], release: Release) -> Iterator[str]:
    """Who would read a file of variables otherwise, where LMCache then has another value."""
    from . import environment

    unquote = release.schema.reading.unquote or str
    for reader, found in environment.others(environment.text_of(path)):
        names = [
            name
            for name in sorted({*found, *environ})
            if name.startswith((PREFIX, "PYTHONHASHSEED"))
            and unquote(found.get(name, "")) != unquote(environ.get(name, ""))
        ]
        if names:
            shown = ", ".join(names)
            yield f"note: {path} is read as systemd reads it; {reader} would have another {shown}"


def _nothing_to_check(launch: Launch | None) -> KvpatchError:
    told = "there is no configuration to check"
    todo = (
        "name a file, or variables: --env-file FILE, --pid PID, or --serve with a command or "
        f"script that sets {CONFIG_VARIABLE}"
    )
    withheld = [name for name in launch.withheld if _reads(name)] if launch else []
    # The file's own name says most, and then what can't be told.
    name = CONFIG_VARIABLE if CONFIG_VARIABLE in withheld else min(withheld, default="")
    open_still = "" if name == CONFIG_VARIABLE else _not_told(launch)
    if launch is None or open_still or not name:
        told += open_still
        return KvpatchError("no-configuration", told, todo, ExitCode.USAGE)
    kept = launch.withheld[name]
    told += f": {kept.told(name)}"
    todo = f"write `export {name}=...`"
    if kept.by:
        todo = f"set {name} behind {kept.by}, as in `env {name}=... vllm serve`"
    todo += ", or name the file for this check"
    return KvpatchError("no-configuration", told, todo, ExitCode.USAGE)


def _reads(name: str) -> bool:
    """Whether LMCache reads that variable: a script has others of its own, such as LMCACHE_PORT."""
    return key_history.load().reads(name)


def _not_told(launch: Launch | None) -> str:
    """What the command leaves open that might name a configuration."""
    if launch is None:
        return ""
    if CONFIG_VARIABLE in launch.unsure.names:
        return f": {CONFIG_VARIABLE} is set to what can't be told here"
    return "".join(f": {cause}" for cause in (*launch.unsure.causes, launch.doubt)[:1] if cause)


def _says_something(launch: Launch | None) -> bool:
    """Whether a command sets what LMCache reads, has it, or chooses what does without."""
    if launch is None:
        return False
    if any(name.startswith(PREFIX) for name in launch.environ) or launch.elsewhere(None):
        return True
    unsure = {name for name in launch.unsure.names if _reads(name)}
    if CONFIG_VARIABLE in unsure or any(map(_reads, launch.withheld)):
        # What vLLM would have is there, and not told: that is said first.
        return False
    # Alone the connector has LMCache's defaults, and what its own configuration says.
    return bool(unsure or launch.in_process or launch.problem)


def _named(
    launch: Launch | None, environ: Mapping[str, str] | None, pid: int | None, *, given: bool
) -> tuple[Path, str] | None:
    """Where the file that the variables name is, and how it is shown; None where they name none.

    Args:
        launch: the command, whose own variables beat the others.
        environ: the variables.
        pid: the process that they are of, from where its name is meant.
        given: whether another file was named, so that this one may be missing.

    Raises:
        KvpatchError: ``unreadable``, exit 4: it is not there, and no other was named.
    """
    front = (launch.environ if launch else {}).get(CONFIG_VARIABLE)
    found = (environ or {}).get(CONFIG_VARIABLE) if front is None else front
    if found is None:
        return None
    if pid is None or front is not None:
        return Path(found), found
    from .process_path import compared, config_of

    return (Path(compared(pid, found)), found) if given else config_of(pid, found)


def _changed(launch: Launch | None, environ: Mapping[str, str] | None, pid: int | None) -> bool:
    """Whether the file that a process's own variables name was changed after its start."""
    found = (environ or {}).get(CONFIG_VARIABLE)
    if pid is None or found is None or CONFIG_VARIABLE in (launch.environ if launch else {}):
        return False
    from .process_path import changed_since

    return changed_since(pid, found)


def _variables(asked: Asked) -> str:
    """What the variables are in."""
    if asked.env_file or asked.pid is not None:
        return str(asked.env_file or f"/proc/{asked.pid}/environ")
    from . import serve_option

    script = serve_option.script_of(asked.serve or "")
    return str(script) if script else "the command of --serve"


def _base(asked: Asked) -> serve_file.Base:
    """From where vLLM reads the file of its --config."""
    from . import serve_file, serve_option

    if asked.serve is None and asked.pid is not None:
        return serve_file.of_process(asked.pid)
    folders = [Path.cwd()]
    script = serve_option.script_of(asked.serve or "")
    if script is not None:
        folders.append(script.absolute().parent)
    return serve_file.Base(tuple(dict.fromkeys(folders)))


def _serve_config(launch: Launch | None) -> str:
    """vLLM's own configuration file, where it was read; empty where not."""
    config = launch.config if launch else None
    return config.path if config and config.read else ""


def _text(
    file: YamlFile, release: Release, linted: Linted, fixed: list[str], serve_config: str
) -> str:
    path = file.path
    would = "with each key there once, --fix would" if file.problems else "--fix would"
    beside = f" with vLLM {release.vllm}" if release.vllm else ""
    lines = [f"{path}, for LMCache {release.lmcache}{beside}"]
    lines += [f"  with vLLM's options in {serve_config}"] if serve_config else []
    lines += [f"  fixed: {sentence}" for sentence in fixed]
    for finding in linted.findings:
        within = finding.path or path
        place = finding.path or finding.source
        place = f"{within}:{finding.line}:{finding.column}" if finding.line else place
        lines.append("")
        lines.append(f"{place}: {finding.level.value} {finding.rule.id} {finding.message}")
        lines.append(f"    {finding.rule.why}")
        if finding.fix is not None:
            lines.append(f"    {would} {finding.fix.sentence}")
    counts = dict.fromkeys(Level, 0)
    for finding in linted.findings:
        counts[finding.level] += 1
    parts = [f"{number} {level.value}{'s' * (number != 1)}" for level, number in counts.items()]
    total = ", ".join(parts) if linted.findings else "nothing to say against it"
    return "\n".join([*lines, "", total])


def _finding_data(finding: Finding, file: YamlFile) -> Mapping[str, Any]:
    return {
        "rule": finding.rule.id,
        "name": finding.rule.name,
        "level": finding.level.value,
        "message": finding.message,
        "why": finding.rule.why,
        "key": finding.key,
        "source": finding.source,
        "file": finding.path or (file.path if finding.line else None),
        "line": finding.line or None,
        "column": finding.column or None,
        "fix": finding.fix.sentence if finding.fix else None,
    }


def _values(linted: Linted, known: Collection[str]) -> Mapping[str, Any]:
    """What LMCache will have for every key that was written somewhere, and from where.

    Of what may be a login nothing is there; ``known`` are names inside ``extra_config``.
    """
    if linted.effective is None:
        return {}
    return {
        name: {"value": _jsonable(masked(seen.value, name, known)), "source": seen.source}
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
