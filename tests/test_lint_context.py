"""What the rules look at: where a value was written, and how the configuration stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from kvpatch import key_history, rules
from kvpatch.coercion import effective
from kvpatch.launch_script import parse_launch
from kvpatch.lint_context import Context
from kvpatch.rules import Finding, Fix, Level
from kvpatch.serve_config import Origin, ServeConfig
from kvpatch.yaml_source import parse_yaml
from lmcache_config import schema_of
from packaging.version import Version

pytestmark = pytest.mark.releases

FIX = Fix("set", "chunk_size", value=256)


def context(
    text: str = "",
    *,
    release: str = "0.5.6",
    environ: Mapping[str, str] | None = None,
    serve: str | None = None,
) -> Context:
    file, schema = parse_yaml(text), schema_of(release)
    launch = None if serve is None else parse_launch(serve)
    seen = effective(schema, file.values, environ, launch.overrides if launch else None)
    return Context(
        file=file,
        schema=schema,
        history=key_history.load(),
        effective=seen,
        environ=environ,
        launch=launch,
    )


def at(found: rules.Finding) -> tuple[str, int, int, Fix | None]:
    return found.source, found.line, found.column, found.fix


def test_a_finding_stands_where_the_value_was_written() -> None:
    given = context("# one\nlocal_cpu: true\nchunk_size: 7\n")
    found = given.found(rules.LOST, "m", "chunk_size", fix=FIX)
    assert at(found) == ("file", 3, 1, FIX)
    assert (found.rule, found.message, found.key) == (rules.LOST, "m", "chunk_size")


def test_an_override_in_vllms_own_file_stands_there() -> None:
    words = ("--kv-transfer-config.kv_connector_extra_config.lmcache.chunk_size", "8")
    given = context("chunk_size: 7\n")
    assert given.launch is None
    origin = Origin("s.yaml", 4, 1)
    launch = parse_launch("vllm serve m").with_config(
        ServeConfig("s.yaml", tuple((word, origin) for word in words))
    )
    found = replace(given, launch=launch).written(Finding(rules.OVERRIDE, "m", source="launch"))
    assert (found.path, found.line, found.column) == ("s.yaml", 4, 1)


def test_a_value_from_elsewhere_has_no_line_and_is_not_mended_in_the_file() -> None:
    given = context("chunk_size: 7\n", environ={"LMCACHE_CHUNK_SIZE": "8"})
    assert given.value("chunk_size") == 8
    assert at(given.found(rules.LOST, "m", "chunk_size", fix=FIX)) == ("environment", 0, 0, None)
    extra = """'{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", %s}'"""
    more = extra % '"kv_connector_extra_config": {"lmcache.chunk_size": 9}'
    given = context("chunk_size: 7\n", serve=f"vllm serve m --kv-transfer-config {more}")
    assert given.value("chunk_size") == 9
    assert at(given.found(rules.LOST, "m", "chunk_size", fix=FIX)) == ("launch", 0, 0, None)


def test_a_default_is_mended_in_the_file_and_has_no_line() -> None:
    assert at(context("local_cpu: true\n").found(rules.LOST, "m", "chunk_size", fix=FIX)) == (
        "file",
        0,
        0,
        FIX,
    )


def test_a_key_under_its_old_name_stands_where_that_is_written() -> None:
    release = next(
        (one for one in ("0.3.9", "0.4.4", "0.5.6") if schema_of(one).aliases), "no release"
    )
    old, new = next(iter(schema_of(release).aliases.items()))
    given = context(f"# one\n# two\n{old}: 1\n", release=release)
    assert given.found(rules.DEPRECATED, "m", new).line == 3
    assert given.is_set(new)


def test_a_finding_may_be_less_bad_than_its_rule() -> None:
    found = context().found(rules.SEED, "m", "gds_path", lower=Level.NOTE)
    assert (found.level, rules.SEED.level) == (Level.NOTE, Level.ERROR)
    assert context().found(rules.SEED, "m", "gds_path").level is Level.ERROR


def test_only_what_is_not_a_default_is_set() -> None:
    given = context("chunk_size: 256\n", environ={"LMCACHE_LOCAL_CPU": "true"})
    assert [given.is_set(name) for name in ("chunk_size", "local_cpu", "gds_path", "nothing")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "blends", "gds"),
    [
        ("", False, False),
        ("enable_blending: true\n", True, False),
        ('enable_blending: "yes"\n', False, False),
        ("gds_path: /mnt/a\n", False, True),
        ('gds_path: ""\n', False, False),
        ("enable_blending: 1\ngds_path: /mnt/a\n", True, True),
    ],
)
def test_blending_and_gds_are_on_as_lmcache_sees_them(text: str, blends: bool, gds: bool) -> None:
    given = context(text)
    assert (given.blends, given.gds) == (blends, gds)


@pytest.mark.parametrize(
    ("flags", "ranks"),
    [
        (None, 1),
        ("", 1),
        (" --tensor-parallel-size 4", 4),
        (" -tp 2", 2),
        (" --tensor-parallel-size=2 --pipeline-parallel-size 3", 6),
        (" --tensor-parallel-size two", 1),
    ],
)
def test_ranks_are_those_that_the_command_starts(flags: str | None, ranks: int) -> None:
    assert context(serve=None if flags is None else f"vllm serve m{flags}").ranks == ranks


def test_the_release_is_that_of_the_schema_and_values_inside_extra_config_are_reached() -> None:
    given: Any = context("extra_config:\n  disk_io_threads: 4\n", release="0.5.4")
    assert given.lmcache == Version("0.5.4")
    assert given.value("extra_config.disk_io_threads") == 4
    assert given.value("extra_config.nothing") is None
    assert given.value("nothing") is None
