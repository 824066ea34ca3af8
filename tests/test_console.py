"""What a run prints and the exit code it ends with, whatever a verb raises or a reader does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from commands import clean_environ, kvpatch, on
from fake_site import FakeSite, make_site
from kvpatch import verbs
from kvpatch.outcome import ExitCode, KvpatchError

ENVELOPE = ["schema", "command", "status", "exit_code", "data", "errors"]


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path)


def test_a_bug_is_exit_5_without_a_traceback(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(verbs, "status", broken)
    ran = on(site, "status")
    assert (ran.code, ran.envelope["status"], ran.error["code"]) == (5, "error", "bug")
    assert ran.envelope["command"] == "status"
    assert "ZeroDivisionError: by nought (test_console.py:" in ran.error["message"]
    assert ran.err == ""
    plain = kvpatch("status", "--site", site.path)
    assert (plain.code, plain.out) == (5, "")
    assert "Traceback" not in plain.err


@pytest.mark.parametrize(
    ("raised", "code", "number"),
    [
        (KvpatchError("odd", "it is odd", "even it out"), "odd", 3),
        (KvpatchError("gone", "gone", "find it", ExitCode.ENVIRONMENT), "gone", 4),
        (OSError(28, "No space left on device", "/file"), "no-space", 4),
        (KeyboardInterrupt(), "interrupted", 4),
        (click.Abort(), "interrupted", 4),
        (click.UsageError("not like this"), "usage", 2),
        (click.FileError("/file", "no such thing"), "usage", 2),
        (OSError(5, "Input/output error"), "file-error", 4),
        (OSError(12, "Cannot allocate memory"), "no-memory", 4),
        (MemoryError(), "no-memory", 4),
        (ImportError("x.so: failed to map segment from shared object"), "no-memory", 4),
        (ImportError("No module named 'x'"), "bug", 5),
        (RuntimeError("can't start new thread"), "no-memory", 4),
        (RecursionError("too deep"), "bug", 5),
    ],
)
def test_whatever_a_verb_raises_becomes_an_envelope(
    raised: BaseException, code: str, number: int, site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise raised

    monkeypatch.setattr(verbs, "apply", failing)
    ran = on(site, "apply")
    assert (ran.code, ran.error["code"]) == (number, code)
    assert list(ran.envelope) == ENVELOPE
    assert ran.error["message"]
    assert ran.error["hint"]


def test_errors_in_text_go_to_stderr_with_their_hint(tmp_path: Path) -> None:
    ran = kvpatch("status", "--site", tmp_path)
    assert (ran.code, ran.out) == (4, "")
    message, hint = ran.err.splitlines()
    assert message.startswith("kvpatch: no vLLM in ")
    assert hint.startswith("    ")


def test_a_refusal_in_text_shows_the_patches_on_stdout_and_the_reason_on_stderr(
    tmp_path: Path,
) -> None:
    ran = kvpatch("apply", "--site", make_site(tmp_path, "0.8.4").path)
    assert ran.code == 3
    assert "out-of-range" in ran.out
    assert ran.err.startswith("kvpatch: vLLM 0.8.4 is not supported")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_leaves_early_changes_neither_exit_code_nor_stderr(
    more: list[str], tmp_path: Path
) -> None:
    for version, expected in (("0.32.0", 0), ("0.8.4", 3)):
        site = make_site(tmp_path / version, version)
        command = [sys.executable, "-m", "kvpatch", "apply", "--site", str(site.path), *more]
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, check=False, env=clean_environ()
        )
        os.close(writer)
        assert done.returncode == expected
        assert b"Broken" not in done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_output_that_cant_be_written_is_exit_4(more: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvpatch", "list", *more],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=clean_environ(),
        )
    assert done.returncode == 4
    assert done.stderr.startswith("kvpatch: the output can't be written: ")
    assert len(done.stderr.splitlines()) == 2


def test_a_working_folder_that_is_gone_is_not_said_to_be_the_output(
    site: FakeSite, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    told = "import os, sys; os.rmdir(os.getcwd()); from kvpatch import cli; cli.main(sys.argv[1:])"
    for words in (["--site", "site"], ["--site", str(site.path), "--state", "state"]):
        gone.mkdir(exist_ok=True)
        ran = subprocess.run(
            [sys.executable, "-c", told, "apply", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=gone,
            env=clean_environ(),
        )
        assert ran.returncode == 4
        message, hint = ran.stderr.splitlines()
        assert message.startswith("kvpatch: the working folder is gone")
        assert hint.startswith("    change to a folder that is there")


def test_too_little_memory_is_no_bug(site: FakeSite) -> None:
    told = (
        "import resource, sys; from kvpatch import cli, commands_host, verbs;"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "limit = used + (32 << 20); resource.setrlimit(resource.RLIMIT_AS, (limit, limit));"
        "cli.main(sys.argv[1:])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", told, "apply", "--site", str(site.path)],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environ(),
    )
    assert (ran.returncode, ran.stdout) == (4, "")
    assert ran.stderr.startswith("kvpatch: there is not enough memory\n    ")
    assert len(ran.stderr.splitlines()) == 2
    assert not site.state.exists()


@pytest.mark.parametrize(("more", "expected"), [(["list"], 0), (["show", "KV999"], 2)])
def test_a_stderr_that_cant_be_written_changes_no_exit_code(more: list[str], expected: int) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvpatch", *more],
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
            env=clean_environ(),
        )
    assert done.returncode == expected


def test_a_path_that_is_no_text_can_be_shown(tmp_path: Path) -> None:
    site = make_site(tmp_path / os.fsdecode(b"caf\xe9"))
    command = [sys.executable, "-m", "kvpatch", "status", "--site", os.fsencode(site.path)]
    done = subprocess.run(command, capture_output=True, check=False, env=clean_environ())
    assert (done.returncode, done.stderr) == (0, b"")
    done = subprocess.run([*command, "--json"], capture_output=True, check=False)
    site_named = json.loads(done.stdout)["data"]["environment"]["packages"]["vllm"]["site"]
    assert site_named == str(site.path)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["status", "--help"]])
def test_a_reader_that_leaves_before_the_help_changes_no_exit_code(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kvpatch", *words]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, check=False, env=clean_environ()
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_progress_that_cant_be_written_does_not_end_the_work() -> None:
    telling = "from kvpatch import console; console.say('far'); console.say('on'); print('done')"
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [sys.executable, "-c", telling], stdout=subprocess.PIPE, stderr=full, check=False
        )
    assert (ran.returncode, ran.stdout) == (0, b"done\n")
