"""Rules about the keys of chunks, on real releases."""

from __future__ import annotations

import pytest
from kvpatch import rules
from kvpatch.rules import Level
from linted import BLEND, LMCACHE, only, run

pytestmark = pytest.mark.releases

KEPT = "remote_url: lm://h:1\n"


@pytest.mark.parametrize("release", ["0.3.3", "0.3.9.post2", "0.5.6"])
@pytest.mark.parametrize(
    ("name", "told"),
    [("sha265", "the nearest is sha256"), ("Builtin", "the nearest is builtin"), ("x", "it knows")],
)
def test_a_name_that_is_no_algorithm_is_an_error_and_wants_the_seed(
    name: str, told: str, release: str
) -> None:
    text = f"{KEPT}pre_caching_hash_algorithm: {name}\n"
    found = only(run(text, release), rules.HASH)
    assert found.level is Level.ERROR
    assert "takes Python's own hash" in found.message
    assert told in found.message
    assert only(run(text, release), rules.SEED).key == "remote_url"


def test_a_name_that_this_vllm_does_not_have_is_one_too() -> None:
    text = f"{KEPT}pre_caching_hash_algorithm: xxhash\n"
    assert run(text, vllm="0.13.0").clean
    assert run(text).clean
    found = only(run(text, vllm="0.12.0"), rules.HASH)
    assert "can't take xxhash from vLLM 0.12.0" in found.message
    assert rules.SEED in {one.rule for one in run(text, vllm="0.12.0").findings}
    assert rules.SEED not in {one.rule for one in run(text, vllm="0.13.0").findings}


@pytest.mark.parametrize(
    ("name", "vllm", "level"),
    [
        ("sha256_cbor", None, Level.ERROR),
        ("sha256", None, Level.WARNING),
        ("sha256", "0.10.2", Level.ERROR),
        ("sha256", "0.10.1", None),
        ("xxhash", "0.13.0", Level.ERROR),
    ],
)
def test_bytes_are_refused_where_lmcache_formats_them_as_a_number(
    name: str, vllm: str | None, level: Level | None
) -> None:
    text = f"pre_caching_hash_algorithm: {name}\n"
    found = [one for one in run(text, "0.4.5", vllm=vllm).findings if one.rule is rules.HASH]
    assert [one.level for one in found] == [level] * (level is not None)
    assert run(text, "0.4.6", vllm=vllm).findings == ()


@pytest.mark.parametrize(
    ("environ", "level"),
    [(None, Level.NOTE), ({}, Level.ERROR), ({"PYTHONHASHSEED": "random"}, Level.ERROR)],
)
def test_a_store_that_outlives_the_process_needs_a_hash_seed(
    environ: dict[str, str] | None, level: Level
) -> None:
    text = "gds_path: /mnt/a\ngds_buffer_size: 64\n"
    given = environ if environ is None else {"LMCACHE_CONFIG_FILE": "-", **environ}
    assert only(run(text, environ=given), rules.SEED).level is level
    fixed = {"LMCACHE_CONFIG_FILE": "-", "PYTHONHASHSEED": "0"}
    assert run(text, environ=fixed).clean
    assert not [one for one in run(text, environ=fixed).findings if one.rule is rules.SEED]


def test_with_an_old_python_and_an_old_lmcache_no_seed_helps() -> None:
    text = KEPT
    environ = {"LMCACHE_CONFIG_FILE": "-", "PYTHONHASHSEED": "0"}
    found = only(run(text, "0.3.15", environ=environ, python=(3, 11)), rules.SEED)
    assert "whatever PYTHONHASHSEED says" in found.message
    for release, python in (("0.3.15", (3, 12)), ("0.3.3", (3, 11)), ("0.5.6", (3, 11))):
        assert run(text, release, environ=environ, python=python).clean


def test_two_ranks_that_share_keys_need_the_seed_as_well() -> None:
    serve = f"vllm serve m -tp 2 {LMCACHE % ''}"
    environ = {"LMCACHE_CONFIG_FILE": "-"}
    assert "2 ranks" in only(run("", environ=environ, serve=serve), rules.SEED).message
    # Where it blends the scheduler sends tokens, of which each rank makes its own keys.
    for release in ("0.3.9.post2", "0.5.6"):
        found = run(BLEND, release, environ=environ, serve=serve, python=(3, 11)).findings
        assert rules.SEED not in {one.rule for one in found}
    shared = f"{BLEND}gds_path: /mnt/a\n"
    assert only(run(shared, environ=environ, serve=serve), rules.SEED).key == "gds_path"


@pytest.mark.parametrize("release", ["0.3.3", "0.3.9.post2", "0.3.15", "0.5.6"])
def test_a_local_disk_is_of_one_process_and_needs_no_seed_on_one_rank(release: str) -> None:
    text = "local_disk: /mnt/a/\nmax_local_disk_size: 5\n"
    for environ in (None, {"LMCACHE_CONFIG_FILE": "-"}):
        found = run(text, release, environ=environ, python=(3, 11)).findings
        assert [one.rule for one in found] == [rules.FORGOTTEN]
    serve = f"vllm serve m -tp 2 {LMCACHE % ''}"
    ranked = run(text, release, environ={"LMCACHE_CONFIG_FILE": "-"}, serve=serve)
    assert only(ranked, rules.SEED).message.partition(" is ")[0].startswith(("PYTHON", "2 ranks"))


@pytest.mark.parametrize(
    ("executor", "told"), [("mp", True), ("ray", True), ("uni", False), ("", False)]
)
def test_an_executor_with_the_worker_in_another_process_needs_the_seed_on_one_rank(
    executor: str, told: bool
) -> None:
    flag = f"--distributed-executor-backend {executor}" if executor else ""
    serve = f"vllm serve m {LMCACHE % ''} {flag}"
    environ = {"LMCACHE_CONFIG_FILE": "-"}
    found = [one.rule for one in run("", environ=environ, serve=serve).findings]
    assert (rules.SEED in found) is told
    found = [one.rule for one in run(BLEND, environ=environ, serve=serve).findings]
    assert rules.SEED not in found
