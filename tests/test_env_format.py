"""Variables that a shell and LMCache read back as the values that were meant."""

from __future__ import annotations

import subprocess

import pytest
from kvpatch.coercion import effective
from kvpatch.env_format import variables
from lmcache_config import schema_of

pytestmark = pytest.mark.releases

MEANT = {
    "chunk_size": 512,
    "blend_special_str": " # # ",
    "enable_blending": True,
    "max_local_cpu_size": 5.0,
    "gds_path": "/mnt/a 'b' $HOME",
}


@pytest.mark.parametrize("release", ["0.3.6", "0.3.7", "0.3.9", "0.5.6"])
def test_what_a_shell_makes_of_the_lines_is_read_as_meant(release: str) -> None:
    schema = schema_of(release)
    found = variables(schema, MEANT)
    script = "\n".join(["set -a", *found.lines, "env -0"])
    said = subprocess.run(["env", "-i", "bash", "-c", script], capture_output=True, check=True)
    environ = dict(one.split("=", 1) for one in said.stdout.decode().split("\0") if "=" in one)
    seen = effective(schema, {}, environ)
    assert {name: seen.get(name) for name in MEANT} == MEANT
    assert found.left_out == ()


def test_a_key_that_stops_a_release_as_a_variable_is_left_out() -> None:
    schema = schema_of("0.5.6")
    bare = [key.name for key in schema.keys.values() if key.env_converter is None]
    for name in bare:
        assert variables(schema, {name: 1}).left_out == (name,)
    assert variables(schema, {"chunk_size": 1}).values == {"LMCACHE_CHUNK_SIZE": "1"}
