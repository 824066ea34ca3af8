"""LMCache configurations for a use: templates from ``profiles/``, in the keys of one release."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import PurePosixPath
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from . import __version__
from .outcome import ExitCode, KvpatchError
from .schema import Schema

_WIDTH = 98
_OUTPUT = "output"
# From here on vLLM reads use_layerwise in the connector's extra config to choose its CUDA graphs.
_BARE_SETTING = Version("0.17.0")


@dataclass(frozen=True)
class Pair:
    """What a profile is rendered for.

    ``vllm`` is None where there is none, ``registered`` (whether the patches that tell LMCache of
    the model are in place) where nobody looked.
    """

    lmcache: Version
    vllm: Version | None = None
    registered: bool | None = None


@dataclass(frozen=True)
class ProfileNeed:
    """Something that has to hold besides a profile's file; ``present`` is None where it is unknown.

    ``id`` is that of a patch of this kvpatch, or a letter for what it has no patch for.
    """

    id: str
    what: str
    hint: str
    present: bool | None


@dataclass(frozen=True)
class ProfileInfo:
    """What a template says of itself. ``tested`` has a specifier set for each distribution."""

    name: str
    purpose: str
    needs: tuple[str, ...]
    tested: Mapping[str, str]


@dataclass(frozen=True)
class Rendered:
    """A configuration, and what has to be known of it: for stderr too, not only in its header."""

    text: str
    needs: tuple[ProfileNeed, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> bool:
        """Whether all that it needs is known to be in place."""
        return all(need.present for need in self.needs)


def profiles() -> tuple[ProfileInfo, ...]:
    """What there is to render, by name."""
    found = []
    for name in _names():
        template = _template(name)
        needs = tuple(str(need["what"]) for need in template["needs"])
        found.append(ProfileInfo(name, str(template["purpose"]), needs, template["tested"]))
    return tuple(found)


def render(name: str, schema: Schema, pair: Pair, settings: Mapping[str, str]) -> Rendered:
    """The profile in the keys that this LMCache defines, as ASCII YAML with comments.

    Args:
        name: one of :func:`profiles`.
        schema: the keys of the installed LMCache.
        pair: what is installed.
        settings: those of the template (``gds_path``: an absolute folder), and ``output``: the
            absolute path of the file that the text will be in.

    Raises:
        KvpatchError: ``unknown-profile``, ``unknown-setting``, ``bad-path`` (exit 2); ``no-key``
            (exit 3): this LMCache lacks a key that the profile can't do without.
    """
    template = _template(name)
    needs = tuple(_needs(template, pair))
    values = _settings(template, settings, several=schema.has("gds_path_sharding"))
    warnings = tuple(one["sentence"] for one in template["warnings"] if _concerns(one, pair))
    notes = tuple(_notes(template, pair, settings))
    made = Rendered("", needs, warnings, notes)
    body = _body(name, template, schema, values)
    lines = [*_header(name, template["purpose"], pair, made), "#"]
    lines += [*_launch(template, pair, settings.get(_OUTPUT)), *body]
    return replace(made, text="\n".join(lines) + "\n")


def _names() -> list[str]:
    files = resources.files(f"{__package__}.profiles").iterdir()
    return sorted(file.name[: -len(".yaml")] for file in files if file.name.endswith(".yaml"))


def require(name: str) -> None:
    """See that there is such a profile.

    Raises:
        KvpatchError: ``unknown-profile``, exit 2.
    """
    names = _names()
    if name not in names:
        raise KvpatchError(
            "unknown-profile",
            f"there is no profile {name!r}",
            f"take one of: {', '.join(names)}",
            ExitCode.USAGE,
        )


def _template(name: str) -> Mapping[str, Any]:
    require(name)
    text = resources.files(f"{__package__}.profiles").joinpath(f"{name}.yaml").read_text("utf-8")
    template: Mapping[str, Any] = yaml.safe_load(text)
    return template


def _needs(template: Mapping[str, Any], pair: Pair) -> Iterator[ProfileNeed]:
    for need in template["needs"]:
        concerns = _concerns(need, pair)
        if concerns is False:
            continue
        given = need.get("given") == "registration"
        present = pair.registered if given else False if concerns else None
        yield ProfileNeed(need["id"], need["what"], need["hint"], present)


def _concerns(what: Mapping[str, Any], pair: Pair) -> bool | None:
    """Whether it is about this pair; None where that hangs on a version that is not known."""
    found = [_matches(specs, pair) for specs in what.get("pairs", [{}])]
    return True if True in found else None if None in found else False


def _matches(specs: Mapping[str, str], pair: Pair) -> bool | None:
    unknown = False
    for package, spec in specs.items():
        version: Version | None = getattr(pair, package)
        if version is None:
            unknown = True
        elif not SpecifierSet(spec).contains(version, prereleases=True):
            return False
    return None if unknown else True


def _settings(
    template: Mapping[str, Any], settings: Mapping[str, str], *, several: bool
) -> Mapping[str, str]:
    known = template["settings"]
    for name in settings:
        if name not in known and name != _OUTPUT:
            raise KvpatchError(
                "unknown-setting",
                f"this profile has no setting {name!r}",
                f"it has: {', '.join(known)}",
                ExitCode.USAGE,
            )
    values = {name: str(what["default"]) for name, what in known.items()}
    for name in known.keys() & settings.keys():
        values[name] = _folders(name, settings[name], several=several)
    return values


def _folders(name: str, value: str, *, several: bool) -> str:
    option = f"--{name.replace('_', '-')}"
    if not value.isprintable():
        # Line ends, control characters and bytes that are no text among them.
        raise _bad_path(option, value, "has a character that can't be printed")
    if "," in value and not several:
        raise _bad_path(option, value, "has a comma, and this LMCache takes one folder")
    for folder in value.split(","):
        if folder != folder.strip():
            raise _bad_path(option, value, "has a space at an end, which LMCache drops")
        if not PurePosixPath(folder).is_absolute():
            raise _bad_path(option, value, "is not an absolute path")
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


def _notes(template: Mapping[str, Any], pair: Pair, settings: Mapping[str, str]) -> Iterator[str]:
    for package, spec in template["tested"].items():
        version: Version | None = getattr(pair, package)
        if version is not None and not SpecifierSet(spec).contains(version, prereleases=True):
            yield f"This profile was made for {package} {spec}, not for {version}."
    for name in template["settings"]:
        if name not in settings:
            yield f"{name} is a placeholder, on which LMCache stops at start: set it."


def _header(name: str, purpose: str, pair: Pair, made: Rendered) -> list[str]:
    vllm = f"vLLM {pair.vllm}" if pair.vllm else "no vLLM beside it"
    lines = _comment(f"{purpose} Made by kvpatch {__version__} (profile {name}).")
    lines += ["#", f"# For LMCache {pair.lmcache} and {vllm}.", "#"]
    verdict = "" if made.runs else " TODAY THIS PAIR DOES NOT RUN IT."
    lines.append(f"# What it needs besides this file:{verdict}")
    for need in made.needs:
        state = {True: "in place", False: "MISSING", None: "not known"}[need.present]
        rest = "" if need.present else f": {need.hint}"
        lines += _comment(f"[{state}] {need.id}, {need.what}{rest}", "- ")
    for label, sentences in (("WARNING", made.warnings), ("Note", made.notes)):
        for sentence in sentences:
            lines += ["#", *_comment(f"{label}: {sentence}")]
    return lines


def _launch(template: Mapping[str, Any], pair: Pair, output: str | None) -> list[str]:
    """How vLLM is started with the file ``output``."""
    if output is None or not output.isprintable():
        output = "/path/to/this/file.yaml"
    quoted = shlex.quote(output) if output.isascii() else f"$'{_escaped(output)}'"
    transfer: dict[str, Any] = dict(_connector(template, pair))
    transfer["kv_role"] = "kv_both"
    piecewise = pair.vllm is not None and pair.vllm >= _BARE_SETTING
    if piecewise:
        transfer["kv_connector_extra_config"] = {"use_layerwise": True}
        why = (
            "The bare use_layerwise makes vLLM take piecewise CUDA graphs, which blending needs; "
            "vLLM does not see the key below."
        )
    else:
        why = (
            "Blending needs piecewise CUDA graphs or none. Only from vLLM 0.17 on "
            '"kv_connector_extra_config": {"use_layerwise": true} gives the former.'
        )
    return [
        "# Start vLLM with it so (without export its worker processes don't see the file):",
        f"#   export LMCACHE_CONFIG_FILE={quoted}",
        "#   export PYTHONHASHSEED=0",
        "#   vllm serve MODEL --no-enable-prefix-caching \\",
        *([] if piecewise else ["#     --enforce-eager \\"]),
        f"#     --kv-transfer-config '{json.dumps(transfer)}'",
        *_comment(why),
        "# Lower --gpu-memory-utilization by the GDS buffer: no release of vLLM counts it.",
    ]


def connector(pair: Pair) -> Mapping[str, str]:
    """How vLLM's ``--kv-transfer-config`` names LMCache's in-process connector."""
    return _connector(_template("gds-blend"), pair)


def _connector(template: Mapping[str, Any], pair: Pair) -> Mapping[str, str]:
    found: Mapping[str, str] = next(
        one["config"] for one in template["connectors"] if _concerns(one, pair)
    )
    return found


def _escaped(text: str) -> str:
    """For a shell's ``$'...'``: ASCII, each other byte as an escape."""
    plain = set(range(0x20, 0x7F)) - {0x27, 0x5C}
    return "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in text.encode())


def _comment(text: str, first: str = "") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=f"# {first}",
        subsequent_indent="# " + " " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _body(
    profile: str, template: Mapping[str, Any], schema: Schema, values: Mapping[str, str]
) -> Iterator[str]:
    nested: list[str] = []
    for entry in template["entries"]:
        line = _fitting(entry, schema)
        if line is None:
            if "refuse" in entry:
                raise KvpatchError(
                    "no-key",
                    f"LMCache {schema.version} can't run {profile}: {entry['refuse']}",
                    "install an LMCache release that has it, from 0.3.3 on, or a newer kvpatch",
                )
            yield from ["", *_comment(entry["absent"])]
            continue
        comment = _comment(line["why"])
        top = {name: value for name, value in line["keys"].items() if "." not in name}
        if top:
            yield from ["", *comment]
            yield from (f"{name}: {_dumped(value, values)}" for name, value in top.items())
        for name, value in line["keys"].items():
            if name not in top:
                nested += [f"  {text}" for text in comment]
                nested.append(f"  {name.partition('.')[2]}: {_dumped(value, values)}")
    if nested:
        yield from ["", "extra_config:", *nested]


def _fitting(entry: Mapping[str, Any], schema: Schema) -> Mapping[str, Any] | None:
    for line in entry["lines"]:
        if all(schema.has(name) for name in line["keys"]):
            found: Mapping[str, Any] = line
            return found
    return None


def _dumped(value: object, values: Mapping[str, str]) -> str:
    """The value as it stands in YAML, on one line; strings that are no plain word are quoted."""
    if isinstance(value, str) and value.startswith("{") and value.endswith("}"):
        value = values[value[1:-1]]
    if isinstance(value, str) and not value.isidentifier():
        return _one_line(value, style='"')
    return _one_line(value)


def _one_line(value: object, style: str | None = None) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, default_style=style, width=float("inf"), allow_unicode=False
    )
    return text.strip().removesuffix("...").strip()
