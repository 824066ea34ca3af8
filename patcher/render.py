"""LMCache configurations for a use: templates from ``profiles/``, in the keys of one release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from . import __version__, key_history, layer_dtype, model_fit
from .comments import comment
from .outcome import ExitCode, KvpatchError
from .place import addressed
from .profile_body import body
from .schema import EXTRA, Schema
from .serving import Serve, serving
from .sizing import Numbers, Wanted, folder_for, numbers
from .templates import Pair, ProfileNeed, Template, load

_OUTPUT = "output"
_GDS_PATH = "gds_path"
_BUFFERS = ("gds_buffer_size", "cufile_buffer_size")
# On this LMCache stops at start and names it. A folder that is merely missing it would make, on
# whatever file system is there.
_PLACEHOLDER = "/dev/null/set-gds_path-to-a-mounted-folder"
_SOMEWHERE = "/path/to/this/file.yaml"


@dataclass(frozen=True)
class Rendered:
    """A configuration, and what has to be known of it: for stderr too, not only in its header.

    Attributes:
        text: the YAML; empty for a profile that LMCache's in-process code has no part in.
        needs: what has to hold besides.
        warnings: of this pair.
        notes: of this file.
        serve: how vLLM is started with it.
        numbers: what was computed.
    """

    text: str
    needs: tuple[ProfileNeed, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    serve: Serve
    numbers: Numbers

    @property
    def runs(self) -> bool:
        """Whether all that it needs is known to be in place."""
        return all(need.present for need in self.needs)


def render(
    name: str,
    schema: Schema,
    pair: Pair,
    settings: Mapping[str, str],
    wanted: Wanted | None = None,
    changes: Mapping[str, Any] | None = None,
    place: Sequence[str] = (),
    told: Sequence[str] = (),
) -> Rendered:
    """The profile in the keys that this LMCache defines, as ASCII YAML with comments.

    Args:
        name: one of :func:`kvpatch.templates.names`.
        schema: the keys of the LMCache release.
        pair: what it is for.
        settings: those of the template (``gds_path``: an absolute folder), and ``output``: the
            absolute path of the file that the text will be in.
        wanted: model and machine.
        changes: keys that get another value than the template's.
        place: the options that name the environment, for the command lines in the text.
        told: what else is to be warned of.

    Raises:
        KvpatchError: ``unknown-profile``, ``unknown-setting``, ``bad-path``, ``no-file``,
            ``unknown-key``, ``two-paths`` (exit 2); ``no-key`` (exit 3): this LMCache lacks a key
            that the profile can't do without; ``no-cure`` (exit 3): the pair can't run it;
            ``kv-dtype`` (exit 3): not with that dtype.
    """
    template = load(name)
    template.require(pair)
    if changes and template.kind != "lmcache":
        raise KvpatchError(
            "no-file",
            f"{name} has no LMCache file, so --set has nothing to set",
            "leave --set out, and edit the command that it prints",
            ExitCode.USAGE,
        )
    changes = _known(changes or {}, schema)
    wanted = _as_changed(wanted or Wanted(), changes)
    _check_dtype(template, pair, wanted)
    made = numbers(wanted, gds=template.gds, vllm=pair.vllm)
    folder = _folder(template, settings, wanted, pair, schema)
    config = settings.get(_OUTPUT) or _SOMEWHERE
    if not config.isprintable():
        config = _SOMEWHERE
    serve = serving(
        template,
        pair,
        wanted,
        made,
        config=config,
        folder=settings.get(_GDS_PATH),
        extra=changes.get("extra_config"),
    )
    notes = [*serve.notes]
    given = settings.get(_GDS_PATH)
    if template.gds and given is not None and _GDS_PATH in changes:
        raise KvpatchError(
            "two-paths",
            f"--gds-path and --set {_GDS_PATH} both name the folder",
            "give one of the two; below that of --gds-path each model gets its own",
            ExitCode.USAGE,
        )
    if template.gds and given is None and _GDS_PATH not in changes:
        notes.append(f"{_GDS_PATH} is a placeholder, on which LMCache stops at start: set it.")
    elif template.gds and given not in (None, folder):
        notes.append(
            f"{_GDS_PATH} is {folder!a}: a folder of its own for this model, number of ranks and "
            f"LMCache release, below the given {given!a}."
        )
    needs = [
        replace(need, hint=addressed(need.hint, place, in_ascii=True))
        for need in template.needs(pair)
    ]
    served = str(wanted.model_path) if wanted.model_path else None
    warned = (*template.warnings(pair, served), *model_fit.warnings(template, wanted, made), *told)
    done = Rendered("", tuple(needs), warned, tuple(notes), serve, made)
    if template.kind != "lmcache":
        return done
    values = {
        _GDS_PATH: folder,
        "buffer": made.buffer_mib,
        "staging": made.staging_gib,
        "cpu_memory": made.cpu_gib,
        "prompt": made.prompt,
        "cpu_prompt": made.cpu_prompt,
    }
    lines = [*header(template, pair, done), "#", *_launch(serve)]
    lines += body(template, schema, values, changes)
    return replace(done, text="\n".join(lines) + "\n")


def _check_dtype(template: Template, pair: Pair, wanted: Wanted) -> None:
    if template.by_layer(pair) and layer_dtype.refused(wanted.kv_dtype, pair.lmcache, pair.vllm):
        raise KvpatchError(
            "kv-dtype",
            f"vLLM {pair.vllm} can't run {template.name} so: {layer_dtype.told(wanted.kv_dtype)}",
            "leave --kv-dtype at auto",
        )


def _as_changed(wanted: Wanted, changes: Mapping[str, Any]) -> Wanted:
    """What is wanted, with the size of a buffer that --set gives: vLLM's share hangs on it."""
    given = [changes[name] for name in _BUFFERS if type(changes.get(name)) is int]
    return replace(wanted, buffer_mib=given[0]) if given and given[0] > 0 else wanted


def _known(changes: Mapping[str, Any], schema: Schema) -> Mapping[str, Any]:
    for name in changes:
        outer = name.partition(".")[0]
        if outer not in schema.keys or (outer != name and outer != EXTRA):
            raise KvpatchError(
                "unknown-key",
                f"LMCache {schema.version} has no key {name}",
                _instead(name, schema),
                ExitCode.USAGE,
            )
    return changes


def _instead(name: str, schema: Schema) -> str:
    """What to set in the place of a key that this release does not have."""
    history, inner = key_history.load(), f"{EXTRA}.{name}"
    if inner in history.spans and schema.has(inner):
        return f"it is read inside {EXTRA}: --set {inner}=VALUE"
    renaming = history.renaming(name, schema) or history.renaming(inner, schema)
    if renaming is not None:
        return f"it is {renaming.name} here (LMCache {renaming.since} renamed it)"
    close = key_history.nearest(name, [*schema.keys])
    return f"the nearest is {close}" if close else "`kvpatch profile` without --set shows its keys"


def _folder(
    template: Template, settings: Mapping[str, str], wanted: Wanted, pair: Pair, schema: Schema
) -> str:
    allowed = {_OUTPUT, *template.own.get("settings", ())}
    if template.kind == "vllm":
        allowed.add(_GDS_PATH)
    for name in settings:
        if name not in allowed:
            raise KvpatchError(
                "unknown-setting",
                f"the profile {template.name} has no {_option(name)}",
                _settings_of(template.name, allowed - {_OUTPUT}),
                ExitCode.USAGE,
            )
    if _GDS_PATH not in settings:
        return _PLACEHOLDER
    several = schema.has("gds_path_sharding") if template.gds else None
    found = _folders(_GDS_PATH, settings[_GDS_PATH], several=several)
    if wanted.model is None:
        return found
    return ",".join(folder_for(one, wanted, pair.lmcache) for one in found.split(","))


def _settings_of(name: str, allowed: set[str]) -> str:
    """A sentence about the settings that a profile has."""
    if not allowed:
        return f"leave it out: {name} keeps nothing on storage; gds-blend and gds do"
    return f"it has {', '.join(map(_option, sorted(allowed)))}"


def _option(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def _folders(name: str, value: str, *, several: bool | None) -> str:
    option = _option(name)
    if not value.isprintable():
        # Line ends, control characters and bytes that are no text among them.
        raise _bad_path(option, value, "has a character that can't be printed")
    if "," in value and several is False:
        raise _bad_path(option, value, "has a comma, and this LMCache takes one folder")
    # vLLM's own tier takes one folder, commas and all.
    folders = [value] if several is None else value.split(",")
    for folder in folders:
        if folder != folder.strip():
            raise _bad_path(option, value, "has a space at an end, which LMCache drops")
        if not PurePosixPath(folder).is_absolute():
            why = "is not an absolute path"
            if len(folders) > 1:
                why = f"has a comma, at which LMCache parts it, and {folder!a} {why}"
            raise _bad_path(option, value, why)
        if ".." in PurePosixPath(folder).parts:
            raise _bad_path(option, value, "has .. in it")
    return value


def _bad_path(option: str, value: str, why: str) -> KvpatchError:
    return KvpatchError(
        "bad-path",
        f"{option} {value!a} {why}",
        "name an absolute folder on the mounted storage, such as /mnt/nvme/lmcache",
        ExitCode.USAGE,
    )


def header(template: Template, pair: Pair, made: Rendered) -> list[str]:
    """What stands at the top of every text of a profile, as comment lines."""
    vllm = f"vLLM {pair.vllm}" if pair.vllm else "no vLLM beside it"
    lines = comment(f"{template.purpose} Made by kvpatch {__version__} (profile {template.name}).")
    lmcache = f"LMCache {pair.lmcache} and {vllm}" if pair.lmcache else vllm
    lines += ["#", f"# For {lmcache}."]
    first = tuple(template.untested(pair))
    for sentence in first:
        lines += ["#", *comment(f"WARNING: {sentence}")]
    if made.needs:
        lines.append("#")
        lines.append(f"# What it needs besides this file:{_verdict(template, pair, made)}")
    for need in made.needs:
        state = {True: "in place", False: "MISSING", None: "not known"}[need.present]
        rest = "" if need.present else f": {need.hint}"
        lines += comment(f"[{state}] {label(need)}, {need.what}{rest}", "- ")
    others = [one for one in made.warnings if one not in first]
    for word, sentences in (("WARNING", others), ("Note", made.notes)):
        for sentence in sentences:
            lines += ["#", *comment(f"{word}: {sentence}")]
    return lines


def label(need: ProfileNeed) -> str:
    """A need's id, and the patches that see to it where they are called otherwise."""
    others = [patch for patch in need.patches if patch != need.id]
    return f"{need.id} ({', '.join(others)})" if others else need.id


def _verdict(template: Template, pair: Pair, made: Rendered) -> str:
    if made.runs:
        return " all of it is in place."
    if pair.absent:
        return f" {' AND '.join(pair.absent)} IS NOT INSTALLED THERE."
    if any(need.present is False for need in made.needs):
        if not template.blends:
            return " NOT ALL OF IT IS IN PLACE."
        return " TODAY THIS PAIR DOES NOT RUN IT."
    return " NO HOST WAS LOOKED AT."


def _launch(serve: Serve) -> list[str]:
    """How vLLM is started, as comment lines."""
    from .serving import quoted, shell

    exports = [f"#   export {name}={quoted(value)}" for name, value in serve.environ.items()]
    return [
        "# Start vLLM with it so (without export its worker processes don't see the file):",
        *exports,
        *(f"#   {line}" for line in shell(serve.argv).splitlines()),
        *comment(serve.why),
    ]
