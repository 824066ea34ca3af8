"""The verb ``doctor``: one table of what this host, pair, model and configuration come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from packaging.version import Version

from . import environment, key_history, serve_file, templates
from .coercion import CONFIG_VARIABLE, effective
from .curing import pair_on
from .diagnosis import Check, State, fail, not_checked, ok
from .finding_checks import finding_check
from .fsops import Disk
from .host import Host, Where, open_host
from .host_checks import host_checks, library_check
from .launch import Launch, server_of
from .lint import Surroundings, lint
from .model_checks import check_layers_check, model_checks, separator_check
from .model_config import Model, read_model
from .outcome import ExitCode, KvpatchError, Report
from .pair_checks import (
    catalogue_check,
    distributions,
    extension_check,
    flashinfer_check,
    models_of,
    patches_check,
    pins_check,
    runner_check,
    template_check,
)
from .probe import probe
from .process_path import compared, config_of
from .remedy import RUN, remedy
from .render import render
from .rules import Level
from .schema import Schema
from .schema_source import read_schema
from .storage_checks import storage_checks
from .templates import Pair
from .yaml_source import YamlFile, parse_yaml, read_yaml

LIMIT_S = 10.0
LOAD_LIMIT_S = 180.0
_ROPE, _TOKEN, _GDS, _RANKS = "KV003", "KV007", "KV009", "KV012"


@dataclass(frozen=True)
class Asked:
    """What the user named; None for what was not named."""

    profile: str | None = None
    config: Path | None = None
    model: Path | None = None
    gds_path: str | None = None
    pid: int | None = None
    write: bool = True


@dataclass(frozen=True)
class _Seen:
    """The host, with what several checks look at."""

    host: Host
    lmcache: Version
    vllm: Version | None
    schema: Schema
    pair: Pair
    values: Mapping[str, Any]
    file: YamlFile
    environ: Mapping[str, str] | None = None
    launch: Launch | None = None
    config_at: str = ""

    @property
    def python(self) -> Path | None:
        found = self.host.environment.interpreter
        return found.executable if found else None

    @property
    def site(self) -> Path:
        return self.host.environment.packages["lmcache"].site


def run_doctor(where: Where, disk: Disk, asked: Asked) -> Report:
    """Look at everything that was asked for.

    Raises:
        KvpatchError: exit 2 for what can't be asked; 4 where there is no LMCache, or a file named
            can't be read.
    """
    if asked.profile is not None and asked.config is not None:
        raise KvpatchError(
            "two-configurations",
            "--profile and --config both give a configuration",
            "give one of the two",
            ExitCode.USAGE,
        )
    if asked.gds_path is not None and not Path(asked.gds_path).is_absolute():
        raise KvpatchError(
            "bad-path",
            f"--gds-path {asked.gds_path!a} is not an absolute path",
            "name an absolute folder on the mounted storage, such as /mnt/nvme/lmcache",
            ExitCode.USAGE,
        )
    model = None if asked.model is None else read_model(asked.model)
    seen = _look(where, disk, asked)
    groups = {
        "pair": [*_pair(seen, asked.profile)],
        "configuration": [*_configuration(seen, asked.pid)],
        "model": [*_model(seen, asked, model)],
        "GDS": [*_gds(seen, asked)],
    }
    groups = _as_apply_goes(groups, where, disk)
    failed = any(check.state is State.FAIL for checks in groups.values() for check in checks)
    data = {
        "lmcache": str(seen.lmcache),
        "vllm": str(seen.vllm) if seen.vllm else None,
        "checks": [
            {
                "group": group,
                "name": check.name,
                "state": check.state.value,
                "reason": check.reason,
                "todo": check.todo,
            }
            for group, checks in groups.items()
            for check in checks
        ],
    }
    code = ExitCode.NO if failed else ExitCode.DONE
    return Report("doctor", _table(seen, groups), data, code)


def _as_apply_goes(
    groups: dict[str, list[Check]], where: Where, disk: Disk
) -> dict[str, list[Check]]:
    """The checks, where they send to apply and that would refuse with what to do about that."""
    if not any(check.todo.startswith(RUN) for checks in groups.values() for check in checks):
        return groups
    found = remedy(where, disk)
    if found.pending:
        return groups

    def told(check: Check) -> Check:
        if not check.todo.startswith(RUN):
            return check
        _, _, other = check.todo.partition(", or ")
        return replace(check, todo=f"{found.sentence}; or {other}" if other else found.sentence)

    return {group: [told(check) for check in checks] for group, checks in groups.items()}


def _look(where: Where, disk: Disk, asked: Asked) -> _Seen:
    host = open_host(where, disk, needs="lmcache")
    found, beside = host.tree.package("lmcache"), host.tree.package("vllm")
    if found is None:
        raise RuntimeError("LMCache was located, and then was not")
    schema = read_schema(partial(host.tree.content, "lmcache"), str(found.version))
    pair = pair_on(host, found.version, beside.version if beside else None)
    file = YamlFile("-", "")
    named = asked.config
    environ, launch = None, None
    shown, config_at = "", ""
    if asked.pid is not None:
        environ = environment.from_process(asked.pid)
        launch = server_of(environment.command_of(asked.pid))
        if launch is not None:
            launch = serve_file.followed(launch, pair.vllm, serve_file.of_process(asked.pid))
        found_at = environ.get(CONFIG_VARIABLE)
        if found_at and named is not None:
            config_at = compared(asked.pid, found_at)
        if asked.profile is None and named is None:
            # The one that the process itself was given; its variables alone where it was not.
            if found_at:
                named, shown = config_of(asked.pid, found_at)
                config_at = shown
            file = YamlFile(f"/proc/{asked.pid}/environ", "", written=False)
    if named is not None:
        file = read_yaml(named, shown)
    elif asked.profile is not None and templates.load(asked.profile).kind == "lmcache":
        settings = {}
        if asked.gds_path and templates.load(asked.profile).gds:
            settings["gds_path"] = asked.gds_path
        try:
            file = parse_yaml(render(asked.profile, schema, pair, settings).text)
        except KvpatchError as error:
            if error.code != "no-cure":
                raise
    values = effective(
        schema,
        file.values if file.readable else {},
        environ,
        launch.overrides if launch else None,
        alone=not file.written,
    )
    known = {name: values.get(name) for name in schema.keys}
    return _Seen(
        host, found.version, pair.vllm, schema, pair, known, file, environ, launch, config_at
    )


def _pair(seen: _Seen, profile: str | None) -> Iterator[Check]:
    if seen.vllm is None:
        yield fail("pair", f"LMCache {seen.lmcache}, and no vLLM beside it", "install vLLM")
    else:
        template = templates.load(profile or "blend")
        yield template_check(template, seen.pair)
        catalogued = catalogue_check(seen.vllm, seen.lmcache)
        yield catalogued
        yield patches_check(template, seen.pair, hopeless=catalogued.state is State.FAIL)
        yield runner_check(seen.vllm)
    found = distributions(seen.site)
    yield pins_check(found, "transformers")
    yield flashinfer_check(found)
    if seen.python is None:
        yield not_checked("LMCache's extension", "no interpreter was named", "give --python")
    else:
        answer = probe(
            "stack_probe", ["extension", str(seen.site)], limit=LOAD_LIMIT_S, python=seen.python
        )
        yield extension_check(answer, seen.lmcache)


def _configuration(seen: _Seen, pid: int | None) -> Iterator[Check]:
    if not seen.file.written:
        told = f"process {pid} has no {CONFIG_VARIABLE}: its variables are the configuration"
        yield not_checked("file", told, "give --config FILE if it was to have one")
    elif not seen.file.text and seen.file.path == "-":
        yield not_checked("file", "none was named", "give --config FILE or --profile NAME")
        if pid is None:
            return
    if pid is None:
        todo = "give --pid PID of a running vLLM process"
        yield not_checked("environment and flags", "no process was named", todo)
    else:
        yield ok("environment", f"read from process {pid}")
        if seen.launch is None:
            told = f"the command of process {pid} starts no vLLM server"
            yield not_checked("flags", told, "give the pid of the process that `vllm serve` is")
        elif seen.launch.config is not None and seen.launch.config.read:
            yield ok("vLLM's file", f"its options are read from {seen.launch.config.path}")
    python = seen.host.environment.interpreter
    around = Surroundings(
        seen.environ,
        pid is not None,
        seen.launch,
        seen.vllm,
        python.version[:2] if python else None,
        seen.pair.cured.get(_GDS),
        config_at=seen.config_at,
        ranks_agree=lambda: seen.pair.cured.get(_RANKS),
    )
    found = lint(seen.file, seen.schema, key_history.load(), around).findings
    yield from map(finding_check, found)
    if not any(finding.level is Level.ERROR for finding in found):
        yield ok(
            "file" if seen.file.written else "variables",
            "LMCache reads what is there as it is meant",
        )


def _model(seen: _Seen, asked: Asked, model: Model | None) -> Iterator[Check]:
    if model is None or asked.model is None:
        yield not_checked("model", "none was named", "give --model FOLDER")
        return
    taken = models_of(seen.host.tree)
    yield from model_checks(model, taken, cured=seen.pair.cured.get(_ROPE))
    if seen.values.get("enable_blending"):
        numbers = (
            seen.values.get(f"blend_{name}") for name in ("check_layers", "recompute_ratios")
        )
        row = check_layers_check(model, *numbers)
        yield from () if row is None else (row,)
    folder = asked.model if asked.model.is_dir() else asked.model.parent
    separator = seen.values.get("blend_special_str")
    if not isinstance(separator, str):
        yield not_checked("separator", "the configuration has none")
    else:
        answer = probe(
            "tokenizer_probe", [str(folder), separator], limit=LOAD_LIMIT_S, python=seen.python
        )
        yield separator_check(answer, separator, cured=seen.pair.cured.get(_TOKEN))


def _gds(seen: _Seen, asked: Asked) -> Iterator[Check]:
    given = asked.gds_path or seen.values.get("gds_path")
    if not isinstance(given, str) or given.startswith("/dev/null"):
        yield not_checked("gds mount", "no folder was named", "give --gds-path DIR")
        return
    buffer = seen.values.get("gds_buffer_size") or seen.values.get("cufile_buffer_size")
    nfs = False
    for folder in given.split(","):
        answer = probe(
            "storage_probe",
            [folder, "/proc/self/mountinfo", "write" if asked.write else "look"],
            limit=LIMIT_S,
        )
        mount = (answer.facts or {}).get("mount") or {}
        nfs = nfs or str(mount.get("type", "")).startswith("nfs")
        size = buffer if isinstance(buffer, int) else None
        yield from storage_checks(answer, size, str(seen.lmcache))
    if seen.python is not None:
        found = probe("stack_probe", ["cufile", str(seen.site)], limit=LIMIT_S, python=seen.python)
        yield library_check(found)
    yield from host_checks(probe("host_probe", ["/"], limit=LIMIT_S), nfs=nfs)


def _table(seen: _Seen, groups: Mapping[str, list[Check]]) -> str:
    beside = f"vLLM {seen.vllm}" if seen.vllm else "no vLLM"
    lines = [f"{beside} with LMCache {seen.lmcache}, in {seen.site}"]
    width = max(len(check.name) for checks in groups.values() for check in checks)
    for group, checks in groups.items():
        lines += ["", group]
        for check in checks:
            lines.append(f"  {check.state.value:11}  {check.name:{width}}  {check.reason}")
            if check.todo:
                lines.append(f"  {'':11}  {'':{width}}  -> {check.todo}")
    states = [check.state for checks in groups.values() for check in checks]
    counts = [f"{states.count(state)} {state.value}" for state in State]
    return "\n".join([*lines, "", ", ".join(counts)])
