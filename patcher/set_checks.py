"""Whether the values of ``--set`` are ones that this LMCache takes, and that the profile allows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from . import key_history, rules
from .lint import Linted, Surroundings, lint
from .outcome import ExitCode, KvpatchError
from .rules import Finding, Level
from .schema import EXTRA, Schema
from .templates import Pair, Template
from .yaml_source import parse_yaml

_BLENDING = "enable_blending"


def check(
    template: Template, schema: Schema, pair: Pair, changes: Mapping[str, Any], before: str, to: str
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
            f"take the profile {_other(template)}",
            ExitCode.USAGE,
        )
    known = {(one.rule.id, one.key) for one in _at(first, Level.WARNING)}
    warned = [one for one in _at(after, Level.WARNING) if (one.rule.id, one.key) not in known]
    return tuple(f"{one.message} ({one.rule.id})" for one in warned)


def _linted(text: str, schema: Schema, pair: Pair) -> Linted:
    return lint(parse_yaml(text), schema, key_history.load(), Surroundings(vllm=pair.vllm))


def _at(linted: Linted, level: Level) -> list[Finding]:
    return [one for one in linted.findings if one.level is level]


def _concerns(finding: Finding, changes: Collection[str]) -> bool:
    return finding.key in changes or (finding.key == EXTRA and finding.rule is rules.LOST)


def _other(template: Template) -> str:
    """The profile that keeps chunks at the same place, and blends where this one does not."""
    if template.blends:
        return "gds" if template.gds else "cpu-offload"
    return "gds-blend" if template.gds else "blend"
