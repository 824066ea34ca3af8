"""Rules about the attention back end, on real releases."""

from __future__ import annotations

import re

import pytest
from kvpatch import key_history, rules
from kvpatch.attention_backend import ANY_SPARSE
from kvpatch.launch_script import parse_launch
from kvpatch.lint import Linted, lint
from kvpatch.rules import Level
from kvpatch.serve_config import converted
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import parse_yaml
from linted import BARE, BLEND, LMCACHE, NEWEST, ids, only, run, schema
from packaging.version import Version
from releases import release_file

pytestmark = pytest.mark.releases

COMMAND = f"vllm serve m --no-enable-prefix-caching {LMCACHE % BARE}"
SPARSE = f"{BLEND}extra_config: {{enable_sparse: true}}\n"
NAME = rules.ATTENTION.name


def started(flags: str, text: str = BLEND, vllm: str = "0.32.0", lmcache: str = NEWEST) -> Linted:
    return run(text, lmcache, serve=f"{COMMAND} {flags}", vllm=vllm)


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        ("--attention-backend FLASHINFER", "--attention-backend"),
        ("--attention_backend=flashinfer", "--attention-backend"),
        ("--attention-b TRITON_ATTN", "--attention-backend"),
        (
            "--attention-backend FLASH_ATTN --attention-backend FLEX_ATTENTION",
            "--attention-backend",
        ),
        ("--attention-backend FLASH_ATTN_DIFFKV", "--attention-backend"),
        ("""--attention-config '{"backend": "FLASHINFER"}'""", "--attention-config.backend"),
        ("--attention-config.backend FLASHINFER", "--attention-config.backend"),
        ("""-ac '{"backend": "FLASHINFER"}'""", "--attention-config.backend"),
        ("-ac.backend FLASHINFER", "--attention-config.backend"),
        ("-ac.backend=FLASHINFER", "--attention-config.backend"),
        (
            "--attention-backend FLASH_ATTN -ac.backend_per_kind.full_attention FLASHINFER",
            "--attention-config.backend_per_kind.full_attention",
        ),
    ],
)
def test_another_back_end_is_an_error_with_the_right_one(flags: str, given: str) -> None:
    linted = started(flags)
    found = only(linted, rules.ATTENTION)
    assert found.level is Level.ERROR
    assert found.message.startswith(f"{given} ")
    assert found.todo == f"give {given} FLASH_ATTN"
    assert found.message.endswith(found.todo)
    assert ids(linted) == {NAME}
    assert NAME not in ids(started(flags, "chunk_size: 256\n"))


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--attention-backend FLASH_ATTN",
        "--attention-backend flash_attn",
        "--attention-backend FLASHINFER --attention-backend FLASH_ATTN",
        "--attention-backend auto",
        "--attention-backend CUSTOM",
        '--attention-backend "$B"',
        """-ac '{"backend": "FLASHINFER"}' -ac '{"backend": "FLASH_ATTN"}'""",
        """-ac '{"backend": "FLASHINFER"}' -ac.backend FLASH_ATTN""",
        "-ac.flash_attn_version 3",
        "-ac.backend FLASHINFER -ac.backend_per_kind.full_attention FLASH_ATTN",
    ],
)
def test_nothing_is_said_where_none_or_the_right_one_is_named(flags: str) -> None:
    assert [one for one in started(flags).findings if one.rule is rules.ATTENTION] == []


def variable(name: str, vllm: str | None, front: bool = False) -> list[Level]:
    word = f"VLLM_ATTENTION_BACKEND={name}"
    serve = f"{word if front else ''} {COMMAND}"
    environ = None if front else dict([word.split("=")])
    found = run(BLEND, serve=serve, vllm=vllm, environ=environ).findings
    return [one.level for one in found if one.rule is rules.ATTENTION]


@pytest.mark.parametrize("front", [True, False])
def test_the_variable_counts_as_long_as_vllm_reads_it(front: bool) -> None:
    for vllm in ("0.9.2", "0.11.0", "0.14.1"):
        assert variable("FLASHINFER", vllm, front) == [Level.ERROR]
        assert variable("FLASH_ATTN", vllm, front) == []
    assert variable("FLASH_ATTN_VLLM_V1", "0.9.2", front) == []
    assert variable("FLASHINFER", "0.15.0", front) == []
    assert variable("FLASHINFER", None, front) == [Level.WARNING]


def test_a_variable_that_is_not_certain_is_a_warning() -> None:
    script = f"export VLLM_ATTENTION_BACKEND=FLASHINFER\n. ./more.sh\n{COMMAND}\n"
    found = only(run(BLEND, serve=script, vllm="0.11.0"), rules.ATTENTION)
    assert found.level is Level.WARNING


@pytest.mark.parametrize(
    ("lmcache", "name", "right"),
    [
        ("0.3.9.post2", "FLASH_ATTN", "FLASHINFER"),
        ("0.4.4", "TRITON_ATTN", "FLASHINFER"),
        ("0.4.4", "FLASHINFER", None),
        ("0.4.5", "FLASH_ATTN", None),
        ("0.5.6", "TRITON_ATTN", None),
    ],
)
def test_sparse_attention_has_rules_of_its_own(lmcache: str, name: str, right: str | None) -> None:
    linted = started(f"--attention-backend {name}", SPARSE, lmcache=lmcache)
    found = [one.todo for one in linted.findings if one.rule is rules.ATTENTION]
    assert found == ([f"give --attention-backend {right}"] if right else [])


@pytest.mark.parametrize("release", ["0.3.4", "0.4.4", "0.4.5", "0.5.6", "0.5.7rc2"])
def test_lmcache_takes_what_the_rule_says(release: str) -> None:
    path = "lmcache/v1/compute/attention/utils.py"
    text = release_file("lmcache", release, path).decode()
    assert re.search(r'attn_name == "FlashAttentionImpl" and not enable_sparse:', text)
    alone = 'attn_name == "FlashInferImpl" and enable_sparse:' in text
    assert alone is (Version(release) < ANY_SPARSE)


def test_a_vllm_for_cpus_has_one_of_its_own() -> None:
    launch = parse_launch(f"{COMMAND} --attention-backend CPU_ATTN")
    for on_cpu in (True, False):
        around = Surroundings(launch=launch, vllm=Version("0.32.0"), on_cpu=on_cpu)
        linted = lint(parse_yaml(BLEND), schema(NEWEST), key_history.load(), around)
        assert (NAME in ids(linted)) is not on_cpu
        assert (rules.NO_GPU.name in ids(linted, Level.WARNING)) is on_cpu


def test_vllms_own_file_is_told_at_its_line() -> None:
    def of(flags: str) -> Linted:
        launch = parse_launch(f"{COMMAND} --config s.yaml {flags}")
        file = parse_yaml("port: 1\nattention-backend: FLASHINFER\n", "s.yaml", "vLLM")
        config = converted(file, launch.args, Version("0.32.0"))
        around = Surroundings(launch=launch.with_config(config), vllm=Version("0.32.0"))
        return lint(parse_yaml(BLEND), schema(NEWEST), key_history.load(), around)

    found = only(of(""), rules.ATTENTION)
    assert (found.path, found.line) == ("s.yaml", 2)
    assert NAME not in ids(of("--attention-backend FLASH_ATTN"))
