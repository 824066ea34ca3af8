"""Rules about the command and the environment that vLLM is started with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import layer_dtype, rules, vllm_options
from .kv_connector import children, connectors, is_in_process
from .lint_context import Context, placed
from .lint_graphs import graphs, runner
from .rules import Finding, Level, one_line
from .secrecy import masked, shown
from .transfer_fields import faults

if TYPE_CHECKING:
    from .launch import Launch
    from .serve_config import ServeConfig

_TRANSFER = "kv-transfer-config"
_SERVER = {"lmcache.mp.host", "lmcache.mp.port"}
"""Where LMCache's server listens, which any release with one reads."""
_APART = ": vLLM takes its dotted forms alone where there are any"
_SHARED = (
    *("remote_url", "remote_storage_plugins", "gds_path", "weka_path", "maru_path", "enable_p2p"),
    *("enable_nixl", "extra_config.enable_nixl_storage", "storage_plugins", "external_backends"),
)
"""What other processes can fill: the rest is this one's own."""


def launch(context: Context) -> Iterator[Finding]:
    """Flags against the configuration."""
    given = context.launch
    if given is None:
        return
    if given.config is not None:
        yield from _serve_config(given.config)
    for place in given.returned:
        told = f"lines of {place} end in carriage returns, as Windows writes them, which the shell "
        told += "takes for a part of words: write it with the ends of lines of Unix, as "
        told += "`sed -i 's/\\r$//' FILE` does"
        yield Finding(rules.SERVE_CONFIG, told, "", "launch")
    if given.broken:
        told = "a backslash stands in front of a blank: to go on in the next line it must be the "
        told += "last of its line; what stands in the lines behind it is not looked at"
        yield Finding(rules.SERVE_CONFIG, told, "", "launch")
        return
    if given.doubt:
        told = f"{given.doubt}; give --serve the command with its options written out"
        yield Finding(rules.SERVE_UNKNOWN, told, "", "launch")
    # Where vLLM stops at the file, what the connector's text lacks comes of that.
    if given.problem and (given.known or given.origin(_TRANSFER) is None):
        told = f"--kv-transfer-config: {given.problem}"
        yield _found(given, rules.CONNECTOR, told, _TRANSFER)
        return
    yield from _switches(given)
    for fault in faults(given.transfer, context.vllm):
        told = f"--{_TRANSFER}: {fault.message}"
        lower = None if fault.level is Level.ERROR else fault.level
        yield _found(given, rules.CONNECTOR, told, _TRANSFER, lower=lower)
    yield from _role(context, given)
    offloads = vllm_options.offloads(given.flags, context.vllm)
    elsewhere = given.elsewhere(context.vllm)
    yield from _unchecked(given)
    if elsewhere:
        if context.configured:
            told = f"{one_line(masked(elsewhere))} keeps vLLM's chunks, and does not read this "
            told += "configuration; LMCacheConnectorV1 does"
            told += ", without which nothing blends" if context.blends else ""
            lower = Level.WARNING if context.blends else Level.NOTE
            yield _found(given, rules.CONNECTOR, told, _TRANSFER, lower=lower)
    elif not given.in_process and (given.known or given.transfer) and not offloads.lmcache:
        name = given.transfer.get("kv_connector")
        if name:
            told = f"--kv-transfer-config names {shown('', name)}"
        elif given.transfer:
            told = "--kv-transfer-config names no kv_connector"
            apart = any(flag.startswith(f"{_TRANSFER}.") for flag in given.flags)
            told += _APART if apart and _TRANSFER in given.flags else ""
        else:
            told = f"there is no --kv-transfer-config{_nor(given)}"
        yield _found(
            given,
            rules.CONNECTOR,
            f"{told}; LMCache's is "
            '--kv-transfer-config \'{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}\'',
            _TRANSFER,
        )
    if offloads.stops:
        yield _found(given, rules.OFFLOADING, offloads.stops, *vllm_options.OFFLOADING)
    elif given.transfer and offloads.chooses is not False:
        told = "give --kv-transfer-config alone"
        lower = None if offloads.chooses else Level.NOTE
        yield _found(given, rules.OFFLOADING, told, *vllm_options.OFFLOADING, lower=lower)
    if elsewhere:
        return
    if context.blends:
        yield from _prefix(given)
    if context.by_layer:
        yield from graphs(context)
    elif given.in_process or offloads.lmcache:
        yield from runner(context)
    yield from _dtype(context)
    yield from _memory(context)


def _role(context: Context, given: Launch) -> Iterator[Finding]:
    """A role in which LMCache stores nothing."""
    for one in filter(is_in_process, connectors(given.transfer)):
        if one.get("kv_role") != "kv_consumer" or context.value("enable_pd"):
            continue
        others = any(context.value(name) for name in _SHARED)
        told = "kv_role is kv_consumer, in which LMCache stores nothing"
        told += (
            ": another process has to fill what it loads from"
            if others
            else ", and nothing else fills its memory and disk: no request ever hits"
        )
        told += '; write "kv_role": "kv_both" where this one is to store too'
        lower = Level.NOTE if others else None
        yield _found(given, rules.ROLE, told, _TRANSFER, lower=lower)
        return


def _unchecked(given: Launch) -> Iterator[Finding]:
    """Settings of connectors that are not LMCache's in-process one, which nothing here knows."""
    names = [
        shown("", one.get("kv_connector"))
        for one in connectors(given.transfer)
        if _said(one) - _SERVER and not is_in_process(one) and next(children(one), None) is None
    ]
    if names:
        told = f"what kv_connector_extra_config says for {', '.join(dict.fromkeys(names))} "
        told += "is not checked here"
        yield _found(given, rules.OVERRIDE, told, _TRANSFER, lower=Level.NOTE)


def _said(connector: Mapping[str, Any]) -> set[str]:
    """The names of a connector's own settings."""
    extra = connector.get("kv_connector_extra_config")
    return {*extra} if isinstance(extra, dict) else set()


def _serve_config(config: ServeConfig) -> Iterator[Finding]:
    """What is wrong with vLLM's own configuration file."""
    if config.unread:
        told = f"--config {shown('', config.path)} was not read ({config.unread}): {config.todo}"
        yield Finding(rules.SERVE_UNREAD, told, "config", "launch", todo=config.todo)
    for rule, problems in ((rules.DUPLICATE, config.twice), (rules.SERVE_CONFIG, config.problems)):
        for problem in problems:
            lower = None if problem.certain else Level.NOTE
            found = Finding(rule, problem.message, "config", "launch", lower=lower)
            yield placed(found, problem.origin)


def _switches(given: Launch) -> Iterator[Finding]:
    """Switches to which the command gives a value, and numbers that are none."""
    for name in vllm_options.VALUELESS:
        value = given.flags.get(name)
        # What the file gives was told with the file.
        if isinstance(value, str) and given.origin(name) is None:
            told = f"vLLM stops at --{name}={shown(name, value)}: write --{name} alone"
            yield _found(given, rules.SERVE_CONFIG, told, name)
    for name in vllm_options.UTILIZATION:
        value = given.flags.get(name)
        if isinstance(value, str) and vllm_options.is_no_number(value):
            told = f"vLLM stops at --{name} {shown(name, value)}: write a share of 1, such as 0.8"
            yield _found(given, rules.SERVE_CONFIG, told, name)


def _prefix(given: Launch) -> Iterator[Finding]:
    name = "enable-prefix-caching"
    if given.on(name) is False or (given.on(name) is None and not given.known):
        return
    told = f"blending needs --no-{name}"
    dropped = given.config.dropped.get(name) if given.config else None
    if dropped is not None and given.on(name) is None:
        told += f": vLLM makes nothing of a switch that is false in a file; write no-{name}: true"
        yield placed(Finding(rules.PREFIX, told, "", "launch"), dropped)
    else:
        yield _found(given, rules.PREFIX, told, name)


def _dtype(context: Context) -> Iterator[Finding]:
    """The KV cache's dtype against a transfer that goes layer by layer."""
    given = context.launch
    dtype = given.flags.get("kv-cache-dtype") if given else None
    if given is None or not isinstance(dtype, str) or not context.by_layer:
        return
    refused = layer_dtype.refused(dtype, context.lmcache, context.vllm)
    if refused is not False:
        where = "" if refused else f" with vLLM {layer_dtype.PACKED} or newer"
        told = f"--kv-cache-dtype: {layer_dtype.told(shown('', dtype))}{where}: leave it at auto"
        lower = None if refused else Level.NOTE
        yield _found(given, rules.KV_DTYPE, told, "kv-cache-dtype", lower=lower)


def _memory(context: Context) -> Iterator[Finding]:
    given = context.launch
    size = context.value("gds_buffer_size") or context.value("cufile_buffer_size")
    if given is None or not context.gds or not isinstance(size, int):
        return
    name, text = vllm_options.utilization(given.flags, context.vllm)
    if text is None and not given.known:
        return
    default = vllm_options.default_utilization(context.vllm)
    try:
        share = float(text) if text is not None else default
    except ValueError:
        return
    # A lower one was lowered by someone, and by enough as far as can be told: the GPU's memory is
    # not known.
    if share >= default:
        told = f"--{name} is {share}"
        told += " by default" if text is None else ""
        told += f": lower it by the {size} MiB of the GDS buffer over the GPU's memory"
        # The default leaves room beside it.
        lower = Level.NOTE if text is None else None
        yield _found(given, rules.MEMORY, told, name, lower=lower)


def _found(
    given: Launch, rule: rules.Rule, told: str, *names: str, lower: Level | None = None
) -> Finding:
    """A finding about the first of these flags, at its place where the file set it."""
    return placed(Finding(rule, told, source="launch", lower=lower), given.origin(*names))


def _nor(given: Launch) -> str:
    """Where else was looked."""
    if given.config is None or not given.config.read:
        return ""
    return f" in the command, nor in {one_line(given.config.path)}"
