"""The verb ``doctor``: one table of what this host, pair, model and configuration come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from . import dependencies, key_history
from .coercion import CONFIG_VARIABLE
from .diagnosis import Check, State, fail, not_checked, ok
from .finding_checks import finding_check
from .fsops import Disk
from .host import Where
from .host_checks import host_checks, library_check
from .lint import Linted, lint
from .lint_graphs import full_graphs
from .model_checks import (
    check_layers_check,
    fit_check,
    left_out_checks,
    model_checks,
)
from .model_fit import separator_row
from .model_runner import VARIABLE
from .outcome import ExitCode, KvpatchError, Report
from .pair_checks import (
    CLI,
    catalogue_check,
    command_check,
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
from .prompt_size import prompt_mib
from .remedy import RUN, remedy
from .rules import Level, one_line
from .secrecy import masked
from .sizing import Wanted, numbers
from .storage_checks import storage_checks
from .subject import Asked, Subject, subject_of
from .surroundings import Surroundings

LIMIT_S = 10.0
LOAD_LIMIT_S = 180.0
_ROPE, _TOKEN, _GDS, _RANKS = "KV003", "KV007", "KV009", "KV012"


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
    seen = subject_of(where, disk, asked)
    groups = {
        "pair": [*_pair(seen)],
        "configuration": [*_configuration(seen, asked.pid)],
        "model": [*_model(seen, asked)],
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


def _pair(seen: Subject) -> Iterator[Check]:
    template = seen.template
    if seen.vllm is None:
        yield fail("pair", f"LMCache {seen.lmcache}, and no vLLM beside it", "install vLLM")
    else:
        yield template_check(template, seen.pair)
        catalogued = catalogue_check(template, seen.vllm, seen.lmcache)
        yield catalogued
        yield patches_check(template, seen.pair, hopeless=catalogued.state is State.FAIL)
        said = (seen.environ or {}).get(VARIABLE)
        # Nothing is known of graphs where no process was named.
        full = seen.launch is None or full_graphs(seen.launch, seen.vllm) is not False
        full = full and not seen.on_cpu
        inside = seen.launch is None or not seen.launch.elsewhere(seen.vllm)
        yield runner_check(template, seen.vllm, said, full=full, inside=inside)
    found = distributions(seen.site)
    if vllm := seen.host.environment.packages.get("vllm"):
        main = seen.host.tree.content("vllm", CLI)
        beside = found if vllm.site == seen.site else distributions(vllm.site)
        command = command_check(beside, vllm.distribution, main)
        yield from [command] if command else []
    yield pins_check(found, "transformers", seen.python)
    yield flashinfer_check(found, seen.python)
    if template.kind == "vllm":
        yield not_checked("LMCache's extension", f"{template.name} does without LMCache")
    elif seen.python is None:
        yield not_checked("LMCache's extension", "no interpreter was named", "give --python")
    else:
        answer = probe(
            "stack_probe", ["extension", str(seen.site)], limit=LOAD_LIMIT_S, python=seen.python
        )
        yield extension_check(answer, seen.lmcache)
        yield dependencies.look(seen.host.tree, seen.python, found)


def _configuration(seen: Subject, pid: int | None) -> Iterator[Check]:
    if seen.template.kind != "lmcache":
        told = f"{seen.template.name} has no LMCache file: all of it is in the command"
        yield not_checked("file", told)
        return
    linted = _linted(seen, pid)
    set_there = linted.effective.values.values() if linted.effective else ()
    configured = seen.file.written or any(one.source != "default" for one in set_there)
    elsewhere = seen.launch.elsewhere(seen.vllm) if seen.launch else ""
    if not seen.file.written and elsewhere:
        told = f"{one_line(masked(elsewhere))} keeps vLLM's chunks, and reads no file of LMCache's"
        yield not_checked("file", told)
    elif not seen.file.written and configured:
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
    yield from map(finding_check, linted.findings)
    failed = any(finding.level is Level.ERROR for finding in linted.findings)
    if configured and not elsewhere and not failed and not seen.config_changed:
        yield ok(
            "file" if seen.file.written else "variables",
            "LMCache reads what is there as it is meant",
        )


def _linted(seen: Subject, pid: int | None) -> Linted:
    """What lint says of the configuration where it runs."""
    python = seen.host.environment.interpreter
    around = Surroundings(
        environ=seen.environ,
        running=pid is not None,
        launch=seen.launch,
        vllm=seen.vllm,
        python=python.version[:2] if python else None,
        gds_blends=seen.pair.cured.get(_GDS),
        config_at=seen.config_at,
        ranks_agree=lambda: seen.pair.cured.get(_RANKS),
        on_cpu=seen.on_cpu,
        config_changed=seen.config_changed,
        prompt_mib=lambda: prompt_mib(seen.launch),
    )
    return lint(seen.file, seen.schema, key_history.load(), around)


def _model(seen: Subject, asked: Asked) -> Iterator[Check]:
    model = seen.model
    if asked.model is None:
        yield not_checked("model", "none was named", "give --model FOLDER")
        return
    taken = models_of(seen.host.tree) if seen.template.blends else ()
    if seen.left_out is not None:
        yield from left_out_checks(seen.left_out, taken)
    elif model is not None and not seen.template.blends:
        yield fit_check(model, seen.template)
    elif model is not None:
        cured = seen.pair.cured.get(_ROPE)
        yield from model_checks(model, taken, cured=cured, served=_dtype(seen))
    if not seen.template.blends:
        return
    if model is not None and seen.values.get("enable_blending"):
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
        cured = seen.pair.cured.get(_TOKEN)
        yield separator_row(folder, separator, cured=cured, limit=LOAD_LIMIT_S, python=seen.python)


def _dtype(seen: Subject) -> str | None:
    """The dtype that the command names; empty for none, None where it is not known."""
    if seen.launch is None or not seen.launch.known or seen.launch.is_unread("dtype"):
        return None
    found = seen.launch.last("dtype")
    return found if isinstance(found, str) else ""


def _gds(seen: Subject, asked: Asked) -> Iterator[Check]:
    given = asked.gds_path or seen.values.get("gds_path")
    if not isinstance(given, str) or given.startswith("/dev/null"):
        yield not_checked("gds mount", "no folder was named", "give --gds-path DIR")
        return
    prompt = _prompt_mib(seen)
    nfs = False
    for folder in given.split(","):
        answer = probe(
            "storage_probe",
            [folder, "/proc/self/mountinfo", "write" if asked.write else "look"],
            limit=LIMIT_S,
        )
        mount = (answer.facts or {}).get("mount") or {}
        nfs = nfs or str(mount.get("type", "")).startswith("nfs")
        yield from storage_checks(answer, prompt, str(seen.lmcache))
    if seen.template.kind == "vllm":
        # vLLM's own tier reads and writes by itself.
        return
    if seen.python is not None:
        found = probe("stack_probe", ["cufile", str(seen.site)], limit=LIMIT_S, python=seen.python)
        yield library_check(found, seen.python)
    yield from host_checks(probe("host_probe", ["/"], limit=LIMIT_S), nfs=nfs)


def _prompt_mib(seen: Subject) -> int | None:
    """What the longest prompt takes: of the model, or as a GDS buffer is made to hold one."""
    if seen.model is not None:
        return numbers(Wanted(model=seen.model), gds=True).buffer_mib
    buffer = seen.values.get("gds_buffer_size") or seen.values.get("cufile_buffer_size")
    return buffer if isinstance(buffer, int) else None


def _table(seen: Subject, groups: Mapping[str, list[Check]]) -> str:
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
