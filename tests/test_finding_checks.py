"""A doctor's rows for findings: what to do is an action, and what was looked at was checked."""

from __future__ import annotations

from typing import Any

import pytest
from kvpatch import rules
from kvpatch.diagnosis import State
from kvpatch.finding_checks import finding_check
from kvpatch.lint_hashing import NOT_LOOKED
from kvpatch.rules import APART, MEMORY, OVERRULED, PREFIX, SEED, Finding, Fix, Level
from linted import BLEND, LMCACHE, only, run

FIX = Fix("set", "use_layerwise", value=True)


@pytest.mark.parametrize(
    ("finding", "state", "todo"),
    [
        (Finding(OVERRULED, "m", "chunk_size", "file", 3), State.NOTE, ""),
        (Finding(MEMORY, "m", source="launch", lower=Level.NOTE), State.NOTE, ""),
        (
            Finding(SEED, f"m{NOT_LOOKED}", lower=Level.NOTE),
            State.NOT_CHECKED,
            "give --pid PID to have it checked",
        ),
        (Finding(PREFIX, "m", source="launch"), State.FAIL, "change the command that starts vLLM"),
        (
            Finding(SEED, "m", "PYTHONHASHSEED", "environment"),
            State.FAIL,
            "start every vLLM process with PYTHONHASHSEED=0",
        ),
        (
            Finding(APART, "m", "chunk_size", "environment"),
            State.WARN,
            "change LMCACHE_CHUNK_SIZE in the environment that vLLM is started with",
        ),
        (Finding(APART, "m", "a", line=7), State.WARN, "change a in line 7 of the file"),
        (Finding(APART, "m", "a"), State.WARN, "write a into the file"),
        (
            Finding(PREFIX, "m", "", "launch", 3, path="/s.yaml"),
            State.FAIL,
            "change line 3 of /s.yaml",
        ),
        (Finding(PREFIX, "m", "", "launch", path="/s.yaml"), State.FAIL, "change /s.yaml"),
        (Finding(APART, "m", "a", fix=FIX), State.WARN, "write use_layerwise: true"),
        (Finding(APART, "m: do it", "a", line=7, todo="do it"), State.WARN, "do it"),
    ],
)
def test_a_row_says_what_is_wrong_why_and_what_to_do(
    finding: Finding, state: State, todo: str
) -> None:
    row = finding_check(finding)
    assert (row.state, row.todo) == (state, todo)
    assert row.reason == f"m. {finding.rule.why}"


THERE = "in the environment that vLLM is started with"
FILED = {"LMCACHE_CONFIG_FILE": "-", "PYTHONHASHSEED": "0"}
STORE = "gds_path: /mnt/a\ngds_buffer_size: 64\n"


@pytest.mark.releases
@pytest.mark.parametrize(
    ("text", "more", "rule", "todo"),
    [
        # The key that needs the seed is right, wherever it was written.
        (STORE, {"environ": {"LMCACHE_CONFIG_FILE": "-"}}, rules.SEED, "PYTHONHASHSEED=0"),
        (
            "local_cpu: true\n",
            {"environ": {"LMCACHE_CONFIG_FILE": "-", "LMCACHE_REMOTE_URL": "lm://h:1"}},
            rules.SEED,
            "start every vLLM process with PYTHONHASHSEED=0",
        ),
        (
            "chunk_size: 256\n",
            {
                "environ": {**FILED, "LMCACHE_PRE_CACHING_HASH_ALGORITHM": "builtin"}
                | {"PYTHONHASHSEED": "random"},
                "serve": f"vllm serve m -tp 2 {LMCACHE % ''}",
            },
            rules.SEED,
            "start every vLLM process with PYTHONHASHSEED=0",
        ),
        # What lacks is another key than the one that asks for it.
        ("gds_path: /mnt/a\n", {}, rules.NO_BUFFER, "write gds_buffer_size into the file"),
        (
            "chunk_size: 256\n",
            {"environ": {**FILED, "LMCACHE_GDS_PATH": "/mnt/a"}},
            rules.NO_BUFFER,
            f"set LMCACHE_GDS_BUFFER_SIZE {THERE}",
        ),
        (
            BLEND,
            {"environ": {**FILED, "LMCACHE_USE_LAYERWISE": "false"}},
            rules.LAYERWISE,
            f"set LMCACHE_USE_LAYERWISE {THERE}",
        ),
        (
            BLEND.replace("save_unfull_chunk: true\n", ""),
            {"release": "0.3.7"},
            rules.UNFULL,
            "take LMCache 0.3.9.post1 or newer",
        ),
        ("local_cpu: false\n", {}, rules.NO_TIER, "turn local_cpu on, or give another tier"),
        # No value of these mends it.
        ("chunk_size: 256\n", {"environ": {}}, rules.OTHER_FILE, "set LMCACHE_CONFIG_FILE to"),
        (
            "chunk_size: 256\n",
            {"release": "0.3.5", "environ": {**FILED, "LMCACHE_CHUNK_SIZE": "9"}},
            rules.IGNORED,
            "write the key into the file instead",
        ),
        (
            "chunk_size: 256\n",
            {"environ": {**FILED, "LMCACHE_CHUNKSIZE": "9"}},
            rules.LOOK_ALIKE,
            "give the variable its right name",
        ),
        (
            "cufile_buffer_size: 64\ngds_buffer_size: 64\n",
            {},
            rules.UNKNOWN_KEY,
            "change cufile_buffer_size in line 1 of the file",
        ),
        ("[1]", {}, rules.SYNTAX, "change it in line 1 of the file"),
    ],
)
def test_what_to_do_follows_from_the_rule_and_not_from_where_the_key_stands(
    text: str, more: dict[str, Any], rule: rules.Rule, todo: str
) -> None:
    found = only(run(text, **more), rule)
    assert todo in finding_check(found).todo


def test_without_a_key_or_a_line_there_is_nothing_to_write() -> None:
    assert finding_check(Finding(rules.SYNTAX, "m")).todo.startswith("mend the file")
    told = finding_check(Finding(rules.STOPS, "LMCache 0.5.6 stops with: x")).todo
    assert told == "change the value that LMCache names there"


def test_a_variable_that_a_script_keeps_to_itself_is_to_be_exported() -> None:
    row = finding_check(Finding(rules.WITHHELD, "m", "LMCACHE_CHUNK_SIZE", "launch"))
    assert (row.state, row.todo) == (
        State.WARN,
        "export it to vLLM's own process in what starts vLLM",
    )


def test_what_is_there_under_its_right_name_too_is_taken_out() -> None:
    for rule in (rules.DEPRECATED, rules.MISPLACED):
        assert (
            finding_check(Finding(rule, "m", "a", line=4)).todo == "remove a in line 4 of the file"
        )
