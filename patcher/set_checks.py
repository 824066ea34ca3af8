"""Whether the values of ``--set`` are ones that this LMCache takes, and that the profile allows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from . import key_history, rules
from .coercion import Effective
from .diagnosis import State
from .lint import Linted, lint
from .model_checks import check_layers_check
from .model_config import Model
from .outcome import ExitCode, KvpatchError
from .rules import Finding, Level
from .schema import EXTRA, Schema
from .surroundings import Surroundings
from .templates import Pair, Template, like
from .yaml_source import parse_yaml

_BLENDING = "enable_blending"


def check(
    template: Template,
    schema: Schema,
    pair: Pair,
    changes: Mapping[str, Any],
    before: str,
    to: str,
    model: Model | None = None,
) -> tuple[str, ...]:
    """Hold a text with changed values against the rules of ``kvpatch lint``.

    Returns what lint warns of with them, and does not without them.

    Args:
        template: of the profile.
        schema: of the LMCache release.
        pair: what it is for.
        changes: the new values by key.
        before: the YAML text without them.
        to: the text with them.
        model: that it is for; None where it was not named.

    Raises:
        KvpatchError: ``bad-value`` (exit 2): lint would have an error that it has not without them;
            ``other-profile`` (exit 2): another profile is for that.
    """
    first = _linted(before, schema, pair)
    known = {(one.rule.id, one.key) for one in _at(first, Level.ERROR)}
    after = _linted(to, schema, pair)
    for finding in _at(after, Level.ERROR):
        if (finding.rule.id, finding.key) not in known or _concerns(finding, changes):
            raise KvpatchError(
                "bad-value",
                f"--set: {finding.message}",
                f"give another value ({finding.rule.id}). {finding.rule.why}",
                ExitCode.USAGE,
            )
    blends = bool(after.effective and after.effective.get(_BLENDING))
    if _BLENDING in changes and blends is not template.blends:
        does = "is for blending" if template.blends else "is not for blending"
        raise KvpatchError(
            "other-profile",
            f"--set {_BLENDING}={rules.spelt(blends)}: {template.name} {does}, and what it starts "
            "vLLM with would not fit",
            f"take the profile {like(blends=blends, gds=template.gds).name}",
            ExitCode.USAGE,
        )
    if blends and model is not None and after.effective is not None:
        _fits(model, after.effective)
    known = {(one.rule.id, one.key) for one in _at(first, Level.WARNING)}
    warned = [one for one in _at(after, Level.WARNING) if (one.rule.id, one.key) not in known]
    return tuple(f"{one.message} ({one.rule.id})" for one in warned)


def _fits(model: Model, seen: Effective) -> None:
    """See that the check layers are ones that the model has.

    Raises:
        KvpatchError: ``bad-value``, exit 2.
    """
    layers, ratios = (seen.get(f"blend_{name}") for name in ("check_layers", "recompute_ratios"))
    row = check_layers_check(model, layers, ratios)
    if row is not None and row.state is State.FAIL:
        raise KvpatchError("bad-value", f"--set: {row.reason}", row.todo, ExitCode.USAGE)


def _linted(text: str, schema: Schema, pair: Pair) -> Linted:
    return lint(parse_yaml(text), schema, key_history.load(), Surroundings(vllm=pair.vllm))


def _at(linted: Linted, level: Level) -> list[Finding]:
    return [one for one in linted.findings if one.level is level]


def _concerns(finding: Finding, changes: Collection[str]) -> bool:
    return finding.key in changes or (finding.key == EXTRA and finding.rule is rules.LOST)
