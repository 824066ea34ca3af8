"""Manifests in the place of a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import kvpatch
from kvpatch.manifest import see_no_manifest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.yaml_source import parse_yaml

MAP = (
    "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: lm\n"
    "data:\n  lmcache.yaml: |\n    chunk_size: 256\n  note: a\n"
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (MAP, "Kubernetes"),
        (f"# c\n{MAP}---\n{MAP}", "Kubernetes"),
        (f"{MAP}  other: {{{{ .Values.other }}}}\n", "Kubernetes"),
        ('{"apiVersion": "v1", "kind": "Pod"}', "Kubernetes"),
        ("services:\n  vllm:\n    image: i\n", "docker compose"),
    ],
)
def test_a_file_that_starts_containers_is_refused_with_what_to_name(text: str, kind: str) -> None:
    with pytest.raises(KvpatchError) as caught:
        see_no_manifest(parse_yaml(text, "a.yaml"))
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.message == f"a.yaml is YAML for {kind}, and no configuration of LMCache's"
    assert "--env-file FILE" in caught.value.hint
    assert ("which stand under data.lmcache.yaml," in caught.value.hint) is (text == MAP)


@pytest.mark.parametrize(
    "text",
    ["", "chunk_size: 1\n", "kind: a\n", "- a\n", "extra_config:\n  services: 1\n", "a: [\n"],
)
def test_what_may_be_a_configuration_is_left_to_the_rules(text: str) -> None:
    see_no_manifest(parse_yaml(text))


@pytest.mark.releases
def test_lint_refuses_it_as_a_file_and_as_what_variables_name(tmp_path: Path) -> None:
    file, variables = tmp_path / "map.yaml", tmp_path / "vllm.env"
    file.write_text(MAP)
    variables.write_text(f"LMCACHE_CONFIG_FILE={file}\n")
    for given in ((file,), ("--env-file", variables)):
        ended = kvpatch("lint", *given, "--lmcache", "0.5.6")
        assert (ended.code, "is YAML for Kubernetes" in ended.err) == (2, True)
