"""The command line as a program: options, streams, exit codes, and what happens when it fails."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import clean_environ, kvpatch, on, process
from fake_site import FakeSite, make_site
from kvpatch import __version__, cli

ENVELOPE = ["schema", "command", "status", "exit_code", "data", "errors"]
ON_A_HOST = ("status", "diff", "apply", "verify", "revert")


@pytest.fixture
def site(tmp_path: Path) -> FakeSite:
    return make_site(tmp_path)


# The envelope


@pytest.mark.parametrize("verb", ON_A_HOST)
def test_every_verb_on_a_host_prints_one_envelope_and_nothing_else(
    verb: str, site: FakeSite
) -> None:
    ran = on(site, verb)
    assert list(ran.envelope) == ENVELOPE
    assert (ran.envelope["schema"], ran.envelope["command"]) == (1, verb)
    assert ran.err == ""


@pytest.mark.parametrize("arguments", [("list",), ("show", "KV001"), ("show", "kv002")])
def test_the_verbs_about_patches_print_one_envelope_too(arguments: tuple[str, ...]) -> None:
    ran = kvpatch(*arguments, "--json")
    assert list(ran.envelope) == ENVELOPE
    assert (ran.code, ran.envelope["command"], ran.envelope["status"]) == (0, arguments[0], "ok")
    assert ran.err == ""


def test_json_may_stand_before_or_after_the_other_options(site: FakeSite) -> None:
    first = kvpatch("status", "--json", "--site", site.path, "--only", "KV001")
    last = kvpatch("status", "--only", "KV001", "--site", site.path, "--json")
    assert first == last
    assert list(first.envelope) == ENVELOPE


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no-such-verb",),
        ("status", "--no-such-option"),
        ("status", "one argument too many"),
        ("show",),
        ("show", "KV999"),
        ("status", "--only"),
        ("apply", "--only", "KV999"),
        ("apply", "--skip", "nonsense"),
        ("revert", "--only", "KV001"),
        ("status", "--force"),
        ("list", "--site", "/"),
        ("status", "--python", "/python", "--site", "/site"),
        ("status", "--dry-run"),
    ],
)
def test_wrong_usage_is_exit_2_with_one_sentence_and_a_next_step(
    arguments: tuple[str, ...], site: FakeSite
) -> None:
    where = () if {"--site", "show", "list"} & set(arguments) else ("--site", str(site.path))
    arguments = (*arguments, *where) if arguments and arguments[-1] != "--only" else arguments
    plain, ran = kvpatch(*arguments), kvpatch(*arguments, "--json")
    if arguments and arguments[-1] == "--only":
        ran = kvpatch(arguments[0], "--json", *arguments[1:])
    assert (plain.code, plain.out) == (2, "")
    assert plain.err.startswith("kvpatch: ")
    assert (ran.code, ran.envelope["status"], ran.err) == (2, "error", "")
    assert list(ran.envelope) == ENVELOPE
    (error,) = ran.envelope["errors"]
    assert list(error) == ["code", "message", "hint"]
    assert all(error.values())
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("stauts", "status"), ("Apply", "apply"), ("profil", "profile or profiles"), ("qqq", "")],
)
def test_a_verb_that_was_mistyped_is_told_with_what_comes_near(given: str, meant: str) -> None:
    ran = kvpatch(given, "--json")
    assert (ran.code, ran.error["code"]) == (2, "usage")
    near = f"; did you mean {meant}?" if meant else ""
    assert ran.error["message"] == f"there is no verb {given!r}{near}"
    assert ran.error["hint"] == "see `kvpatch --help`"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "apply --only --python /p",
            "--only takes a value (ID), and is followed by the option --python",
        ),
        ("status --skip --json", "--skip takes a value (ID), and is followed by the option --json"),
        ("fork x.whl -o --force", "-o takes a value, and is followed by the option --force"),
        ("smoke --html --gds", "--html takes a value, and is followed by the option --gds"),
        ("apply --python /p --only --help", "--only takes a value (ID), and is followed by"),
    ],
)
def test_an_option_that_lacks_its_value_is_told_as_that(line: str, told: str) -> None:
    verb, *words = line.split()
    ran = kvpatch(verb, *words, *([] if "--json" in words else ["--json"]))
    assert (ran.code, ran.error["code"]) == (2, "usage")
    assert ran.error["message"].startswith(told)
    assert ran.error["hint"] == f"see `kvpatch {verb} --help`"


@pytest.mark.parametrize("option", ["--json", "--python", "-x"])
def test_an_option_before_the_verb_is_told_as_that(option: str) -> None:
    ran = kvpatch(option, "status", "--json")
    assert ran.code == 2
    assert f"no option {option} goes before the verb" in ran.error["message"]


def test_what_follows_a_flag_a_value_or_the_end_of_options_is_no_value(site: FakeSite) -> None:
    assert kvpatch("status", "--json", "--site", site.path).code == 0
    assert kvpatch("status", "--only=--json", "--site", site.path).code == 2
    assert kvpatch("show", "--json", "--", "--json").error["code"] == "unknown-patch"


# Help, version, completion


def test_help_and_version_are_exit_0() -> None:
    assert __version__ in kvpatch("--version").out
    top = kvpatch("--help")
    assert top == kvpatch("-h")
    assert top.code == 0
    for verb in cli.VERBS:
        assert verb in top.out
        ran = kvpatch(verb, "--help")
        assert (ran.code, ran.err) == (0, "")
        assert "--json" in ran.out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_as_click_gives_it(shell: str) -> None:
    script = _completion(shell, "")
    assert "_KVPATCH_COMPLETE" in script
    words = {"COMP_WORDS": "kvpatch re", "COMP_CWORD": "re" if shell == "fish" else "1"}
    assert "revert" in _completion(shell, "complete", words)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("show kv00", {"KV001", "KV009"}),
        ("status --only KV", {"KV001", "KV002"}),
        ("apply --sk", {"--skip"}),
        ("profile gds", {"gds", "gds-blend"}),
        ("smoke --profile b", {"blend"}),
    ],
)
def test_shells_complete_patches_profiles_and_options(line: str, completed: set[str]) -> None:
    count = len(line.split())
    words = {"COMP_WORDS": f"kvpatch {line}", "COMP_CWORD": str(count)}
    found = {given.partition(",")[2] for given in _completion("bash", "complete", words).split()}
    assert completed <= found


def _completion(shell: str, kind: str, words: dict[str, str] | None = None) -> str:
    code = "import sys; from kvpatch.cli import main; sys.argv[0] = 'kvpatch'; main()"
    asked = {"_KVPATCH_COMPLETE": f"{shell}_{kind or 'source'}", **(words or {})}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean_environ(), **asked},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# As a process


def test_python_dash_m_and_the_script_are_the_same_program() -> None:
    script = subprocess.run(
        [Path(sys.executable).with_name("kvpatch"), "list", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=clean_environ(),
    )
    module = process("list", "--json")
    assert (script.returncode, script.stdout) == (0, module.out)
    assert module.code == 0
    assert process("show", "KV999").code == 2


def test_nothing_prompts_and_stdin_is_never_read(
    site: FakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"stdin.{name} was used")

    monkeypatch.setattr(sys, "stdin", Untouchable())
    original = site.worker.read_bytes()
    assert on(site, "apply").code == 0
    site.worker.write_text(site.worker.read_text() + "# mine\n")
    assert on(site, "revert").code == 3
    assert on(site, "revert", "--force").code == 0
    assert site.worker.read_bytes() == original


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_output_to_a_file_or_with_no_color_has_no_escape_sequences(
    environment: dict[str, str], site: FakeSite
) -> None:
    command = [sys.executable, "-m", "kvpatch", "status", "--site", str(site.path)]
    env = {**clean_environ(), "TERM": "xterm-256color", **environment}
    if not environment:
        done = subprocess.run(command, capture_output=True, check=True, env=env, cwd="/")
        assert b"\x1b" not in done.stdout + done.stderr
        return
    master, slave = pty.openpty()
    with os.fdopen(master, "rb", buffering=0) as terminal:
        done = subprocess.run(command, stdout=slave, stderr=slave, check=True, env=env, cwd="/")
        os.close(slave)
        shown = b""
        while chunk := _read(terminal.fileno()):
            shown += chunk
    assert b"patched" in shown
    assert b"\x1b" not in shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


INTERRUPTED_WHILE_LOADING = """
import importlib.abc, os, runpy, signal, sys

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["kvpatch", "list"]
runpy.run_module("kvpatch", run_name="__main__")
"""


@pytest.mark.parametrize(("ignored", "expected"), [(False, -signal.SIGINT), (True, 0)])
def test_an_interrupt_while_it_still_loads_shows_no_traceback(ignored: bool, expected: int) -> None:
    # A test run in the background of a shell has it ignored from the start.
    handler = "SIG_IGN" if ignored else "default_int_handler"
    before = f"import signal; signal.signal(signal.SIGINT, signal.{handler})\n"
    done = subprocess.run(
        [sys.executable, "-c", before + INTERRUPTED_WHILE_LOADING],
        capture_output=True,
        check=False,
        env=clean_environ(),
    )
    assert (done.returncode, done.stderr) == (expected, b"")


def test_the_folder_kvpatch_is_run_in_is_left_as_it_is(tmp_path: Path, site: FakeSite) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for verb in ("status", "apply", "revert"):
        command = [sys.executable, "-m", "kvpatch", verb, "--site", str(site.path)]
        subprocess.run(command, check=True, capture_output=True, cwd=folder, env=clean_environ())
    assert not list(folder.iterdir())


@pytest.mark.parametrize("verb", ["apply", "status", "profile", "doctor", "smoke"])
def test_the_help_says_what_the_options_for_the_place_take(verb: str) -> None:
    told = " ".join(kvpatch(verb, "--help").out.split())
    assert "--state DIR" in told
    assert "its interpreter, or the folder of the venv" in told


@pytest.mark.parametrize("verb", ["apply", "status", "verify"])
def test_the_help_says_which_options_may_be_given_again(verb: str) -> None:
    told = " ".join(kvpatch(verb, "--help").out.split())
    for option in ("--only ID", "--skip ID"):
        assert "may be given again." in told.partition(option)[2].partition("--")[0]


def test_two_configurations_are_told_in_a_sentence() -> None:
    told = kvpatch("doctor", "--profile", "blend", "--config", "x.yaml")
    assert told.code == 2
    assert "--profile and --config both give a configuration" in told.err
