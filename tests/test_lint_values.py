"""Rules about values as LMCache will have them, on real releases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvpatch import key_history, rules
from kvpatch.lint import lint
from kvpatch.mend import _rewritten
from kvpatch.rules import IMPOSSIBLE, Finding, Level
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import YamlFile
from linted import BLEND, LMCACHE, NEWEST, ids, only, run, schema, value
from lmcache_config import executed
from releases import lmcache_releases

pytestmark = pytest.mark.releases


@pytest.mark.parametrize(
    ("release", "written", "seen"),
    [
        ("0.5.6", " # # ", "# #"),
        ("0.3.9", " # # ", "# #"),
        ("0.5.6", "' # # '", " # # "),
        ("0.3.7", " # # ", " # # "),
        ("0.3.7", "' # # '", "' # # '"),
        ("0.3.3", " # # ", "file's"),
    ],
)
def test_the_separator_in_the_environment_is_told_as_lmcache_sees_it(
    release: str, written: str, seen: str
) -> None:
    variable = {"LMCACHE_BLEND_SPECIAL_STR": written}
    linted = run('blend_special_str: "file\'s"\n', release, environ=variable)
    assert value(linted, "blend_special_str") == seen
    stripped = [one for one in linted.findings if one.rule is rules.STRIPPED]
    assert bool(stripped) is (seen == "# #")
    if stripped:
        # The spelling that the message gives is one that arrives.
        text = stripped[0].message.split('LMCACHE_BLEND_SPECIAL_STR="')[1].rstrip('"')
        again = run("", release, environ={"LMCACHE_BLEND_SPECIAL_STR": text})
        assert value(again, "blend_special_str") == " # # "
    ignored = [one for one in linted.findings if one.rule is rules.IGNORED]
    assert bool(ignored) is (release == "0.3.3")


def test_an_unquoted_separator_is_a_comment_with_the_quoted_one_as_its_fix() -> None:
    found = only(run("blend_special_str:  # # \n"), rules.EMPTY)
    assert "comment" in found.message
    assert found.fix is not None
    assert found.fix.value == " # # "


@pytest.mark.parametrize(
    ("written", "seen", "fixed"),
    [('"yes"', False, True), ("yes", True, None), ('"on"', False, True), ("2", False, None)],
)
def test_only_true_and_1_are_true(written: str, seen: bool, fixed: bool | None) -> None:
    linted = run(f"local_cpu_use_hugepages: {written}\n")
    assert value(linted, "local_cpu_use_hugepages") is seen
    if seen:
        assert linted.findings == ()
        return
    found = only(linted, rules.CHANGED)
    assert "as false" in found.message
    assert (found.fix.value if found.fix else None) is fixed


def test_a_size_with_a_unit_is_lost_and_its_number_is_the_fix() -> None:
    found = only(run('max_local_cpu_size: "5GB"\n'), rules.LOST)
    assert "becomes null" in found.message
    assert found.fix is not None
    assert found.fix.value == 5.0
    assert "stops LMCache" in only(run('max_local_cpu_size: "5GB"\n', "0.3.9"), rules.LOST).message


def test_a_list_in_a_variable_is_dropped_and_what_was_there_stays() -> None:
    linted = run(BLEND, environ={"LMCACHE_BLEND_RECOMPUTE_RATIOS": "[0.3]"})
    assert "is dropped" in only(linted, rules.LOST).message
    assert value(linted, "blend_recompute_ratios") == [0.15]


@pytest.mark.parametrize(
    ("name", "written", "right"),
    [
        ("blend_recompute_ratios", "[0.3]", "0.3"),
        ("blend_recompute_ratios", "[0.3, 0.2]", "0.3,0.2"),
        ("blend_check_layers", "[2]", "2"),
    ],
)
def test_a_list_in_a_variable_is_told_as_a_variable_has_it_and_not_written_into_the_file(
    name: str, written: str, right: str
) -> None:
    variable = f"LMCACHE_{name.upper()}"
    linted = run(BLEND, environ={variable: written})
    found = only(linted, rules.LOST)
    assert found.message.endswith(f"stays; write {right}")
    assert (found.source, found.line, found.fix) == ("environment", 0, None)
    assert value(run(BLEND, environ={variable: right}), name) == json.loads(written)
    # What vLLM's extra config has is JSON, whatever counts in the end.
    extra = ', "kv_connector_extra_config": {"lmcache.%s": "%s"}' % (name, written)  # noqa: UP031
    serve = f"vllm serve m {LMCACHE % extra}"
    found = only(run(BLEND, environ={variable: right}, serve=serve), rules.LOST)
    assert found.message.endswith(f"stays; write {written}")
    assert found.source == "launch"


def test_a_variable_that_stops_this_release_is_an_error() -> None:
    variable = {"LMCACHE_RETRIEVE_LOCATIONS": "GdsBackend"}
    assert "stops LMCache" in only(run("", "0.4.4", environ=variable), rules.LOST).message
    assert (
        run("chunk_size: 256\n", "0.5.6", environ={**variable, "LMCACHE_CONFIG_FILE": "-"}).findings
        == ()
    )


def test_what_lmcaches_own_check_refuses_or_turns_over_is_told() -> None:
    assert "enable_controller=True" in only(run("enable_controller: true\n"), rules.STOPS).message
    turned = run(f"{BLEND}".replace("chunk: true", "chunk: false"))
    assert "becomes true" in only(turned, rules.TURNED).message


def test_quotes_that_a_release_keeps_are_an_error_and_those_it_takes_away_are_none() -> None:
    environ = {"LMCACHE_BLEND_SPECIAL_STR": "' # # '", "LMCACHE_CONFIG_FILE": "-"}
    old, new = (run("chunk_size: 8\n", one, environ=environ) for one in ("0.3.7", "0.5.6"))
    assert value(old, "blend_special_str") == "' # # '"
    assert "keeps the quotes" in only(old, rules.CHANGED).message
    assert value(new, "blend_special_str") == " # # "
    assert new.findings == ()


def test_a_value_of_another_type_is_an_error_where_nothing_converts_it() -> None:
    release = "0.3.3"
    assert "no whole number" in only(run("cufile_buffer_size: abc\n", release), IMPOSSIBLE).message
    text = "chunk_size: abc\nlocal_cpu: 'false'\nmax_local_cpu_size: 5GB\nuse_layerwise: true\n"
    linted = run(text, release)
    assert {one.key for one in linted.findings if one.level is Level.ERROR} == {
        "chunk_size",
        "local_cpu",
        "max_local_cpu_size",
    }
    assert ids(run("chunk_size: 256\nlocal_cpu: 1\nmax_local_cpu_size: 5\n", release)) == set()


@pytest.mark.parametrize(
    ("key", "text", "right"),
    [
        ("max_local_cpu_size", "100G", 100.0),
        ("max_local_cpu_size", "512 MiB", 0.5),
        ("max_local_disk_size", "2TB", 2048.0),
        ("gds_buffer_size", "4GiB", 4096),
        ("gds_buffer_size", "512m", 512),
        ("gds_buffer_size", "100 KiB", None),
        ("pd_buffer_size", "1g", 2**30),
        ("max_local_cpu_size", "4 parts", None),
    ],
)
def test_a_size_with_its_unit_is_mended_in_the_unit_of_its_key(
    key: str, text: str, right: float | None
) -> None:
    found = only(run(f"{key}: {text}\n"), rules.LOST)
    assert (found.fix.value if found.fix else None) == right
    if right is not None:
        assert type(found.fix.value) is type(right)  # type: ignore[union-attr]
        assert run(f"{key}: {right}\n").clean


def test_a_number_that_is_none_is_told_once() -> None:
    (found,) = run("max_local_cpu_size: .nan\n").findings
    assert found.rule is rules.IMPOSSIBLE


@pytest.mark.parametrize(
    ("variable", "text", "right"),
    [
        ("BLEND_CHECK_LAYERS", "[1]", "1"),
        ("BLEND_CHECK_LAYERS", "[1, 2]", "1,2"),
        ("BLEND_RECOMPUTE_RATIOS", "[0.15]", "0.15"),
        ("P2P_INIT_PORTS", "[1]", "1"),
        ("RETRIEVE_LOCATIONS", '["LocalCPUBackend"]', "LocalCPUBackend"),
        ("NIXL_BACKENDS", "['UCX', 'GDS']", "UCX,GDS"),
    ],
)
def test_a_list_in_a_variable_is_told_in_the_form_that_works(
    variable: str, text: str, right: str
) -> None:
    name = f"LMCACHE_{variable}"
    wrong = alone({name: text})
    assert {one.level for one in wrong} == {Level.ERROR}
    assert wrong[0].message.endswith(f"; write {right}")
    assert alone({name: right}) == []


def alone(environ: dict[str, str]) -> list[Finding]:
    """What is said of the values of variables with no file."""
    file = YamlFile("env", "", written=False)
    linted = lint(file, schema(NEWEST), key_history.load(), Surroundings(environ))
    named = (rules.LOST, rules.CHANGED, rules.EMPTY, rules.CHOICE)
    return [one for one in linted.findings if one.rule in named]


def test_what_a_variable_lacks_is_told_in_the_form_that_works() -> None:
    told = [
        one.message.rpartition(" ")[2]
        for one in alone({"LMCACHE_ENABLE_BLENDING": "true", "LMCACHE_USE_LAYERWISE": "true"})
    ]
    assert sorted(told) == ["0.15", "1"]


@pytest.mark.parametrize("text", ["", "None", "null", " "])
@pytest.mark.parametrize("key", ["PRIORITY_LIMIT", "EXTRA_CONFIG"])
def test_a_variable_that_says_nothing_is_as_good_as_none(key: str, text: str) -> None:
    assert alone({f"LMCACHE_{key}": text}) == []
    for one in ("LOCAL_DISK", "REMOTE_URL", "BLEND_CHECK_LAYERS"):
        assert alone({f"LMCACHE_{one}": ""}) == []


def test_null_is_called_another_value_where_the_default_is_one() -> None:
    (lost,) = alone({"LMCACHE_CHUNK_SIZE": ""})
    assert "null, not the default" in lost.message
    (lost,) = alone({"LMCACHE_PRIORITY_LIMIT": "abc"})
    assert lost.message.endswith("becomes null")


DISK = "max_local_disk_size: 5\n"
NOWHERE = ("local_disk", "gds_path", "weka_path", "maru_path", "remote_url", "p2p_host")


# Those after which a loader takes such words otherwise, and the newest.
CHANGES = ("0.3.3", "0.3.4", "0.3.12", "0.4.3", "0.4.4", str(lmcache_releases()[-1]))


@pytest.mark.parametrize("release", CHANGES)
def test_a_word_for_no_folder_is_taken_for_one_and_null_is_written(
    release: str, tmp_path: Path
) -> None:
    words = ("None", "false", "'null'", "off", "''")
    names = [name for name in NOWHERE if name in schema(release).keys]
    texts = {(name, word): f"{DISK}{name}: {word}\n" for name in names for word in words}
    cases = [{"text": text, "names": [name]} for (name, _), text in texts.items()]
    for ((name, word), text), real in zip(
        texts.items(), executed(release, cases, tmp_path), strict=True
    ):
        found = [one for one in run(text, release).findings if one.key == name]
        # Of these alone LMCache asks whether they are true.
        if real["values"].get(name) in ("", None) and name in ("local_disk", "p2p_host"):
            assert real["stop"] or (word, found) == ("''", [])
            continue
        (one,) = found
        assert one.rule is (rules.LOST if real["stop"] else rules.MISNAMED), text
        assert one.level is (Level.WARNING if name == "p2p_host" else Level.ERROR)
        assert one.message.endswith("; write null or leave it out")
        if not real["stop"] and word != "''":
            assert f"that is called {real['values'][name]};" in one.message
        assert one.fix is not None
        after = _rewritten(text, (one.fix,))
        assert after == f"{DISK}{name}: null\n"
        (again,) = executed(release, [{"text": after, "names": [name]}], tmp_path)
        assert (again["stop"], again["values"]) == (None, {name: None})
        assert name not in {one.key for one in run(after, release).findings}


def test_no_folder_is_made_without_a_size() -> None:
    for more in ("", "max_local_disk_size: 0\n"):
        found = run(f"local_disk: None\n{more}").findings
        assert [(one.rule, one.level) for one in found] == [(rules.MISNAMED, Level.WARNING)]
        assert "makes none while max_local_disk_size is 0" in found[0].message


def test_a_variable_that_says_nothing_is_left_out() -> None:
    found = only(run("", environ={"LMCACHE_REMOTE_URL": ""}), rules.MISNAMED)
    assert (found.level, found.fix) == (Level.ERROR, None)
    assert found.message == (
        'LMCache 0.5.6 takes LMCACHE_REMOTE_URL: "" for an address of no name; leave it out'
    )


def test_a_truth_value_that_becomes_a_text_is_told_as_one() -> None:
    told = only(run("lmcache_instance_id: false\n"), rules.CHANGED).message
    assert told == 'LMCache 0.5.6 reads lmcache_instance_id: false as the text "False"'
