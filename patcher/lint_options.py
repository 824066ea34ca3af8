"""Rules about the words of vLLM's command at which its own parser stops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from packaging.version import Version

from . import compilation_fields, rules
from .compile_options import CONFIG, NAMES
from .key_history import nearest
from .lint_context import Context, placed
from .option_names import known, newest, strangers, strays
from .rules import Finding, Level, one_line
from .secrecy import shown
from .transfer_fields import faults

if TYPE_CHECKING:
    from .launch import Launch

_MODEL_TAKEN = Version("0.11.1")
"""From here on `vllm serve --model NAME` is taken as the model, of which there may be one."""
_MODEL_FIRST = Version("0.17.0")
"""From here on the model has to come first where a name is served."""
_MODEL_TAG = Version("0.10.0")
"""From here on the module takes a model as ``serve`` does, and makes nothing of it."""
_RANKS = ("tensor-parallel-size", "tp", "pipeline-parallel-size", "pp")
_TRANSFER = "kv-transfer-config"


def options(context: Context) -> Iterator[Finding]:
    """What vLLM stops at before it looks at any configuration."""
    given = context.launch
    if given is None or given.broken:
        return
    for found, names in (
        *_unknown(given, context.vllm),
        *_compiling(given, context.vllm),
        *_ranks(given),
        *_dotted(given),
        *_overruled(given, context.vllm),
    ):
        yield found if found.line else placed(found, given.origin(*names))
    if given.args and not given.doubt:
        check = _model if given.args[:1] == ("serve",) else _module
        yield from check(_words(given), context.vllm)


def _unknown(given: Launch, vllm: Version | None) -> Iterator[tuple[Finding, tuple[str, ...]]]:
    """Options that this release does not have."""
    if not given.args:
        return
    names = known(vllm) or frozenset()
    shown = f"vLLM {vllm} has" if vllm else f"vLLM up to {newest()} has"
    for _, name in strangers(_words(given), vllm):
        yield _stranger(shown, name, names), ()
    config = given.config
    words = config.words if config else ()
    for place, name in strangers([word for word, _ in words], vllm):
        yield placed(_stranger(shown, name, names), words[place][1]), ()


def _stranger(shown: str, name: str, names: frozenset[str]) -> Finding:
    close = nearest(name, sorted(names))
    told = f"{shown} no option --{one_line(name)}, and stops at it unless a plugin adds it"
    told += f"; the nearest is --{close}" if close else ""
    return _finding(told, lower=Level.WARNING)


def _compiling(given: Launch, vllm: Version | None) -> Iterator[tuple[Finding, tuple[str, ...]]]:
    found = given.compiling(vllm)
    if found.stops:
        yield _finding(found.stops), (found.option,)
    for one in found.objects:
        for told, level in compilation_fields.faults(one, vllm):
            yield _finding(f"--{CONFIG}: {told}", level), tuple(NAMES)


def _ranks(given: Launch) -> Iterator[tuple[Finding, tuple[str, ...]]]:
    """Numbers of ranks that are none."""
    for name in _RANKS:
        text = given.flags.get(name)
        if text is None or (isinstance(text, str) and (_is_whole(text) or "$" in text)):
            continue
        dash = "-" if len(name) == 2 else "--"
        what = f" {shown(name, text)}" if isinstance(text, str) else " without a value"
        yield _finding(f"vLLM stops at {dash}{name}{what}: write a whole number"), (name,)


def _is_whole(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _dotted(given: Launch) -> Iterator[tuple[Finding, tuple[str, ...]]]:
    """Dotted forms that take the next option for their value."""
    for name, value in given.ordered:
        if "." not in name or name.startswith("O.") or given.origin(name) is not None:
            continue
        dash = "-" if len(name.partition(".")[0]) == 2 else "--"
        if value is True:
            told = f"vLLM stops at {dash}{one_line(name)} without a value: write true behind it"
            yield _finding(told), ()
        elif isinstance(value, str) and value.startswith("--"):
            told = f"vLLM takes {one_line(value.partition('=')[0])} as the value of "
            told += f"{dash}{one_line(name)}, and not as an option: write true in between"
            yield _finding(told), ()


def _overruled(given: Launch, vllm: Version | None) -> Iterator[tuple[Finding, tuple[str, ...]]]:
    """Connectors that do not count, and at which vLLM stops all the same."""
    within = " in one of several that are given: vLLM reads each by itself"
    for transfer in given.overruled:
        for fault in faults(transfer, vllm, within):
            if fault.level is Level.ERROR:
                yield Finding(rules.CONNECTOR, f"--{_TRANSFER}: {fault.message}", "", "launch"), ()


def _words(given: Launch) -> Sequence[str]:
    """The words of vLLM's options, behind ``serve`` where that is there."""
    return given.args[1:] if given.args[:1] == ("serve",) else given.args


def _model(words: Sequence[str], vllm: Version | None) -> Iterator[Finding]:
    """The model behind ``serve``, of which there is one."""
    found = strays(words)
    named = [one for one in words if one == "--model" or one.startswith("--model=")]
    if named and vllm is not None and vllm < _MODEL_TAKEN:
        if "--model" in named:
            told = f"vLLM {vllm} stops at --model behind serve: write `vllm serve NAME`"
            yield _finding(told)
    elif named and found and vllm is not None:
        told = f"vLLM {vllm} takes the model of --model, and stops at {shown('', found[0])}"
        yield _finding(f"{told} besides: name one model")
    if len(found) > 1:
        told = f"vLLM stops at {shown('', found[1])}, which is no option's value: a switch takes "
        yield _finding(f"{told}none, and there is one model")
    served = any(one.partition("=")[0].replace("_", "-") == "--served-model-name" for one in words)
    first = words[0] if words else ""
    config = any(one == "--config" or one.startswith("--config=") for one in words)
    if first.startswith("-") and served and not named and not config:
        told = "the model has to come first where --served-model-name is there"
        if vllm is not None and vllm >= _MODEL_FIRST:
            yield _finding(f"vLLM {vllm} stops: {told}")


def _module(words: Sequence[str], vllm: Version | None) -> Iterator[Finding]:
    """Words that the module api_server takes for no option's value."""
    found = strays(words)
    takes = vllm is None or vllm >= _MODEL_TAG
    if len(found) > takes:
        yield _finding(f"vLLM stops at {shown('', found[takes])}, which is no option's value")
    elif found:
        told = f"vLLM's module does not read {shown('', found[0])}, which is no option's value"
        yield _finding(f"{told}: a switch takes none, and the model is --model NAME", Level.WARNING)


def _finding(told: str, lower: Level | None = None) -> Finding:
    lower = None if lower is Level.ERROR else lower
    return Finding(rules.SERVE_CONFIG, told, "", "launch", lower=lower)
