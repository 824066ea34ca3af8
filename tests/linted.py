"""Lints a text on a real release, for the tests of the rules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from kvpatch import key_history, rules
from kvpatch.launch_script import parse_launch
from kvpatch.lint import Linted, lint
from kvpatch.rules import Finding, Level
from kvpatch.schema import Schema
from kvpatch.surroundings import Surroundings
from kvpatch.yaml_source import parse_yaml
from lmcache_config import schema_of
from packaging.version import Version

NEWEST = "0.5.6"


BLEND = (
    "enable_blending: true\nuse_layerwise: true\nblend_recompute_ratios: [0.15]\n"
    "blend_check_layers: [1]\nsave_unfull_chunk: true\n"
)


LMCACHE = (
    """--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"%s}'"""
)


BARE = ', "kv_connector_extra_config": {"use_layerwise": true}'


@cache
def schema(release: str) -> Schema:
    return schema_of(release)


def run(
    text: str,
    release: str = NEWEST,
    *,
    environ: Mapping[str, str] | None = None,
    serve: str | None = None,
    vllm: str | None = None,
    python: tuple[int, ...] | None = None,
    ranks_agree: bool | None = None,
    prompt_mib: int | None = None,
) -> Linted:
    around = Surroundings(
        environ,
        launch=None if serve is None else parse_launch(serve),
        vllm=None if vllm is None else Version(vllm),
        python=python,
        ranks_agree=None if ranks_agree is None else lambda: ranks_agree,
        prompt_mib=lambda: prompt_mib,
    )
    return lint(parse_yaml(text), schema(release), key_history.load(), around)


def only(linted: Linted, rule: rules.Rule) -> Finding:
    found = [finding for finding in linted.findings if finding.rule is rule]
    assert len(found) == 1, [finding.message for finding in linted.findings]
    return found[0]


def ids(linted: Linted, level: Level = Level.ERROR) -> set[str]:
    return {finding.rule.name for finding in linted.findings if finding.level is level}


def value(linted: Linted, name: str) -> Any:
    assert linted.effective is not None
    return linted.effective.get(name)
