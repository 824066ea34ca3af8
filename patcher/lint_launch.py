"""Rules about the command and the environment that vLLM is started with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from . import layer_dtype, rules
from .lint_context import Context
from .rules import Finding, Level, spelt

BARE_SETTING = Version("0.17.0")
"""From here on vLLM reads use_layerwise in the connector's extra config to choose its graphs."""
_SAFE_MODES = ("PIECEWISE", "NONE", "0")
_CONFIG_FILE = "LMCACHE_CONFIG_FILE"
_UTILIZATION = "gpu-memory-utilization"
_DEFAULT_UTILIZATION = 0.9


def launch(context: Context) -> Iterator[Finding]:
    """Flags against the configuration."""
    given = context.launch
    if given is None:
        return
    if given.problem:
        yield _found(rules.CONNECTOR, f"--kv-transfer-config: {given.problem}")
        return
    if not given.in_process:
        name = given.transfer.get("kv_connector")
        told = f"--kv-transfer-config names {name}" if name else "there is no --kv-transfer-config"
        yield _found(
            rules.CONNECTOR,
            f"{told}; LMCache's is "
            '--kv-transfer-config \'{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}\'',
        )
    if given.transfer and {"kv-offloading-backend", "kv-offloading-size"} & set(given.flags):
        yield _found(rules.OFFLOADING, "give --kv-transfer-config alone")
    if context.blends:
        if given.on("enable-prefix-caching") is not False:
            yield _found(rules.PREFIX, "blending needs --no-enable-prefix-caching")
        yield from _graphs(context)
    yield from _dtype(context)
    yield from _memory(context)


def _graphs(context: Context) -> Iterator[Finding]:
    given = context.launch
    if given is None or given.on("enforce-eager") or given.graphs in _SAFE_MODES:
        return
    bare = any(extra.get("use_layerwise") is True for extra in given.extras)
    newer = context.vllm is not None and context.vllm >= BARE_SETTING
    if bare and (newer or context.vllm is None):
        return
    setting = '"kv_connector_extra_config": {"use_layerwise": true}'
    eager = "--enforce-eager"
    if context.vllm is None:
        right = f"{setting} from vLLM {BARE_SETTING} on, {eager} before"
    else:
        right = setting if newer else eager
    told = "use_layerwise in the file is not seen by vLLM" if not bare else "vLLM does not read it"
    yield _found(rules.GRAPHS, f"{told}: give {right}")


def _dtype(context: Context) -> Iterator[Finding]:
    """The KV cache's dtype against a transfer that goes layer by layer."""
    dtype = context.launch.flags.get("kv-cache-dtype") if context.launch else None
    if not isinstance(dtype, str) or not (context.blends or context.value("use_layerwise")):
        return
    refused = layer_dtype.refused(dtype, context.lmcache, context.vllm)
    if refused is not False:
        where = "" if refused else f" with vLLM {layer_dtype.PACKED} or newer"
        told = f"--kv-cache-dtype: {layer_dtype.told(spelt(dtype))}{where}: leave it at auto"
        lower = None if refused else Level.NOTE
        yield Finding(rules.KV_DTYPE, told, "", "launch", lower=lower)


def _memory(context: Context) -> Iterator[Finding]:
    given = context.launch
    size = context.value("gds_buffer_size") or context.value("cufile_buffer_size")
    if given is None or not context.gds or not isinstance(size, int):
        return
    text = given.flags.get(_UTILIZATION)
    try:
        share = float(str(text)) if text is not None else _DEFAULT_UTILIZATION
    except ValueError:
        return
    if share >= _DEFAULT_UTILIZATION:
        told = f"--{_UTILIZATION} is {share}"
        told += " by default" if text is None else ""
        told += f": lower it by the {size} MiB of the GDS buffer over the GPU's memory"
        # The default leaves room beside it, and the GPU's memory is not known.
        lower = Level.NOTE if text is None else None
        yield Finding(rules.MEMORY, told, source="launch", lower=lower)


def environment(context: Context) -> Iterator[Finding]:
    """Variables against the file."""
    environ = context.environ
    if environ is None or not context.file.written:
        yield from _overruled(context)
        return
    named = environ.get(_CONFIG_FILE)
    if named is None and context.whole_environ:
        yield Finding(
            rules.OTHER_FILE,
            f"{_CONFIG_FILE} is not set there, so the file is never read (a variable that is not "
            "exported does not reach vLLM)",
            _CONFIG_FILE,
            "environment",
        )
    elif named is not None and not _same(named, context.file.path):
        told = f"{_CONFIG_FILE} names {spelt(named)}, and not {spelt(context.file.path)}"
        lower = None if context.running else Level.WARNING
        yield Finding(rules.OTHER_FILE, told, _CONFIG_FILE, "environment", lower=lower)
    for name in context.schema.keys:
        variable = f"LMCACHE_{name.upper()}"
        if variable in environ and not context.schema.reading.env_beside_file:
            told = (
                f"LMCache {context.schema.version} does not read {variable} where there is a file"
            )
            yield Finding(rules.IGNORED, told, variable, "environment")
    yield from _overruled(context)


def _overruled(context: Context) -> Iterator[Finding]:
    for seen in context.effective.values.values():
        entry = context.file.entries.get(seen.name)
        if seen.source in ("environment", "launch") and entry and entry.value != seen.value:
            told = f"{seen.given_as} ({spelt(seen.value)}) beats the file ({spelt(entry.value)})"
            yield Finding(rules.OVERRULED, told, seen.name, "file", entry.line, entry.column)


def _same(named: str, path: str) -> bool:
    try:
        return Path(named).samefile(path)
    except OSError:
        return os.path.abspath(named) == os.path.abspath(path)  # noqa: PTH100


def _found(rule: rules.Rule, told: str) -> Finding:
    return Finding(rule, told, source="launch")
