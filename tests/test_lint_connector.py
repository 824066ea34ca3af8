"""Rules about what LMCache's connector can't take, on real releases."""

from __future__ import annotations

import pytest
from kvpatch import rules
from kvpatch.lint import Linted
from linted import BLEND, NEWEST, only, run

pytestmark = pytest.mark.releases

CONNECTOR = """--kv-transfer-config '{"kv_connector": "%s", "kv_role": "kv_both"%s}'"""
CAP = ', "kv_connector_extra_config": {"lmcache.max_tokens_per_load": 128}'
RULES = (rules.EMBEDS, rules.LOAD_CAP, rules.OVERRIDE)


def started(flags: str, text: str = "", lmcache: str = NEWEST) -> Linted:
    return run(text, lmcache, serve=f"vllm serve m {flags}", vllm="0.32.0")


def seen(linted: Linted) -> list[rules.Rule]:
    return [one.rule for one in linted.findings if one.rule in RULES]


@pytest.mark.parametrize("text", ["", BLEND])
def test_prompts_as_embeddings_are_an_error(text: str) -> None:
    ours = CONNECTOR % ("LMCacheConnectorV1", "")
    found = only(started(f"{ours} --enable-prompt-embeds", text), rules.EMBEDS)
    assert found.message.startswith("--enable-prompt-embeds ")
    assert seen(started(ours, text)) == []
    assert seen(started(f"{ours} --no-enable-prompt-embeds", text)) == []


def test_prompts_as_embeddings_are_no_matter_of_another_connector() -> None:
    other = CONNECTOR % ("NixlConnector", "")
    assert rules.EMBEDS not in seen(started(f"{other} --enable-prompt-embeds"))


def test_a_cap_of_loads_is_known_and_does_not_go_with_blending() -> None:
    capped = CONNECTOR % ("LMCacheConnectorV1", CAP)
    assert seen(started(capped)) == []
    assert seen(started(capped, BLEND)) == [rules.LOAD_CAP]
    assert seen(started(capped.replace("128", "0"), BLEND)) == []


def test_a_release_that_does_not_read_the_cap_ignores_it() -> None:
    capped = CONNECTOR % ("LMCacheConnectorV1", CAP)
    assert seen(started(capped, BLEND, "0.4.6")) == [rules.OVERRIDE]
