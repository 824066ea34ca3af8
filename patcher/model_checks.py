"""What a model's configuration and tokenizer mean for blending."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .diagnosis import Check, State, fail, not_checked, ok, warn
from .model_config import LeftOutError, Model
from .probe import Answer
from .rules import SECOND

if TYPE_CHECKING:
    from .templates import Template

SINCE: Mapping[str, str] = {"Qwen3ForCausalLM": "0.3.9", "Qwen2ForCausalLM": "0.3.10"}
"""The first LMCache that blends a class, where that is not the first of all."""
DTYPE = "bfloat16"
"""The one that LMCache blends."""

_APPLY = "run `kvpatch apply`"
# What to do where the tokenizer can't be loaded, by what it is that lacks.
_LOADED = {
    "files": "give --model a folder with the model's tokenizer too, such as tokenizer.json",
    "module": "install it where vLLM runs, or give --model a folder with a tokenizer.json",
    "": "give --model the folder that vLLM serves, with the tokenizer as it was released",
}


def model_checks(
    model: Model, taken: Sequence[str], *, cured: bool | None, served: str | None = None
) -> Iterator[Check]:
    """The rows of a model.

    Args:
        model: its configuration.
        taken: classes that the installed LMCache blends; empty where that can't be read.
        cured: whether the patch for scaled rope is in place; None where this pair has none.
        served: the dtype that the command names, empty for none; None where it is not known.
    """
    yield class_check(model.architecture, taken)
    yield _rope(model, cured=cured)
    yield _dtype(model, served)
    yield _layers(model)


def left_out_checks(error: LeftOutError, taken: Sequence[str]) -> Iterator[Check]:
    """The rows of a model of which not all is known; ``taken`` as for :func:`model_checks`."""
    if error.architecture and taken:
        yield class_check(error.architecture, taken)
    yield not_checked("config.json", error.message, error.hint)


def fit_check(model: Model, template: Template) -> Check:
    """The row of a model that is served without blending."""
    name = "model"
    if template.kind == "lmcache" and (mixed := _mixed(model)):
        return warn(name, mixed, "take a model with full attention, or the profile mp-cache")
    shown = model.architecture or model.name
    return ok(name, f"{shown}; {template.name} does not blend, and takes any that vLLM serves")


def incurable(model: Model, taken: Sequence[str], *, curable: bool) -> tuple[Check, ...]:
    """The rows of a model that fail whatever is applied and however vLLM is started.

    Args:
        model: its configuration.
        taken: as for :func:`model_checks`.
        curable: whether there is a patch for scaled rope.
    """
    rows = (
        class_check(model.architecture, taken),
        _layers(model),
        _rope(model, cured=curable or None),
    )
    return tuple(row for row in rows if row.state is State.FAIL)


def class_check(architecture: str, taken: Sequence[str]) -> Check:
    """Whether a class is one that the installed LMCache blends, as for :func:`model_checks`."""
    name = "model"
    if not taken:
        return not_checked(name, "which models this LMCache blends can't be read")
    if architecture in taken:
        return ok(name, f"{architecture}, one that this LMCache blends")
    todo = f"take one of: {', '.join(taken)}"
    if first := SINCE.get(architecture):
        todo = f"take LMCache {first} or newer, or a model of: {', '.join(taken)}"
    return fail(name, f"this LMCache does not blend {architecture or 'it'}", todo)


def _dtype(model: Model, served: str | None) -> Check:
    name, dtype = "dtype", model.dtype if served in (None, "", "auto") else str(served)
    if dtype == DTYPE:
        return ok(name, dtype)
    told = f"{dtype}, and LMCache blends {DTYPE}"
    if served is None:
        todo = f"serve it with --dtype {DTYPE}, as the command of `kvpatch profile` does"
        return warn(name, told, todo)
    return fail(name, told, f"serve --dtype {DTYPE}")


def _rope(model: Model, *, cured: bool | None) -> Check:
    if not model.rope or cured:
        return ok("rope", "a patch for its scaling is in place" if model.rope else "not scaled")
    return fail(
        "rope",
        f"its rope is scaled ({model.rope}), which LMCache drops when it blends: answers get "
        "worse without a word",
        _APPLY if cured is False else "take a model without it",
    )


def _mixed(model: Model) -> str:
    """What is said of layers of several kinds; empty for a model that has one."""
    kinds = []
    if model.windowed_layers:
        kinds.append(f"{model.windowed_layers} layers with a window of {model.window} tokens")
    if model.other_layers:
        kinds.append(f"{model.other_layers} layers without attention")
    return f"{' and '.join(kinds)}, which LMCacheConnectorV1 can't keep apart" if kinds else ""


def _layers(model: Model) -> Check:
    if mixed := _mixed(model):
        todo = "take a model with full attention, or the profile mp-cache"
        return fail("layers", mixed, todo)
    if model.latent_size:
        return fail("layers", "MLA, which LMCache does not blend", "take the profile cpu-offload")
    return ok("layers", f"{model.layers} with full attention")


def check_layers_check(model: Model, layers: object, ratios: object) -> Check | None:
    """Whether blending finds its check layer in a model; None where the release has no such key.

    Args:
        model: its configuration.
        layers: value of ``blend_check_layers``.
        ratios: value of ``blend_recompute_ratios``, of which LMCache takes the first.
    """
    if not isinstance(layers, list) or not all(type(one) is int for one in layers):
        return None
    name, count = "check layers", model.layers + model.other_layers
    there = sorted({one for one in layers if 0 <= one < count})
    beyond = [one for one in dict.fromkeys(layers) if not 0 <= one < count]
    told = f"blend_check_layers: {layers}, and {model.name} has the layers 0 to {count - 1}"
    todo = "write blend_check_layers: [1]"
    if not there:
        told += ": no token is computed anew, and answers come from chunks as they were stored"
        return fail(name, told, todo)
    first = ratios[0] if isinstance(ratios, list) and ratios else None
    if len(there) > 1 and not (isinstance(first, int | float) and first >= 1):
        told += f": {SECOND}, which is {there[1]} here"
        return fail(name, told, todo)
    if beyond:
        return warn(name, f"{told}: {', '.join(map(str, beyond))} has no effect", todo)
    return ok(name, f"{there[0]}, of the layers 0 to {count - 1}")


def separator_check(answer: Answer, separator: str, *, cured: bool | None) -> Check:
    """Whether the separator is found between documents, and nowhere else.

    Args:
        answer: of the tokenizer's probe, asked as LMCache stands.
        separator: the text between documents.
        cured: whether the patch that keeps it whole is in place; None where this pair has none.
    """
    name = "separator"
    if answer.facts is None:
        return not_checked(name, answer.problem)
    facts = answer.facts
    if "problem" in facts:
        told = f"the tokenizer can't be loaded: {facts['problem']}"
        return not_checked(name, told, _LOADED[facts.get("lacks", "")])
    counted = (
        f"{facts['wanted']} segments wanted, {facts['found']} found, {facts['spurious']} spurious"
    )
    shown = ascii(separator)
    if not facts["tokens"]:
        return fail(name, f"{shown} is no token to this tokenizer", "take another text")
    if not facts["kept"]:
        return fail(
            name,
            f"LMCache drops the only token of {shown}, and finds no segment",
            _APPLY if cured is False else "take a separator of several tokens",
        )
    if facts["loses_first"]:
        return fail(
            name,
            f"LMCache drops the first token of {shown}, as this tokenizer sets no BOS: {counted}",
            _APPLY if cured is False else "take a model whose tokenizer sets a BOS token",
        )
    if facts["found"] < facts["wanted"] or facts["spurious"]:
        return fail(name, f"{shown}: {counted}", "take a text that no document has")
    if facts["found_in_text"] < facts["wanted"]:
        return warn(
            name,
            f"{shown}: {counted} where token lists are joined, {facts['found_in_text']} where the "
            "text is tokenized whole",
            "send token lists that are joined at its tokens, one behind the last document too"
            + _kept_by_text(facts.get("better")),
        )
    return ok(name, f"{shown}: {counted}")


def _kept_by_text(better: str | None) -> str:
    """What to do where texts are sent, of which /v1/chat/completions takes nothing else."""
    if better is None:
        return ", and no texts"
    return (
        f"; or, for texts and /v1/chat/completions, write blend_special_str: {json.dumps(better)} "
        "and see that no document begins with a line break"
    )
