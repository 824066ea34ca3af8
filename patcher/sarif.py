"""Findings as SARIF 2.1.0, which code review tools show beside the lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__, rules
from .rules import Finding

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(path: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """The log of one run over one file, and over what vLLM is started with."""
    place = {rule.id: number for number, rule in enumerate(rules.ALL)}
    driver = {
        "name": "kvpatch lint",
        "version": __version__,
        "rules": [
            {
                "id": rule.id,
                "name": rule.name,
                "shortDescription": {"text": rule.name.replace("-", " ")},
                "fullDescription": {"text": rule.why},
                "defaultConfiguration": {"level": rule.level.value},
            }
            for rule in rules.ALL
        ],
    }
    results = [
        {
            "ruleId": finding.rule.id,
            "ruleIndex": place[finding.rule.id],
            "level": finding.level.value,
            "message": {"text": finding.message},
            "locations": [_location(path, finding)],
        }
        for finding in findings
    ]
    run = {"tool": {"driver": driver}, "results": results, "columnKind": "unicodeCodePoints"}
    return {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}


def _location(path: str, finding: Finding) -> dict[str, Any]:
    shown = Path(finding.path or path)
    uri = shown.as_uri() if shown.is_absolute() else shown.as_posix()
    # A finding about the whole is shown at the first line: a region has to be one.
    region = {"startLine": max(finding.line, 1), "startColumn": max(finding.column, 1)}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
