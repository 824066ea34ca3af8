"""Rules about CUDA graphs, in which LMCache's connector is not called as it has to be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from packaging.version import Version

from . import rules, vllm_options
from .kv_connector import connectors, is_in_process
from .lint_context import Context, placed
from .lint_hashing import NOT_LOOKED
from .model_runner import ALL, BARE_SETTING, FIRST, SKIPS, VARIABLE, second_runner_taken
from .rules import Finding, Level
from .secrecy import shown

if TYPE_CHECKING:
    from .launch import Launch

_SAFE_MODES = ("PIECEWISE", "NONE", "0", "1")
_SETTING = '"kv_connector_extra_config": {"use_layerwise": true}'
_PIECEWISE = """-cc '{"cudagraph_mode": "PIECEWISE"}'"""
_EAGER = "--enforce-eager"
_OPTIONS = ("compilation-config", "cc", "O", "kv-transfer-config")


def full_graphs(given: Launch, vllm: Version | None) -> bool | None:
    """Whether vLLM takes full CUDA graphs by a command; None where that can't be said."""
    compiling = given.compiling(vllm)
    if given.on("enforce-eager") or compiling.mode in _SAFE_MODES or compiling.stops:
        return False
    if _bare(given) and _asked(given) and (vllm is None or vllm >= BARE_SETTING):
        return False
    level = vllm_options.level(given.flags)
    safe = False if compiling.mode else vllm_options.level_is_safe(level, vllm)
    if safe:
        return False
    return None if safe is None or not given.known else True


def graphs(context: Context) -> Iterator[Finding]:
    """Full CUDA graphs against a transfer that goes layer by layer."""
    given, vllm = context.launch, context.vllm
    full = False if given is None else full_graphs(given, vllm)
    if given is None or full is False or not given.known:
        return
    bare, newer = _bare(given), vllm is None or vllm >= BARE_SETTING
    if newer and bare:
        yield _graph(context, given, f"{_NOT_ASKED}: give {_PIECEWISE}", Level.WARNING)
        return
    setting = _asked(given) or not given.in_process
    right = (_setting(given) if setting else _PIECEWISE) if newer else _EAGER
    if vllm is None:
        right += f" from vLLM {BARE_SETTING} on, {_EAGER} before"
    told = "vLLM does not read it" if bare else "use_layerwise in the file is not seen by vLLM"
    if (context.environ or {}).get(VARIABLE) == "0":
        told += f", and {VARIABLE}=0 keeps full CUDA graphs"
    lower = None
    if full is None:
        level = vllm_options.level(given.flags)
        told, lower = f"{told}, and what -O{level} makes of the graphs hangs on vLLM", Level.NOTE
    yield _graph(context, given, f"{told}: give {right}", lower)


def runner(context: Context) -> Iterator[Finding]:
    """Full CUDA graphs with the newer model runner, in which nothing is loaded (letter V)."""
    given, vllm = context.launch, context.vllm
    said = (context.environ or {}).get(VARIABLE)
    models = second_runner_taken(vllm, said)
    if given is None or not given.known or full_graphs(given, vllm) is False:
        return
    setting = _asked(given) and not _bare(given) and (vllm is None or vllm >= BARE_SETTING)
    right = f"give {_setting(given) if setting else _PIECEWISE}, or set {VARIABLE}=0"
    if vllm is None and said != "0":
        told = f"vLLM {FIRST} and newer take Model Runner V2 for some models or all, and {SKIPS} "
        yield _graph(context, given, f"{told}there: {right}", Level.NOTE)
    elif models:
        told = f"vLLM {vllm} takes Model Runner V2 for {models}, and {SKIPS} there: {right}"
        told += NOT_LOOKED if said is None and not context.whole_environ else ""
        sure = models == ALL and (said is not None or context.whole_environ)
        sure = sure and not given.unsure.has(VARIABLE)
        yield _graph(context, given, told, None if sure else Level.WARNING)


_NOT_ASKED = (
    "vLLM asks the class that kv_connector_module_path names for its graphs, and no LMCache up to "
    "0.5.7rc2 answers"
)


def _graph(context: Context, given: Launch, told: str, lower: Level | None) -> Finding:
    if context.on_cpu:
        told += " (this vLLM is built for the CPU, where there are no CUDA graphs)"
        lower = Level.NOTE
    return placed(Finding(rules.GRAPHS, told, "", "launch", lower=lower), given.origin(*_OPTIONS))


def _setting(given: Launch) -> str:
    """The setting, with the connector that it belongs to where that stands inside another."""
    inner = next((one for one in connectors(given.transfer) if is_in_process(one)), given.transfer)
    if inner is given.transfer:
        return _SETTING
    return f"{_SETTING} of {shown('', inner.get('kv_connector'))}, inside connectors"


def _bare(given: Launch) -> bool:
    # vLLM asks whether it is true as Python has it, which "false" is too.
    return any(extra.get("use_layerwise") for extra in given.extras)


def _asked(given: Launch) -> bool:
    """Whether a class of vLLM's own is asked for the graphs, which knows that setting."""
    found = filter(is_in_process, connectors(given.transfer))
    return not all(one.get("kv_connector_module_path") for one in found)
