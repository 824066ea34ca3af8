"""Options for compiling, as the parser of every release takes them."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from kvpatch.launch_script import parse_launch
from packaging.version import Version
from releases import vllm_releases
from vllm_parsers import parsed

NONE = """'{"cudagraph_mode": "NONE"}'"""
COMMANDS = [
    f"-O {NONE}",
    f"-cc {NONE}",
    f"--compilation-config {NONE}",
    f"--compilation_config={NONE}",
    f"--com {NONE}",
    "-O.cudagraph_mode=NONE",
    "-O.cudagraph_mode NONE",
    "-cc.cudagraph_mode=NONE",
    "-cc.cudagraph_mode NONE",
    "--compilation-config.cudagraph_mode NONE",
    "--com.cudagraph_mode NONE",
    "-cc 3",
    "-O 3",
    "-O3",
    "-O=1",
    "-O 9",
    "-O x",
    "-O",
    "-cc",
    "--compilation-config 3",
    "--compilation-config []",
    "--compilation-config ''",
    "--compilation-config '{broken'",
    f"--compilation-config '{{broken' --compilation-config {NONE}",
    "--compilation-config '{}'",
    f"--compilation-config {NONE} --compilation-config '{{}}'",
    f"--compilation-config '{{}}' --compilation-config {NONE}",
    f"--compilation-config {NONE} -O3",
    "-O3 -O.cudagraph_mode=NONE",
    f"-cc.mode=3 -cc {NONE}",
    "--compilation-config.cudagraph_mode NONE -O.level 3",
    "--compilation-config.cudagraph_mode NONE --com.level 3",
]


def theirs(release: str, options: str) -> str | None:
    """The mode that the release's parser takes, empty for none; None where it stops."""
    try:
        found: dict[str, Any] = parsed(release, ["serve", "m", *shlex.split(options)])
    except (Exception, SystemExit):
        return None
    return str((found["compilation_config"] or {}).get("cudagraph_mode") or "")


@pytest.mark.releases
@pytest.mark.parametrize("release", vllm_releases())
def test_every_release_takes_them_as_kvpatch_says(release: str) -> None:
    vllm = Version(release)
    apart = {}
    for options in COMMANDS:
        if "." in options and vllm < Version("0.9.2"):
            # Before, there is no dotted form, or its values are all texts.
            continue
        found = parse_launch(f"vllm serve m {options}").compiling(vllm)
        mine = None if found.stops else found.mode or ""
        if mine != theirs(release, options):
            apart[options] = (mine, theirs(release, options))
    assert not apart


def test_where_vllm_stops_the_option_is_named() -> None:
    found = parse_launch(f"vllm serve m -O {NONE}").compiling(Version("0.32.0"))
    assert found.option == "O"
    assert "write JSON behind -cc" in found.stops


def test_of_an_unknown_release_what_any_takes_is_taken() -> None:
    for options in (f"-O {NONE}", f"-cc {NONE}", "-O.cudagraph_mode=NONE"):
        assert parse_launch(f"vllm serve m {options}").compiling(None).mode == "NONE"
