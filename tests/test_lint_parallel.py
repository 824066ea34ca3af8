"""Rules about several ranks and several adapters, on real releases."""

from __future__ import annotations

import pytest
from kvpatch import key_history, rules
from kvpatch.launch_script import parse_launch
from kvpatch.lint import Linted, lint
from kvpatch.rules import Level
from kvpatch.serve_config import converted
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import parse_yaml
from linted import BARE, BLEND, LMCACHE, NEWEST, ids, only, run, schema
from packaging.version import Version

pytestmark = pytest.mark.releases

COMMAND = f"vllm serve m --no-enable-prefix-caching {LMCACHE % BARE}"
RULES = {"tensor": rules.TENSOR_PARALLEL, "pipeline": rules.PIPELINE_PARALLEL}


def started(flags: str, text: str = BLEND, agree: bool | None = False) -> Linted:
    return run(text, serve=f"{COMMAND} {flags}", vllm="0.32.0", ranks_agree=agree)


@pytest.mark.parametrize(
    ("flags", "kind", "count"),
    [
        ("--tensor-parallel-size 2", "tensor", 2),
        ("--tensor_parallel_size=4", "tensor", 4),
        ("--tensor-parallel 2", "tensor", 2),
        ("--tens 2", "tensor", 2),
        ("-tp 2", "tensor", 2),
        ("-tp=8", "tensor", 8),
        ("-t 2", "tensor", 2),
        ("--tensor-parallel-size ' 2'", "tensor", 2),
        ("--tensor-parallel-size 1 -tp 2", "tensor", 2),
        ("--pipeline-parallel-size 2", "pipeline", 2),
        ("--pipe=2", "pipeline", 2),
        ("-pp 3", "pipeline", 3),
    ],
)
def test_blending_on_several_ranks_is_an_error(flags: str, kind: str, count: int) -> None:
    linted = started(flags)
    found = only(linted, RULES[kind])
    assert found.level is Level.ERROR
    assert f"--{kind}-parallel-size is {count}," in found.message
    assert found.message.endswith(found.todo)
    assert ("--data-parallel-size" in found.todo) is (kind == "pipeline")
    assert ("apply" in found.todo) is (kind == "tensor")
    assert ids(linted) == {RULES[kind].name}
    # No patch makes stages of it.
    assert ids(started(flags, agree=True)) == {RULES[kind].name} - {rules.TENSOR_PARALLEL.name}


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "-tp 1 -pp 1",
        "--tensor-parallel-size 1",
        "--data-parallel-size 4",
        "-dp 4",
        "-tp 2 --tensor-parallel-size 1",
        "--tensor-parallel-size two",
    ],
)
def test_one_rank_is_right_however_many_engines(flags: str) -> None:
    # A number that is none stops vLLM, which is told as such.
    wrong = {rules.SERVE_CONFIG.name} if "two" in flags else set()
    assert ids(started(flags)) == wrong


def test_both_are_told_and_neither_without_blending() -> None:
    both = {rules.TENSOR_PARALLEL.name, rules.PIPELINE_PARALLEL.name}
    assert ids(started("-tp 2 -pp 2")) == both
    assert not both & ids(started("-tp 2 -pp 2", "chunk_size: 256\n"))


def test_a_number_that_the_shell_puts_in_is_a_warning() -> None:
    for kind, rule in RULES.items():
        found = only(started(f'--{kind}-parallel-size "$N"'), rule)
        assert found.level is Level.WARNING
        assert "not known here" in found.message
    assert not started('-tp "$N"', agree=True).findings


def test_where_nobody_looked_for_the_patch_it_is_a_warning() -> None:
    found = only(started("-tp 2", agree=None), rules.TENSOR_PARALLEL)
    assert found.level is Level.WARNING
    assert "KV012" in found.message
    assert "kvpatch status" in found.todo


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("tensor-parallel-size", "tensor"),
        ("tensor_parallel_size", "tensor"),
        ("pipeline-parallel-size", "pipeline"),
    ],
)
def test_vllms_own_file_is_told_at_its_line(key: str, kind: str) -> None:
    def of(flags: str) -> Linted:
        launch = parse_launch(f"{COMMAND} --config s.yaml {flags}")
        file = parse_yaml(f"port: 1\n{key}: 2\n", "s.yaml", "vLLM")
        config = converted(file, launch.args, Version("0.32.0"))
        around = Surroundings(
            launch=launch.with_config(config), vllm=Version("0.32.0"), ranks_agree=lambda: False
        )
        return lint(parse_yaml(BLEND), schema(NEWEST), key_history.load(), around)

    found = only(of(""), RULES[kind])
    assert (found.path, found.line) == ("s.yaml", 2)
    # The command beats the file, by whichever name.
    short = {"tensor": "-tp", "pipeline": "-pp"}[kind]
    assert ids(of(f"{short} 1")) == set()


@pytest.mark.parametrize(
    ("flags", "lora"),
    [
        ("--enable-lora", True),
        ("--enable_lora", True),
        ("--enable-lora --port 1", True),
        ("--no-enable-lora", False),
        ("--enable-lora --no-enable-lora", False),
        ("--lora-modules a=b", False),
        ("", False),
    ],
)
def test_blending_does_not_go_with_adapters(flags: str, lora: bool) -> None:
    linted = started(flags)
    assert ids(linted) == ({rules.LORA.name} if lora else set())
    # Keys without an adapter's name are wrong without blending too.
    plain = started(flags, "chunk_size: 256\n")
    found = [one.level for one in plain.findings if one.rule is rules.LORA]
    assert found == ([Level.WARNING] if lora else [])


@pytest.mark.parametrize("name", ["--decode-context-parallel-size", "-dcp"])
def test_lmcache_does_not_go_with_parts_of_a_prompt_on_each_rank(name: str) -> None:
    for text in (BLEND, "chunk_size: 256\n"):
        for value, level in (("2", Level.ERROR), ("$N", Level.WARNING)):
            linted = started(f'{name} "{value}"', text, agree=True)
            assert only(linted, rules.CONTEXT_PARALLEL).level is level
        assert rules.CONTEXT_PARALLEL.name not in ids(started(f"{name} 1", text))


def test_adapters_are_told_only_where_lmcache_is_used() -> None:
    other = """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'"""
    linted = run("chunk_size: 256\n", serve=f"vllm serve m --enable-lora {other}", vllm="0.32.0")
    assert not [one for one in linted.findings if one.rule is rules.LORA]
