"""Rules about vLLM's attention back end, of which LMCache's blender takes one alone.

Read from vLLM's ``attention/selector.py``, ``config/attention.py`` and ``engine/arg_utils.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import rules
from .attention_backend import DROPPED, OPTION, VARIABLE, blended_with, is_sparse
from .dotted_options import NotReadError, json_of, merged
from .lint_context import Context, placed
from .rules import Finding, Level
from .vllm_options import full_name

if TYPE_CHECKING:
    from .launch import Launch

_CONFIG = "attention-config"
_CONFIGS = frozenset({_CONFIG, "ac"})
_KINDS, _KIND = "backend_per_kind", "full_attention"
"""Where that configuration has back ends by kind of layer, and the kind of those that blend."""
_SUFFIX = "_VLLM_V1"
"""Old releases have names with it, and newer ones leave it away."""
_OPEN = frozenset({"AUTO", "CUSTOM", "CUTLASS_MSA", "TRITON_MSA"})
"""Names by which vLLM chooses by itself, or that a plugin gives a meaning."""


def attention(context: Context) -> Iterator[Finding]:
    """A back end that LMCache does not blend with, named for vLLM."""
    if not context.blends:
        return
    if context.on_cpu:
        told = "this vLLM is built for CPUs, on which LMCache does not blend: serve it with a GPU"
        yield context.found(rules.NO_GPU, told, "enable_blending")
        return
    extra = context.value("extra_config")
    right = blended_with(extra, context.lmcache)
    given = _by_variable(context) or _by_option(context.launch)
    if right is None or given is None:
        return
    told, name, cure = given
    if name.upper() in _OPEN or name.upper().removesuffix(_SUFFIX) == right:
        return
    with_ = "enable_blending and enable_sparse" if is_sparse(extra) else "enable_blending"
    todo = f"give {cure}{right}"
    message = (
        f"{told}{context.shown('', name)}, and with {with_} LMCache {context.schema.version} takes "
        f"{right} alone: {todo}"
    )
    if told.startswith(VARIABLE):
        yield _about_variable(context, message, todo)
    else:
        found = Finding(rules.ATTENTION, message, "", "launch", todo=todo)
        origin = context.launch.origin(OPTION, *_CONFIGS) if context.launch else None
        yield placed(found, origin)


def _by_variable(context: Context) -> tuple[str, str, str] | None:
    """How the variable was given, what it names, and how to give another; None for none.

    In the two releases that have both, it beats the configuration, and stops beside the option.
    """
    name = (context.environ or {}).get(VARIABLE)
    if not name or (context.vllm is not None and context.vllm >= DROPPED):
        return None
    if context.vllm is None and _by_option(context.launch):
        return None
    return f"{VARIABLE}=", name, f"{VARIABLE}="


def _about_variable(context: Context, message: str, todo: str) -> Finding:
    front = context.launch
    unsure = front is not None and front.unsure.has(VARIABLE)
    lower = Level.WARNING if unsure or context.vllm is None else None
    source = "launch" if front is not None and VARIABLE in front.environ else "environment"
    return Finding(rules.ATTENTION, message, VARIABLE, source, lower=lower, todo=todo)


def _by_option(given: Launch | None) -> tuple[str, str, str] | None:
    """The same of the options."""
    if given is None:
        return None
    config = _config(given)
    kinds = config.get(_KINDS)
    by_kind = kinds.get(_KIND) if isinstance(kinds, dict) else None
    if isinstance(by_kind, str):
        named = f"--{_CONFIG}.{_KINDS}.{_KIND} "
        return named, by_kind, named
    plain = given.last(OPTION)
    if isinstance(plain, str):
        return f"--{OPTION} ", plain, f"--{OPTION} "
    inside = config.get("backend")
    if isinstance(inside, str):
        return f"--{_CONFIG}.backend ", inside, f"--{_CONFIG}.backend "
    return None


def _config(given: Launch) -> Mapping[str, Any]:
    """The configuration for attention, which vLLM takes from the last that gives one."""
    found: list[Any] = []
    try:
        for name, text in given.ordered:
            if full_name(name) in _CONFIGS and isinstance(text, str):
                found.append(json_of(text))
        found += merged(given.ordered, _CONFIGS).values()
    except NotReadError:
        return {}
    return found[-1] if found and isinstance(found[-1], dict) else {}
