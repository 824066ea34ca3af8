"""The verbs ``profiles`` and ``profile``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from . import bundle, model_fit, templates, ways_out
from .coercion import CONFIG_VARIABLE, effective
from .comments import comment
from .env_format import variables
from .fsops import Disk
from .host import Where
from .kv_size import width_of
from .made_for import MadeFor, made_for
from .model_config import LeftOutError, Model, read_model, served
from .outcome import ExitCode, KvpatchError, Report
from .place import lasting, options, quoted
from .release import version_of
from .render import Rendered, header, render
from .schema import Schema
from .serving import MODEL, shell
from .set_values import set_values
from .sizing import Wanted
from .templates import Pair, Template

# As a bundle has them.
_NAMES = {"yaml": bundle.CONFIG_NAME, "env": "vllm.env", "serve": "serve.sh"}


@dataclass(frozen=True)
class Asked:
    """What the user said besides the profile's name; None for what was not said."""

    format: str | None = None
    lmcache: str | None = None
    vllm: str | None = None
    model: Path | None = None
    tp: int = 1
    gpu_memory: float | None = None
    max_model_len: int | None = None
    kv_dtype: str = "auto"
    gds_path: str | None = None
    sets: tuple[str, ...] = ()
    strict: bool = False
    output: Path | None = None
    force: bool = False


def list_profiles() -> Report:
    """What there is to make."""
    infos = templates.profiles()
    width = max(len(info.name) for info in infos)
    lines = [f"{info.name:{width}}  {' '.join(info.purpose.split())}" for info in infos]
    data = [
        {
            "name": info.name,
            "purpose": " ".join(info.purpose.split()),
            "needs": list(info.needs),
            "tested": dict(info.tested),
        }
        for info in infos
    ]
    return Report("profiles", "\n".join(lines), {"profiles": data})


def run_profile(where: Where, disk: Disk, name: str, asked: Asked) -> Report:
    """The configuration for a use, as a pair understands it.

    Raises:
        KvpatchError: exit 2 for what can't be asked, 3 for a pair that can't run it, 4 for what
            can't be read or written.
    """
    template = templates.load(name)
    form = asked.format or ("yaml" if template.kind == "lmcache" else "serve")
    _check(template, form, asked)
    changes = set_values(asked.sets)
    lmcache, vllm = version_of("--lmcache", asked.lmcache), version_of("--vllm", asked.vllm)
    found = made_for(template, where, disk, lmcache=lmcache, vllm=vllm)
    schema = found.schema
    pair = replace(found.pair, ranks=asked.tp, by_layer=_by_layer(schema, changes))
    model: Model | None = None
    told: list[str] = []
    if asked.model is not None:
        model = _model(asked.model, template, found, asked.max_model_len)
        told.append(model_fit.refuse(template, pair, model, found.taken))
    dtype = model_fit.dtype_of(template, model)
    wanted = Wanted(
        model=replace(model, dtype=dtype) if model and dtype else model,
        model_path=None if asked.model is None else served(asked.model),
        ranks=asked.tp,
        gpu_gib=asked.gpu_memory,
        longest=asked.max_model_len,
        kv_dtype=asked.kv_dtype,
        dtype=dtype,
    )
    settings = {} if asked.gds_path is None else {"gds_path": asked.gds_path}
    folder = asked.output.absolute() if asked.output is not None else None
    if folder is not None and form in ("yaml", "bundle"):
        settings["output"] = str(folder / bundle.CONFIG_NAME if form == "bundle" else folder)
    try:
        ways_out.require(template, pair)
        there = options(vars(where))
        there = lasting(there) if form == "bundle" else there
        make = partial(render, name, schema, pair, settings, wanted, place=there)
        made = make(changes=changes)
    except KvpatchError as error:
        if error.code == "no-cure":
            error.hint = ways_out.instead(name, pair) or error.hint
        raise
    warned: tuple[str, ...] = ()
    if changes:
        from .set_checks import check

        warned = check(template, schema, pair, changes, make().text, made.text, model)
    if template.blends and wanted.model_path and found.programs:
        python, values = found.programs / "python", yaml.safe_load(made.text)
        warning, note = model_fit.separator_tried(pair, values, wanted.model_path, python)
        told.append(note)
        warned = (*warned, *filter(None, [warning]))
    if warned:
        made = make(changes=changes, told=warned)
    text = _text(form, template, pair, schema, made)
    notes = [*_notes(made), *(f"note: {one}" for one in told if one)]
    written: list[str] = []
    if form == "bundle" and folder is not None:
        texts = bundle.files(template, pair, made, folder, found.programs, _checked(where, asked))
        bundle.write(folder, texts, force=asked.force)
        written = [str(folder / one) for one in texts]
        notes.insert(0, f"wrote {len(texts)} files to {folder}")
    elif folder is not None:
        _save(folder, text, force=asked.force)
        written = [str(folder)]
        notes.insert(0, f"wrote {asked.output}")
        text = ""
    data = {**_data(name, pair, made, settings), "format": form, "written": written}
    report = Report("profile", text, data, notes=tuple(notes))
    if asked.strict and not made.runs:
        count = sum(need.present is not True for need in made.needs)
        missing = KvpatchError(
            "needs-missing",
            f"--strict: not all that this profile needs is known to be in place ({count} missing)",
            "see the lines above it, or data.needs with --json",
            ExitCode.NO,
        )
        return replace(report, exit_code=ExitCode.NO, errors=(missing,))
    return report


def _checked(where: Where, asked: Asked) -> tuple[str, ...]:
    """The options by which ``kvpatch lint`` finds what the profile was made for."""
    named = options({"python": where.python, "site": where.site})
    releases = (("--lmcache", asked.lmcache), ("--vllm", asked.vllm))
    return (*lasting(named), *(word for name, one in releases if one for word in (name, one)))


def _model(path: Path, template: Template, found: MadeFor, longest: int | None) -> Model:
    python = found.programs / "python" if found.programs else None
    try:
        return read_model(path, longest=longest, python=python)
    except LeftOutError as error:
        model_fit.refuse_class(template, error, served(path).name, found.taken)
        if "max_position_embeddings" in error.message:
            error.hint += "; --max-model-len stands in for max_position_embeddings"
        if python is None:
            error.hint += "; with --python PYTHON the transformers there is asked"
        raise
    except KvpatchError as error:
        if error.code == "no-model":
            error.hint += f"; leave it out, and write a name on the hub for {MODEL}"
        raise


def _check(template: Template, form: str, asked: Asked) -> None:
    if form == "bundle" and asked.output is None:
        raise KvpatchError(
            "no-output",
            "a bundle is a folder of files",
            "say where: -o DIR",
            ExitCode.USAGE,
        )
    if asked.output is not None:
        _check_output(asked.output, form)
    if asked.format is None and asked.output and asked.output.suffix in (".yaml", ".yml"):
        form = "yaml"
    if template.kind != "lmcache" and form in ("yaml", "env"):
        raise KvpatchError(
            "no-file",
            f"{template.name} has no LMCache file: all of it is in the command",
            "take --format serve or --format bundle",
            ExitCode.USAGE,
        )
    if asked.kv_dtype != "auto":
        width_of(asked.kv_dtype)
    if asked.gpu_memory is not None and asked.gpu_memory <= 0:
        raise KvpatchError(
            "bad-number", "--gpu-memory must be above 0", "give it in GiB", ExitCode.USAGE
        )


def _check_output(output: Path, form: str) -> None:
    if form == "bundle" and output.exists() and not output.is_dir():
        raise KvpatchError(
            "no-folder",
            f"-o {output} is a file, and a bundle is a folder of files",
            f"name a folder, or one that is not there yet, such as -o {quoted(f'{output}.d')}",
            ExitCode.USAGE,
        )
    if form != "bundle" and output.is_dir():
        raise KvpatchError(
            "no-file-name",
            f"-o {output} is a folder, and --format {form} makes one file",
            f"name the file: -o {quoted(str(output / _NAMES[form]))}; or take --format bundle",
            ExitCode.USAGE,
        )


def _by_layer(schema: Schema, changes: Mapping[str, Any]) -> bool:
    """Whether LMCache takes what is set for storing and loading layer by layer."""
    name = "use_layerwise"
    return name in changes and bool(effective(schema, {name: changes[name]}).get(name))


def _text(form: str, template: Template, pair: Pair, schema: Schema, made: Rendered) -> str:
    top = header(template, pair, made)
    if form == "yaml":
        return made.text.rstrip("\n")
    if form == "serve":
        return bundle.script(top, made.serve)
    if form == "bundle":
        return ""
    found = variables(schema, yaml.safe_load(made.text))
    lines = [*top, "#"]
    lines.append("# For a shell (set -a; . FILE) or systemd's EnvironmentFile. Docker's --env-file")
    lines.append(
        "# keeps quotes, and so does not read it as meant. No LMCACHE_CONFIG_FILE beside it."
    )
    for name in found.left_out:
        lines.append(f"# {name} stops this LMCache as a variable: write it in a file, or give")
        lines.append(f"# lmcache.{name} in vLLM's kv_connector_extra_config.")
    lines += [
        "#",
        "# Start vLLM so:",
        *(f"#   {one}" for one in shell(made.serve.argv).split("\n")),
        *comment(made.serve.why),
    ]
    named = {name: text for name, text in made.serve.environ.items() if name != CONFIG_VARIABLE}
    return "\n".join(
        [*lines, *(f"{name}={quoted(text)}" for name, text in named.items()), *found.lines]
    )


def _notes(made: Rendered) -> list[str]:
    missing = [need for need in made.needs if need.present is not True]
    lines = []
    for need in missing:
        state = "not in place" if need.present is False else "not looked at"
        lines.append(f"{state}: {need.sentence}")
    lines += [f"first: {hint}" for hint in dict.fromkeys(need.hint for need in missing)]
    lines += [f"warning: {one}" for one in made.warnings]
    return [*lines, *(f"note: {one}" for one in made.notes)]


def _data(name: str, pair: Pair, made: Rendered, settings: Mapping[str, str]) -> Mapping[str, Any]:
    return {
        "profile": name,
        "lmcache": str(pair.lmcache) if pair.lmcache else None,
        "vllm": str(pair.vllm) if pair.vllm else None,
        "yaml": made.text,
        "output": settings.get("output"),
        "serve": {
            "environ": dict(made.serve.environ),
            "argv": list(made.serve.argv),
            "server": list(made.serve.server),
        },
        "numbers": {
            "bytes_per_token": made.numbers.token_bytes,
            "gds_buffer_mib": made.numbers.buffer_mib,
            "cpu_gib": made.numbers.cpu_gib,
            "gpu_memory_utilization": made.numbers.share,
        },
        "needs": [
            {
                "id": need.id,
                "what": need.what,
                "present": need.present,
                "hint": need.hint,
                "patches": list(need.patches),
            }
            for need in made.needs
        ],
        "warnings": list(made.warnings),
        "notes": list(made.notes),
        "runs": made.runs,
    }


def _save(output: Path, text: str, *, force: bool) -> None:
    try:
        with output.open("w" if force else "x", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except FileExistsError as error:
        raise KvpatchError(
            "exists",
            f"{output} is there already, and was left as it is",
            "name another file, or write over it with --force",
        ) from error
    except OSError as error:
        raise KvpatchError(
            "not-written",
            f"{output} can't be written: {error.strerror}",
            "name a file in a folder that is there and may be written",
            ExitCode.ENVIRONMENT,
        ) from error
