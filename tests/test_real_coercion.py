"""What kvpatch says that LMCache has, against what LMCache's own code has, on every release."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from kvpatch.coercion import effective
from kvpatch.schema import Schema, Unknown
from lmcache_config import code_of, executed, schema_of
from releases import lmcache_releases

pytestmark = pytest.mark.releases

RELEASES = [str(release) for release in lmcache_releases()]

WRITTEN: tuple[Any, ...] = (
    *("yes", "on", "true", " TRUE ", "1", 1, 0, 2, "off", True, False),
    *("5GB", "5", 5, 5.7, "5.7", -1, 4294967296, "1_000"),
    *([0.15], [1], "[0.15]", "0.15", "0.15,0.2", "a, b", ["a"], [], [None], [True], ["x"]),
    *({"a": 1}, "{}", '{"a": 1}', "", " ", " # # ", "' # # '", "file:///mnt/a/", None),
    *("prefix-strict", "legacy", "inf", "nan"),
)
VARIABLES = (
    " # # ",
    "' # # '",
    '" # # "',
    "yes",
    "true",
    "5GB",
    "7",
    "",
    "[0.15]",
    "0.15",
    "{}",
    "'a",
)


def names(schema: Schema) -> list[str]:
    """Every key but the one that LMCache makes up at random."""
    return [name for name in schema.keys if name != "lmcache_instance_id"]


def cases(schema: Schema) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for written in WRITTEN:
        found += [
            {"text": yaml.safe_dump({name: written}), "names": names(schema)}
            for name in [
                "enable_blending",
                "chunk_size",
                "max_local_cpu_size",
                "blend_special_str",
                "blend_check_layers",
                "local_disk",
                "extra_config",
                "gds_path",
                "use_layerwise",
                "save_unfull_chunk",
                *KINDS,
            ]
            if name in schema.keys
        ]
    for text in VARIABLES:
        found += [
            {
                "text": "chunk_size: 128\nblend_special_str: a\n",
                "environ": {f"LMCACHE_{name.upper()}": text},
                "names": names(schema),
            }
            for name in [
                "blend_special_str",
                "enable_blending",
                "chunk_size",
                "max_local_cpu_size",
                *KINDS,
            ]
            if name in schema.keys
        ]
    for text in (*VARIABLES, "[1]", "legacy", "nan"):
        found += [
            {"text": None, "environ": {f"LMCACHE_{name.upper()}": text}, "names": names(schema)}
            for name in ("blend_special_str", "chunk_size", "local_disk", "extra_config", *KINDS)
            if name in schema.keys
        ]
    for old in [*schema.aliases, *schema.dead_aliases, "no_such_key"]:
        found.append({"text": f"{old}: 7\n", "names": names(schema)})
        environ = {f"LMCACHE_{old.upper()}": "7"}
        found.append({"text": "chunk_size: 1\n", "environ": environ, "names": names(schema)})
        found.append({"text": None, "environ": environ, "names": names(schema)})
    for name in ("chunk_size", "enable_blending", "blend_special_str", *KINDS):
        for written in ("yes", "7", 7, [0.15], " # # "):
            if name in schema.keys:
                overrides = {name: written}
                found.append({"text": "{}\n", "overrides": overrides, "names": names(schema)})
    for written in ('{"a": 1}', "abc", '"abc"', "", "[1]", "null", {"a": 1}, None, "[" * 9000):
        overrides = {"extra_config": written}
        found.append({"text": "extra_config: {b: 2}\n", "overrides": overrides,
                      "names": names(schema)})  # fmt: skip
    for text in COMBINATIONS:
        found.append({"text": text, "names": names(schema)})
    return found


KINDS = (
    "blend_recompute_ratios",
    "blend_recompute_ratio",
    "retrieve_locations",
    "gds_buffer_size",
    "cufile_buffer_size",
    "use_gds",
    "plugin_locations",
    "hidden_states_retrieve_mode",
)

COMBINATIONS = (
    "enable_blending: true\nuse_layerwise: true\nsave_unfull_chunk: false\n",
    "enable_async_loading: true\nsave_unfull_chunk: true\n",
    "enable_controller: true\n",
    "enable_p2p: true\n",
    "enable_pd: true\n",
    "enable_nixl: true\n",
    "remote_url: lm://localhost:65432\n",
    "remote_url: localhost\n",
    "remote_url: lm://localhost\n",
    "min_retrieve_tokens: -1\n",
    "extra_config: {enable_nixl_storage: true}\n",
    (
        "extra_config:\n  {nixl_use_hugepages: true, enable_nixl_storage: true, nixl_backend: a,"
        " nixl_pool_size: 1}\nnixl_buffer_device: cpu\n"
    ),
    "enable_pd: true\npd_role: receiver\npd_buffer_size: 1\npd_buffer_device: cpu\n",
)


@pytest.fixture(scope="module")
def compared() -> dict[tuple[bytes, ...], tuple[Schema, list[str]]]:
    """By the text of a release's code, what came of it: many releases share theirs."""
    return {}


@pytest.mark.parametrize("release", RELEASES)
def test_values_and_stops_are_those_of_the_released_code(
    release: str, tmp_path: Path, compared: dict[tuple[bytes, ...], tuple[Schema, list[str]]]
) -> None:
    schema, code = schema_of(release), code_of(release)
    assert not [key.name for key in schema.keys.values() if isinstance(key.default, Unknown)]
    if code not in compared:
        compared[code] = schema, differences(schema, release, tmp_path)
    other, found = compared[code]
    assert found == []
    assert replace(schema, version="", extra=frozenset()) == replace(
        other, version="", extra=frozenset()
    )


def differences(schema: Schema, release: str, folder: Path) -> list[str]:
    """Where this kvpatch and the code of a release come to something else."""
    asked = cases(schema)
    found = []
    for case, told in zip(asked, executed(release, asked, folder), strict=True):
        alone = case["text"] is None
        seen = effective(
            schema,
            {} if alone else read(case["text"]),
            case.get("environ"),
            case.get("overrides"),
            alone=alone,
        )
        if alone and not schema.reading.converts_file:
            # Each variable has code of its own there, of which nothing is said.
            continue
        stops = bool(seen.stop) or any(one.failure == "stop" for one in seen.values.values())
        # Before 0.3.12 a remote URL is also checked by its form, which is no conversion.
        if stops != (told["stop"] is not None):
            found.append(f"{case}: {told}, and {seen.stop}")
        elif not stops:
            mine = {name: seen.get(name) for name in case["names"]}
            # NaN is equal to nothing but its text.
            if mine != told["values"] and str(json.loads(json.dumps(mine))) != str(told["values"]):
                found.append(f"{case}: {mine}, and {told['values']}")
    return found


@cache
def read(text: str) -> Any:
    """The text as YAML."""
    return yaml.safe_load(text)
