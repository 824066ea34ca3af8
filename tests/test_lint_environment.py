"""Variables that are set and do not reach vLLM; whole scripts are in test_linting."""

from __future__ import annotations

import pytest
from kvpatch import key_history
from kvpatch.launch import Launch
from kvpatch.launch_script import parse_launch
from kvpatch.lint import lint
from kvpatch.shell_state import Withheld
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import YamlFile, parse_yaml
from linted import LMCACHE, schema

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


SERVE = f"vllm serve m {LMCACHE % ''}"
SET = ', "kv_connector_extra_config": {"lmcache.chunk_size": 128}'


@pytest.mark.parametrize(
    ("serve", "environ", "level"),
    [
        (SERVE, {}, "warning"),
        (SERVE, {"LMCACHE_LOG_LEVEL": "DEBUG", "HOME": "/"}, "warning"),
        (None, {}, "note"),
        (SERVE, {"LMCACHE_CHUNK_SIZE": "128"}, ""),
        (SERVE, None, ""),
        (f"vllm serve m {LMCACHE % SET}", {}, ""),
        (SERVE.replace("LMCacheConnectorV1", "LMCacheMPConnector"), {}, ""),
    ],
)
def test_an_environment_without_a_configuration_is_told(
    serve: str | None, environ: dict[str, str] | None, level: str
) -> None:
    launch = None if serve is None else parse_launch(serve)
    around = Surroundings(environ, running=True, launch=launch)
    file = YamlFile("-", "", written=False)
    linted = lint(file, schema("0.5.6"), key_history.load(), around)
    told = [one for one in linted.findings if one.rule.id == "LM060"]
    assert [one.level.value for one in told] == [level] * bool(level)
    assert all("takes its defaults" in one.message and "export" in one.todo for one in told)


def test_a_file_that_is_newer_than_the_process_is_told_once() -> None:
    file = parse_yaml("chunk_size: 256\n")
    for named, changed, level in ((file.path, True, "warning"), (file.path, False, "")):
        environ = {"LMCACHE_CONFIG_FILE": named}
        around = Surroundings(environ, running=True, config_changed=changed)
        linted = lint(file, schema("0.5.6"), key_history.load(), around)
        told = [one for one in linted.findings if one.rule.id == "LM060"]
        assert [one.level.value for one in told] == [level] * bool(level)
    # What is said of another file is an error of its own.
    around = Surroundings({"LMCACHE_CONFIG_FILE": "/b"}, running=True, config_changed=True)
    linted = lint(file, schema("0.5.6"), key_history.load(), around)
    assert [one.level.value for one in linted.findings] == ["error"]


def test_a_scripts_own_variables_are_not_taken_for_lmcaches() -> None:
    names = ("LMCACHE_PORT", "LMCACHE_HTTP_PORT", "LMCACHE_PID", "LMCACHE_LOG_LEVEL")
    launch = Launch({}, withheld={name: Withheld("1") for name in names})
    assert found(launch) == ["LM064 warning LMCACHE_LOG_LEVEL"]
