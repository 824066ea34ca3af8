"""A bundle's scripts, run by bash: where they are copied to, with the programs they are to take."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kvpatch.launch_script import parse_script
from kvpatch.start_script import BIN, start_script

ARGV = ("vllm", "serve", "a b", "--tp", "2")


def program(folder: Path, says: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "vllm").write_text(f'#!/bin/sh\nprintf "%s\\0" {says} "$LMCACHE_CONFIG_FILE" "$@"\n')
    (folder / "vllm").chmod(0o755)
    return folder


def bundle(folder: Path, programs: Path | None) -> Path:
    folder.mkdir()
    (folder / "vllm.env").write_text("LMCACHE_CONFIG_FILE=/where/it/was/made.yaml\n")
    script = folder / "serve.sh"
    script.write_text(start_script(["# It."], ARGV, programs, config="lmcache.yaml"))
    return folder


def run(
    script: Path, path: Path | None = None, *given: str, **more: str
) -> subprocess.CompletedProcess[str]:
    found = f"{path}:{os.defpath}" if path else os.defpath
    environ = {"PATH": found, **more}
    return subprocess.run(["bash", script, *given], env=environ, capture_output=True, text=True)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return program(tmp_path / "it's an env" / "bin", "own")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return program(tmp_path / "other" / "bin", "other")


def test_it_takes_the_environment_that_it_was_made_for(
    tmp_path: Path, own: Path, other: Path
) -> None:
    script = bundle(tmp_path / "made", own) / "serve.sh"
    for path in (None, other):
        said = run(script, path).stdout.split("\0")
        assert said[:4] == ["own", str(tmp_path / "made" / "lmcache.yaml"), "serve", "a b"]


@pytest.mark.parametrize("link", [False, True])
def test_a_copy_reads_the_files_beside_it(tmp_path: Path, own: Path, link: bool) -> None:
    made = bundle(tmp_path / "made", own)
    copy = tmp_path / "a copy"
    shutil.move(made, copy)
    script = copy / "serve.sh"
    if link:
        script = tmp_path / "link.sh"
        script.symlink_to(copy / "serve.sh")
    assert run(script).stdout.split("\0")[1] == str(copy / "lmcache.yaml")


@pytest.mark.parametrize("ending", ["", "/"])
def test_another_environment_is_taken_where_it_is_named(
    tmp_path: Path, own: Path, other: Path, ending: str
) -> None:
    script = bundle(tmp_path / "made", own) / "serve.sh"
    assert run(script, own, **{BIN: f"{other}{ending}"}).stdout.startswith("other\0")


def test_without_a_known_environment_it_takes_what_is_on_path(tmp_path: Path, other: Path) -> None:
    script = bundle(tmp_path / "made", None) / "serve.sh"
    assert run(script, other).stdout.startswith("other\0")


@pytest.mark.parametrize("known", [False, True])
def test_no_vllm_is_told_with_what_to_name(tmp_path: Path, other: Path, known: bool) -> None:
    gone = tmp_path / "gone" / "bin"
    script = bundle(tmp_path / "made", gone if known else None) / "serve.sh"
    # What lies on PATH may be another release, without the patches.
    ended = run(script, other if known else None)
    assert ended.returncode == 127
    assert f"there is no vllm in {gone if known else 'PATH'}" in ended.stderr
    assert f"{BIN}=" in ended.stderr


@pytest.mark.parametrize("given", [(), ("--port", "9000"), ("--x", "a b", "", "*")])
def test_options_of_the_script_are_added_to_the_command(
    tmp_path: Path, own: Path, given: tuple[str, ...]
) -> None:
    script = bundle(tmp_path / "made", own) / "serve.sh"
    assert run(script, None, *given).stdout.split("\0")[2:-1] == [*ARGV[1:], *given]


def test_the_command_of_the_script_is_known_whole(tmp_path: Path, own: Path) -> None:
    launch = parse_script((bundle(tmp_path / "made", own) / "serve.sh").read_text())
    assert launch is not None
    assert launch.flags["tp"] == "2"
    assert launch.doubt == ""
    assert len(launch.lines) == 1
