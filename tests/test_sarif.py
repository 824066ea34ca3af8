"""Findings as SARIF: what a viewer needs is there and hangs together."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvpatch import rules
from kvpatch.rules import Finding, Level
from kvpatch.sarif import sarif

FINDINGS = (
    Finding(rules.UNKNOWN_KEY, "no such key", "x", line=7, column=3),
    Finding(rules.SEED, "no seed", "y", source="environment", lower=Level.NOTE),
)


def test_a_result_points_to_its_rule_and_its_line() -> None:
    (run,) = sarif("a.yaml", FINDINGS)["runs"]
    listed = run["tool"]["driver"]["rules"]
    first, second = run["results"]
    for result in (first, second):
        assert listed[result["ruleIndex"]]["id"] == result["ruleId"]
    region = first["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 7, "startColumn": 3}
    assert (first["level"], second["level"]) == ("error", "note")
    # What has no line is shown at the first: a region begins at 1.
    assert second["locations"][0]["physicalLocation"]["region"]["startLine"] == 1


@pytest.mark.parametrize("path", ["a b.yaml", "x/a.yaml"])
def test_a_relative_path_stays_relative_and_an_absolute_one_is_a_uri(
    path: str, tmp_path: Path
) -> None:
    def uri(given: str) -> str:
        result = sarif(given, FINDINGS)["runs"][0]["results"][0]
        return str(result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"])

    assert not uri(path).startswith("file:")
    assert uri(str(tmp_path / path)).startswith("file:///")


def test_a_finding_in_another_file_points_there() -> None:
    found = Finding(rules.PREFIX, "m", source="launch", line=4, column=1, path="/x/serve.yaml")
    (result,) = sarif("a.yaml", [found])["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "file:///x/serve.yaml"
    assert place["region"]["startLine"] == 4


def test_a_clean_file_has_a_run_without_results() -> None:
    log = sarif("a.yaml", ())
    assert (log["version"], log["runs"][0]["results"]) == ("2.1.0", [])
