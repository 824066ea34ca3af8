"""Profiles: an LMCache configuration for a use, in the keys that one release understands."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from typing import Any

import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from . import __version__
from .outcome import ExitCode, KvpatchError
from .schema import Schema

_WIDTH = 96
CORRUPTS = SpecifierSet(">=0.3.7,<0.5.4rc3", prereleases=True)
"""LMCache releases that pair GDS chunks with wrong keys (fixed in 0.5.4rc3)."""

LAYERWISE_SETTING = SpecifierSet(">=0.17", prereleases=True)
"""vLLM releases in which a bare ``use_layerwise`` chooses piecewise CUDA graphs."""


@dataclass(frozen=True)
class Pair:
    """The installed LMCache, the installed vLLM if there is one, and whether it is patched."""

    lmcache: Version
    vllm: Version | None = None
    registered: bool = False


@dataclass(frozen=True)
class Requirement:
    """Something a profile needs beside its keys; ``present`` is False where it is not there."""

    what: str
    present: bool
    hint: str


@dataclass(frozen=True)
class Rendered:
    """A profile's YAML text, and what it needs."""

    text: str
    needs: tuple[Requirement, ...]


def profiles() -> tuple[str, ...]:
    """The names of the profiles that come with this kvpatch."""
    folder = resources.files("kvpatch.profiles")
    names = [item.name for item in folder.iterdir() if item.name.endswith(".yaml")]
    return tuple(sorted(name.removesuffix(".yaml") for name in names))


def render(name: str, schema: Schema, pair: Pair, settings: Mapping[str, str]) -> Rendered:
    """The profile as YAML for this pair.

    Args:
        name: of the profile.
        schema: the keys of the installed LMCache.
        pair: what is installed.
        settings: values for the template, such as ``gds_path``.

    Raises:
        KvpatchError: ``unknown-profile``; ``bad-path``; ``no-key``, where the release has no key
            for a line that the profile can't do without.
    """
    template = _template(name)
    values = {
        key: str(value).format(lmcache=pair.lmcache) for key, value in template["settings"].items()
    }
    values.update(settings)
    _check_path(values["gds_path"])
    needs = _needs(pair)
    lines = [*_header(name, template["purpose"], pair, needs)]
    for line in template["lines"]:
        entry = _entry(line, schema, values)
        if entry is not None:
            why = " ".join(str(line["why"]).split())
            lines += ["", *_comment(why), _line(entry)]
    return Rendered("\n".join(lines) + "\n", needs)


def _template(name: str) -> dict[str, Any]:
    known = profiles()
    if name not in known:
        near = get_close_matches(name, known, 2) or list(known)
        raise KvpatchError(
            "unknown-profile",
            f"there is no profile {name}",
            f"did you mean {' or '.join(near)}?",
            ExitCode.USAGE,
        )
    text = resources.files("kvpatch.profiles").joinpath(f"{name}.yaml").read_text("utf-8")
    template: dict[str, Any] = yaml.safe_load(text)
    return template


def _entry(line: Mapping[str, Any], schema: Schema, values: Mapping[str, str]) -> Any:
    """The first key of a line that the release knows, with its value; None where none has to be."""
    for alternative in line["keys"]:
        ((key, value),) = alternative.items()
        if key in schema.keys:
            return {key: _filled(value, values)}
    if line.get("optional"):
        return None
    names = " or ".join(key for alternative in line["keys"] for key in alternative)
    raise KvpatchError(
        "no-key",
        f"LMCache {schema.version} has no key {names}, which this profile needs",
        "install another LMCache release, or report this one",
    )


def _line(entry: Mapping[str, Any]) -> str:
    """One key and its value on one line, quoted as YAML needs it."""
    ((key, value),) = entry.items()
    if isinstance(value, list):
        return f"{key}: {yaml.safe_dump(value, default_flow_style=True, width=10_000).strip()}"
    return str(yaml.safe_dump(entry, width=10_000, allow_unicode=True)).rstrip()


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    """A value with its setting put in; a setting that is a whole number stays one."""
    if not (isinstance(value, str) and value.startswith("{") and value.endswith("}")):
        return value
    text = values[value[1:-1]]
    return int(text) if text.isascii() and text.isdigit() else text


def _check_path(path: str) -> None:
    if not path.startswith("/") or any(not char.isprintable() or char == "," for char in path):
        raise KvpatchError(
            "bad-path",
            f"{path!r} can't be a GDS path: it must be absolute, on one line and without a comma",
            "give --gds-path the directory on the mounted storage",
            ExitCode.USAGE,
        )


def _needs(pair: Pair) -> tuple[Requirement, ...]:
    registration = Requirement(
        "vLLM's model is registered with LMCache",
        pair.registered,
        "run `kvpatch apply`" if pair.vllm else "install vLLM, then run `kvpatch apply`",
    )
    blending = Requirement(
        f"LMCache {pair.lmcache} loads blended chunks by GDS",
        present=False,
        hint="no release does, and this kvpatch has no patch for it yet: today no pair runs this "
        "profile, storing works and the first load from storage stops the engine",
    )
    if not CORRUPTS.contains(pair.lmcache, prereleases=True):
        return registration, blending
    keys = Requirement(
        f"LMCache {pair.lmcache} stores GDS chunks under their own keys",
        present=False,
        hint="it mixes them up where requests run at the same time and share a prefix, silently; "
        "take LMCache 0.5.4 or newer",
    )
    return registration, blending, keys


def _header(name: str, purpose: str, pair: Pair, needs: Sequence[Requirement]) -> list[str]:
    made = f"Made by kvpatch {__version__} for LMCache {pair.lmcache}"
    made += f" and vLLM {pair.vllm}." if pair.vllm else ", without a vLLM beside it."
    lines = [*_comment(f"{purpose} (profile {name}). {made}"), "#", "# What it needs beside this:"]
    for need in needs:
        state = "there" if need.present else f"NOT THERE: {need.hint}"
        lines += _comment(f"- {need.what}: {state}", hang="  ")
    extra = ', "kv_connector_extra_config": {"use_layerwise": true}'
    graphs = ""
    if pair.vllm is None or not LAYERWISE_SETTING.contains(pair.vllm, prereleases=True):
        extra, graphs = "", "#     --enforce-eager \\\n"
    return [
        *lines,
        "#",
        "# Start vLLM with it. A fixed PYTHONHASHSEED lets keys survive a restart; prefix caching",
        "# must be off; layerwise loading needs piecewise CUDA graphs or none.",
        "#   export LMCACHE_CONFIG_FILE=/where/this/file/is.yaml PYTHONHASHSEED=0",
        "#   vllm serve MODEL --no-enable-prefix-caching \\\n"
        + graphs
        + "#     --kv-transfer-config "
        f'\'{{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"{extra}}}\'',
    ]


def _comment(text: str, hang: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent="# ",
        subsequent_indent=f"# {hang}",
        break_long_words=False,
        break_on_hyphens=False,
    )
