"""Variables that are set and do not reach vLLM; whole scripts are in test_linting."""

from __future__ import annotations

import pytest
from kvpatch import key_history
from kvpatch.launch import Launch
from kvpatch.lint import Surroundings, lint
from kvpatch.shell_state import Withheld
from kvpatch.yaml_source import parse_yaml
from linted import schema

pytestmark = pytest.mark.releases


def found(launch: Launch | None, environ: dict[str, str] | None = None) -> list[str]:
    around = Surroundings(environ, launch=launch)
    linted = lint(parse_yaml("chunk_size: 256\n"), schema("0.5.6"), key_history.load(), around)
    told = [(one.rule.id, one.level.value, one.key) for one in linted.findings]
    return [" ".join(one) for one in told if one[0] in ("LM060", "LM064")]


def test_variables_of_lmcache_and_the_seed_are_told_and_no_others() -> None:
    names = ("LMCACHE_CHUNK_SIZE", "PYTHONHASHSEED", "VLLM_PORT", "HOME")
    launch = Launch({}, withheld={name: Withheld("1") for name in names})
    assert found(launch) == ["LM064 warning LMCACHE_CHUNK_SIZE", "LM064 warning PYTHONHASHSEED"]


def test_a_script_that_does_not_name_the_file_leaves_that_to_who_starts_it() -> None:
    script = Launch({}, scripted=True)
    assert found(script) == ["LM060 note LMCACHE_CONFIG_FILE"]
    assert found(Launch({})) == []
    assert found(None) == []
    # What the whole environment lacks is an error of its own.
    assert found(script, {"A": "1"}) == ["LM060 error LMCACHE_CONFIG_FILE"]


def test_a_file_that_is_named_and_kept_back_is_told_once() -> None:
    kept = Launch({}, scripted=True, withheld={"LMCACHE_CONFIG_FILE": Withheld("/a", "sudo")})
    assert found(kept) == ["LM064 warning LMCACHE_CONFIG_FILE"]
