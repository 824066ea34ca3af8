"""Variables from files and from running processes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kvpatch.environment import command_of, from_file, from_process, others, parsed
from kvpatch.outcome import ExitCode, KvpatchError
from waiting import soon


def test_a_file_with_export_is_read_as_a_shell_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text(
        "# it's a comment\n\nexport A=1\nB=\" # # \"\nC='x y'\nD=a=b\nE=\nF=/a/b\r\n"
        "export G=1 H='a'\"b\" # why\nexport A\n"
    )
    assert from_file(file) == {
        "A": "1",
        "B": " # # ",
        "C": "x y",
        "D": "a=b",
        "E": "",
        "F": "/a/b",
        "G": "1",
        "H": "ab",
    }


PLAIN = {
    'A={"use_odirect": true}': '{"use_odirect": true}',
    "A=a  b ": "a  b",
    "A=it's": "it's",
    'A="a b" c': "a bc",
    "A='x'\"y\"z": "xyz",
    "A=a\\\nb": "ab",
    'A="a\\nb\\"c\\\\"': 'a\\nb"c\\',
    "A='it''s'": "its",
    "A = x": "x",
    'A="two\nlines"': "two\nlines",
    "A=a#b # c": "a#b # c",
    'A=a"b c"': 'a"b c"',
    "A=a\\ b\\  ": "a b ",
    "; x\n# goes on \\\nB=1\n\tA=1": "1",
    "A=1\r\n": "1",
}
GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")


@pytest.mark.parametrize("text", PLAIN)
def test_a_file_is_read_as_systemd_reads_it(text: str) -> None:
    assert parsed(text, Path("env")) == {"A": PLAIN[text]}
    assert parsed(f"B='it is'\n{text}\n\n", Path("env"))["A"] == PLAIN[text]
    assert parsed(f"\ufeff{text}", Path("env")) == {"A": PLAIN[text]}
    assert parsed("A=", Path("env")) == {"A": ""}
    assert parsed("", Path("env")) == parsed("# x", Path("env")) == {}


@pytest.mark.skipif(not GENERATOR.exists(), reason="no systemd here")
@pytest.mark.parametrize("text", PLAIN)
def test_systemd_itself_reads_it_so(text: str, tmp_path: Path) -> None:
    (tmp_path / "environment.d").mkdir()
    (tmp_path / "environment.d" / "a.conf").write_text(text)
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([GENERATOR], env=environ, capture_output=True, text=True, check=True)
    value = next(line[2:] for line in done.stdout.splitlines() if line.startswith("A="))
    if value.startswith('"'):
        value = value[1:-1].encode().decode("unicode_escape")
    assert value == PLAIN[text]


def test_docker_and_a_shell_make_other_variables_of_such_a_file() -> None:
    text = """# it's one\nA='a b'\nB={"a": 1}\n C=a  b \nD=1\r\n"""
    assert dict(others(text)) == {
        "docker's --env-file": {"A": "'a b'", "B": '{"a": 1}', "C": "a  b ", "D": "1"},
        # Of the line with two words the second is a command.
        "a shell": {"A": "a b", "D": "1"},
    }
    assert dict(others(f"export X=1\n{text}")) == {}


def test_a_quotation_of_a_shells_goes_on_in_the_next_line(tmp_path: Path) -> None:
    text = """A=' #\n'\n# it's one\nB="x\n\ny"''\nC=1 # c\nD='1\nE=2\n"""
    assert dict(others(text))["a shell"] == {"A": " #\n", "B": "x\n\ny", "C": "1", "E": "2"}
    place = tmp_path / "a.env"
    place.write_text("export A=' #\n'\nB=1\n")
    assert from_file(place) == {"A": " #\n", "B": "1"}
    place.write_text("export A=' #\n'\nB=a b\n")
    with pytest.raises(KvpatchError, match="line 3"):
        from_file(place)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"A=1\nwords\n", "line 2"),
        (b"A='x\n", "quotation"),
        (b"A=\0", "no text"),
        (b"1A=2", "line 1"),
        (b"A=1\n=2", "line 2"),
        (b"export A=1\nB=a b", "line 2"),
        (b"export A='1", "line 1"),
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
