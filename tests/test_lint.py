"""A whole file with its surroundings: what counts, and what is clean, on real releases."""

from __future__ import annotations

import pytest
from kvpatch import rules
from kvpatch.rules import Level
from linted import LMCACHE, ids, only, run, value

pytestmark = pytest.mark.releases


def test_an_empty_file_and_plain_defaults_are_clean() -> None:
    for text in ("", "{}\n", "# nothing\n"):
        assert only(run(text), rules.EMPTY_FILE).level is Level.NOTE
    assert run("chunk_size: 256\nlocal_cpu: true\n").findings == ()


def test_the_environment_beats_the_file_and_the_extra_config_beats_both() -> None:
    serve = "vllm serve m " + LMCACHE % ', "kv_connector_extra_config": {"lmcache.chunk_size": 64}'
    environ = {"LMCACHE_CHUNK_SIZE": "128", "LMCACHE_CONFIG_FILE": "-"}
    assert value(run("chunk_size: 32\n"), "chunk_size") == 32
    assert value(run("chunk_size: 32\n", environ=environ), "chunk_size") == 128
    linted = run("chunk_size: 32\n", environ=environ, serve=serve)
    assert value(linted, "chunk_size") == 64
    assert only(linted, rules.OVERRULED).level is Level.NOTE
    old = run("chunk_size: 32\n", "0.3.6", environ=environ, serve=serve)
    assert value(old, "chunk_size") == 128
    assert "unknown-override" in ids(old)


def test_every_rule_has_an_id_of_its_own_and_a_sentence() -> None:
    assert len(rules.ALL) >= 30
    assert len({rule.id for rule in rules.ALL}) == len(rules.ALL)
    assert len({rule.name for rule in rules.ALL}) == len(rules.ALL)
    for rule in rules.ALL:
        assert rule.id.startswith("LM")
        assert rule.why.endswith(".")
