"""Findings on variables that a script does not tell for certain; scripts are in test_linting."""

from __future__ import annotations

import pytest
from kvpatch import key_history
from kvpatch.launch import Launch, from_arguments
from kvpatch.lint import lint
from kvpatch.lint_unsure import note
from kvpatch.shell_state import Unsure
from kvpatch.shell_variables import Argument
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import parse_yaml
from linted import schema

CAUSE = "line 1 reads x, which can't be read here"
ANY = Unsure(causes=(CAUSE,))
SETTLED = frozenset({"LMCACHE_MAX_LOCAL_CPU_SIZE", "LMCACHE_LOCAL_CPU"})
NAMED = Unsure(frozenset({"LMCACHE_MAX_LOCAL_CPU_SIZE"}))


def levels(text: str, unsure: Unsure, lmcache: str = "0.5.6") -> dict[str, str]:
    """The level of each rule's finding."""
    around = Surroundings(None, launch=Launch({}, unsure=unsure))
    linted = lint(parse_yaml(text), schema(lmcache), key_history.load(), around)
    return {one.rule.id: one.level.value for one in linted.findings}


@pytest.mark.releases
@pytest.mark.parametrize(
    ("unsure", "level"),
    [
        (Unsure(), "error"),
        (ANY, "warning"),
        (NAMED, "warning"),
        (Unsure(frozenset({"LMCACHE_CHUNK_SIZE"})), "error"),
        (Unsure(causes=(CAUSE,), settled=SETTLED), "error"),
    ],
)
def test_an_error_that_a_variable_may_cure_is_a_warning(unsure: Unsure, level: str) -> None:
    found = levels("max_local_cpu_size: 0\n", unsure)
    assert found["LM035"] == level
    # What no variable changes stays.
    assert found["LM052"] == "error"


@pytest.mark.releases
def test_what_is_wrong_in_the_file_itself_stays_an_error() -> None:
    assert levels("chunk_sizee: 1\n", ANY)["LM010"] == levels("chunk_sizee: 1\n", Unsure())["LM010"]
    assert levels("a: [\n", ANY)["LM001"] == "error"


def test_what_is_not_certain_is_noted_with_what_to_do() -> None:
    assert note(None) == []
    assert note(Launch({})) == []
    (told,) = note(Launch({}, unsure=ANY))
    assert CAUSE in told
    assert "--env-file" in told
    (named,) = note(Launch({}, unsure=NAMED))
    assert "LMCACHE_MAX_LOCAL_CPU_SIZE may have another value" in named
    file = Unsure(frozenset({"LMCACHE_CONFIG_FILE", "HOME"}))
    # Of a script a finding tells of that one.
    assert note(Launch({}, unsure=file, scripted=True)) == []
    assert "LMCACHE_CONFIG_FILE" in note(Launch({}, unsure=file))[0]


def test_where_all_variables_are_told_nothing_is_unsure() -> None:
    launch = Launch({}, {"A": "1", "B": "2"}, unsure=Unsure(frozenset({"A"})))
    told = launch.told()
    assert (told.environ, told.unsure.any) == ({"B": "2"}, False)


@pytest.mark.parametrize(
    ("command", "concerns"),
    [
        ("docker compose up -d", False),
        ("kubectl apply -f x.yaml --server-side", False),
        ("systemctl start vllm --now", False),
        ("own --kv-transfer-config {}", True),
        ("own --kv-transfer-config.kv_role=kv_both", True),
        ("own --max-model-len 5", True),
        ("own --model m", True),
        ("own --config s.yaml", True),
        ("own --config x.conf", False),
    ],
)
def test_whether_options_are_vllms(command: str, concerns: bool) -> None:
    given = [Argument(one) for one in command.split()]
    assert from_arguments(given, {}).concerns_vllm is concerns


def test_a_scripts_own_variables_are_not_told() -> None:
    own = frozenset({"LMCACHE_PID", "LMCACHE_HTTP_PORT"})
    assert note(Launch({}, unsure=Unsure(own))) == []
    (told,) = note(Launch({}, unsure=Unsure(own | {"LMCACHE_CHUNK_SIZE"})))
    assert ": LMCACHE_CHUNK_SIZE may have another value" in told


@pytest.mark.releases
@pytest.mark.parametrize(("lmcache", "name"), [("0.3.3", "A"), ("0.3.11", "B")])
def test_a_variable_that_ends_the_engine_is_no_error_where_it_may_not_be_set(
    lmcache: str, name: str
) -> None:
    variable = "LMCACHE_USE_EXPERIMENTAL"
    for names, level in (({variable}, "warning"), ({name}, "error")):
        launch = Launch({}, environ={variable: "False"}, unsure=Unsure(frozenset(names)))
        around = Surroundings(None, launch=launch)
        file = parse_yaml("chunk_size: 256\n")
        linted = lint(file, schema(lmcache), key_history.load(), around)
        assert ("LM026", level) in {(one.rule.id, one.level.value) for one in linted.findings}
