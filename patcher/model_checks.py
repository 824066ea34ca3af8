"""What a model's configuration and tokenizer mean for blending."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .diagnosis import Check, fail, not_checked, ok, warn
from .model_config import Model
from .probe import Answer

_APPLY = "run `kvpatch apply`"
# What to do where the tokenizer can't be loaded, by what it is that lacks.
_LOADED = {
    "files": "give --model a folder with the model's tokenizer too, such as tokenizer.json",
    "module": "install it where vLLM runs, or give --model a folder with a tokenizer.json",
    "": "give --model the folder that vLLM serves, with the tokenizer as it was released",
}


def model_checks(model: Model, taken: Sequence[str], *, cured: bool | None) -> Iterator[Check]:
    """The rows of a model.

    Args:
        model: its configuration.
        taken: classes that the installed LMCache blends; empty where that can't be read.
        cured: whether the patch for scaled rope is in place; None where this pair has none.
    """
    name = "model"
    if not taken:
        yield not_checked(name, "which models this LMCache blends can't be read")
    elif model.architecture in taken:
        yield ok(name, f"{model.architecture}, one that this LMCache blends")
    else:
        todo = f"take one of: {', '.join(taken)}"
        yield fail(name, f"this LMCache does not blend {model.architecture or 'it'}", todo)
    if model.rope and not cured:
        yield fail(
            "rope",
            f"its rope is scaled ({model.rope}), which LMCache drops when it blends: answers get "
            "worse without a word",
            _APPLY if cured is False else "take a model without it",
        )
    else:
        yield ok("rope", "a patch for its scaling is in place" if model.rope else "not scaled")
    if model.dtype != "bfloat16":
        yield fail("dtype", f"{model.dtype}, and LMCache blends bfloat16", "serve --dtype bfloat16")
    else:
        yield ok("dtype", model.dtype)
    if model.hybrid:
        kinds = []
        if model.windowed_layers:
            kinds.append(f"{model.windowed_layers} layers with a window of {model.window} tokens")
        if model.other_layers:
            kinds.append(f"{model.other_layers} layers without attention")
        told = f"{' and '.join(kinds)}, which LMCacheConnectorV1 can't keep apart"
        yield fail("layers", told, "take a model with full attention, or the profile mp-cache")
    elif model.latent_size:
        yield fail("layers", "MLA, which LMCache does not blend", "take the profile cpu-offload")
    else:
        yield ok("layers", f"{model.layers} with full attention")


def separator_check(answer: Answer, separator: str, *, cured: bool | None) -> Check:
    """Whether the separator is found between documents, and nowhere else."""
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
    if not facts["kept"] and not cured:
        return fail(
            name,
            f"LMCache drops the only token of {shown}, and finds no segment",
            _APPLY if cured is False else "take a separator of several tokens",
        )
    if facts["loses_first"] and not cured:
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
            "join token lists, and not texts, and put one after the last document too",
        )
    return ok(name, f"{shown}: {counted}")
