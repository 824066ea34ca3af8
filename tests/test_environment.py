"""Variables from files and from running processes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kvpatch.environment import command_of, from_file, from_process
from kvpatch.outcome import ExitCode, KvpatchError
from waiting import soon


def test_lines_are_read_as_a_shell_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text(
        "# comment\n\nexport A=1\nB=\" # # \"\nC='x y'\nD=a=b\nE=\n; systemd's comment\nF=/a/b\r\n"
    )
    assert from_file(file) == {
        "A": "1",
        "B": " # # ",
        "C": "x y",
        "D": "a=b",
        "E": "",
        "F": "/a/b",
    }


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"A=1\nwords\n", "line 2"),
        (b"A='x\n", "quotation"),
        (b"A=\0", "no text"),
        (b"1A=2", "line 1"),
    ],
)
def test_a_line_that_is_no_variable_is_a_usage_error(
    tmp_path: Path, content: bytes, told: str
) -> None:
    file = tmp_path / "env"
    file.write_bytes(content)
    with pytest.raises(KvpatchError) as caught:
        from_file(file)
    assert told in caught.value.message
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_file_that_is_not_there_is_an_error_of_the_environment(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(KvpatchError) as caught:
            from_file(path)
        assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_a_running_process_tells_what_it_was_started_with() -> None:
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    environ = {"LMCACHE_CHUNK_SIZE": "7", "ODD": "a=b\nc"}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environ},
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        found = from_process(process.pid)
        command = command_of(process.pid)
    finally:
        process.communicate()
    assert {name: found[name] for name in environ} == environ
    assert command.endswith(f"-c {shlex.quote(code)}")
    assert command_of(process.pid) == ""
    with pytest.raises(KvpatchError, match="no process") as caught:
        from_process(process.pid)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_a_process_of_somebody_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "7" / "environ").mkdir(parents=True)
    with pytest.raises(KvpatchError, match="can't be read") as caught:
        from_process(7, tmp_path)
    assert "root" in caught.value.hint


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_keeps_nobody_waiting(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "env")
    with soon(), pytest.raises(KvpatchError, match="is not a file") as caught:
        from_file(tmp_path / "env")
    assert (caught.value.code, caught.value.exit_code) == ("unreadable", ExitCode.ENVIRONMENT)
    assert from_file(Path(os.devnull)) == {}
