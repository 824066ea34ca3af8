"""Whether a named model can be served by a profile: what nothing cures, and what vLLM stops at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .diagnosis import Check, State
from .kv_size import GIB, kv_size, unshared
from .model_checks import DTYPE, class_check, fit_check, incurable, separator_check
from .model_config import LeftOutError, Model
from .outcome import KvpatchError
from .probe import probe
from .sizing import Numbers, Wanted
from .templates import Pair, Template

_SEPARATOR = "blend_special_str"
_LIMIT_S = 60.0
LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_ROPE, _TOKEN = "KV003", "KV007"


def refuse(template: Template, pair: Pair, model: Model, read: Callable[[], Sequence[str]]) -> str:
    """See that a model can be blended, by the checks of ``kvpatch doctor``.

    Args:
        template: of the profile.
        pair: what it is for.
        model: the model.
        read: tells the classes that this LMCache blends, none where its table is not there; what
            it raises is told in the answer.

    Returns:
        what has to be known of it; empty for nothing.

    Raises:
        KvpatchError: ``no-cure``, exit 3.
    """
    if not template.blends:
        return ""
    taken: Sequence[str] = ()
    why = ""
    try:
        taken = read()
    except KvpatchError as error:
        # Its keys can be known from an earlier run, and the index not be there.
        why = f" ({error.message}: {error.hint})"
    found = incurable(model, taken, curable=_ROPE in pair.cured)
    if found:
        raise _refusal(template, model.name, found)
    if taken:
        return ""
    return f"which models this LMCache blends can't be read{why}: is {model.architecture} one?"


def refuse_class(
    template: Template, error: LeftOutError, name: str, read: Callable[[], Sequence[str]]
) -> None:
    """The same of a model of which the class alone is known.

    Raises:
        KvpatchError: ``no-cure``, exit 3.
    """
    check = class_check(error.architecture, read() if template.blends else ())
    if check.state is State.FAIL:
        # Whether another profile can serve it is not known either.
        raise _refusal(template, name, (check,), other="") from None


def _refusal(
    template: Template,
    name: str,
    found: Sequence[Check],
    other: str = ", or the profile cpu-offload",
) -> KvpatchError:
    todo = dict.fromkeys(one.todo.removeprefix("take ") for one in found)
    if any("the profile" in one for one in todo):
        other = ""
    return KvpatchError(
        "no-cure",
        f"{name} can't be served by {template.name}: {'; '.join(one.reason for one in found)}",
        f"take {', or '.join(todo)}{other}",
    )


def dtype_of(template: Template, model: Model | None) -> str:
    """What vLLM must be told to serve the model in; empty for its own."""
    return DTYPE if model is not None and template.blends and model.dtype != DTYPE else ""


def separator_row(
    folder: Path, separator: str, *, cured: bool | None, limit: float, python: Path | None
) -> Check:
    """The row of a separator, tried with the tokenizer in that folder by that interpreter.

    ``cured`` is whether LMCache is patched to take it whole, ``limit`` in seconds.
    """
    argv = [str(folder), separator, "whole" if cured else "cut"]
    answer = probe("tokenizer_probe", argv, limit=limit, python=python)
    return separator_check(answer, separator, cured=cured)


def separator_tried(
    pair: Pair, values: Mapping[str, Any], folder: Path, python: Path
) -> tuple[str, str]:
    """The doctor's row of a separator, as LMCache finds it once what the profile needs is there.

    Args:
        pair: what the profile is for.
        values: of its file.
        folder: that the model's tokenizer is in.
        python: the interpreter that vLLM runs in.

    Returns:
        a warning, and a note where it can't be tried; empty for none.
    """
    separator = values.get(_SEPARATOR)
    if not isinstance(separator, str):
        return "", ""
    cured = _TOKEN in pair.cured or None
    row = separator_row(folder, separator, cured=cured, limit=_LIMIT_S, python=python)
    told = f"{row.reason}: {row.todo}." if row.todo else f"{row.reason}."
    if row.state is State.NOT_CHECKED:
        return "", f"the separator was not tried: {told}"
    return ("", "") if row.state is State.OK else (f"separator {told}", "")


def warnings(template: Template, wanted: Wanted, made: Numbers) -> Iterator[str]:
    """What vLLM stops at with this model on this machine, and what the doctor warns of."""
    model = wanted.model
    if model is None:
        return
    check = fit_check(model, template)
    if check.state is State.WARN:
        yield f"{model.name} has {check.reason}: {check.todo}."
    if wanted.longest is not None and wanted.longest > model.most:
        yield (
            f"--max-model-len {wanted.longest} is more than the {model.most} tokens of "
            f"{model.name}: vLLM stops at start unless {LONGER}=1 is set, and answers beyond them "
            "can be nonsense."
        )
    if reason := unshared(model, wanted.ranks):
        taken = [n for n in range(1, model.heads + 1) if not unshared(model, n)]
        yield (
            f"--tp {wanted.ranks} is not for {model.name}: {reason}, and vLLM stops at start. It "
            f"takes {', '.join(map(str, taken))}."
        )
    if wanted.gpu_gib is None:
        return
    tokens = wanted.longest or model.longest
    share = made.share or made.whole
    weights = model.least_weights / wanted.ranks
    prompt = kv_size(model, wanted.ranks, wanted.kv_dtype).in_engine(tokens)
    if weights + prompt > share * wanted.gpu_gib * GIB:
        yield (
            f"--gpu-memory {wanted.gpu_gib:g} is too little: on each rank {model.name} takes at "
            f"least {weights / GIB:.1f} GiB of weights and {prompt / GIB:.1f} GiB for one prompt "
            f"of {tokens} tokens, and vLLM has {share:g} of the memory; it stops at start. Take "
            "more --tp, or a lower --max-model-len where that is enough."
        )
