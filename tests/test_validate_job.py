"""The CI job: what it may do, what it takes from elsewhere, and that its steps run here too."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parent.parent
WORKFLOW = CHECKOUT / ".github" / "workflows" / "validate.yml"
ISSUE = CHECKOUT / ".ci" / "issue.sh"

# Runners have no Node 20 since September 2026; an action made for it does not start.
FIRST_ON_NODE_24 = {"checkout": 5, "setup-python": 6, "upload-artifact": 6, "download-artifact": 7}


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())
    # YAML takes the key "on" for a boolean.
    found["on"] = found.pop(True)
    return found


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for one in job["jobs"].values() for step in one["steps"]]


def test_it_runs_nightly_and_on_push(job: dict[str, Any]) -> None:
    assert {"push", "schedule"} <= set(job["on"])


def test_every_action_is_pinned_by_its_commit_with_its_version_beside(job: dict[str, Any]) -> None:
    used = [step["uses"] for step in steps(job) if "uses" in step]
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action)
        assert re.search(rf"{action} # v\d+\.\d+\.\d+\n", WORKFLOW.read_text())


def test_every_action_runs_on_the_node_that_runners_have(job: dict[str, Any]) -> None:
    for step in steps(job):
        if "uses" in step:
            action, pinned = step["uses"].removeprefix("actions/").split("@")
            (major,) = re.findall(rf"@{pinned} # v(\d+)\.", WORKFLOW.read_text())[:1]
            assert int(major) >= FIRST_ON_NODE_24[action]


def test_it_may_read_and_only_the_job_that_opens_issues_may_do_that(job: dict[str, Any]) -> None:
    assert job["permissions"] == {}
    assert job["jobs"]["validate"]["permissions"] == {"contents": "read"}
    assert job["jobs"]["issue"]["permissions"] == {"contents": "read", "issues": "write"}
    for step in steps(job):
        if "actions/checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_its_commands_are_make_targets(job: dict[str, Any]) -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    commands = [step["run"] for step in steps(job) if "run" in step]
    assert commands == ["make validate", "make issue"]
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)


def test_the_artifact_holds_what_make_validate_writes(job: dict[str, Any]) -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    (folder,) = re.findall(r"^VALIDATED := (.*)$", makefile, re.MULTILINE)
    held = [step["with"]["path"] for step in steps(job) if "artifact" in step.get("uses", "")]
    assert held == [f"{folder}/"] * 2
    for name in ("summary.md", "junit.xml", "matrix.html", "issue.md"):
        assert f"$(VALIDATED)/{name}" in makefile


def issue(text: Path, gh: Path | None = None, **environ: str) -> str:
    path = os.environ["PATH"] if gh is None else f"{gh}:{os.environ['PATH']}"
    kept = {"PATH": path, "HOME": str(text.parent)}
    done = subprocess.run(
        [ISSUE, text], check=True, capture_output=True, text=True, env={**kept, **environ}
    )
    return done.stdout


def test_the_issue_is_printed_where_there_is_no_token(tmp_path: Path) -> None:
    text = tmp_path / "issue.md"
    assert "no issue" in issue(text)
    text.write_text("a title\n\nwhat is new\n")
    assert issue(text) == text.read_text()


def test_one_issue_is_opened_for_a_title(tmp_path: Path) -> None:
    text, gh = tmp_path / "issue.md", tmp_path / "gh"
    text.write_text("vLLM 0.34.0: red\n\nwhat is red\n")
    # A stand-in for GitHub's command.
    gh.write_text(
        "#!/bin/sh\n"
        f'if [ "$2" = list ]; then cat {tmp_path}/open; exit; fi\n'
        f'echo "$@" >> {tmp_path}/made; cat >> {tmp_path}/made\n'
    )
    gh.chmod(0o755)
    (tmp_path / "open").write_text("another one\n")
    issue(text, tmp_path, GH_TOKEN="x")
    made = (tmp_path / "made").read_text()
    assert made == "issue create --title vLLM 0.34.0: red --body-file -\nwhat is red\n"
    (tmp_path / "open").write_text("vLLM 0.34.0: red\n")
    assert "there is an open issue" in issue(text, tmp_path, GH_TOKEN="x")
    assert (tmp_path / "made").read_text() == made
