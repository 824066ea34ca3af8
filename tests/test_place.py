"""Command lines that a report names, for the place that a user gave."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kvpatch.outcome import ExitCode, KvpatchError, Report
from kvpatch.place import addressed, command, lasting, options, options_in, quoted, report_for

PLACE = ("--python", "/srv/v llm/bin/python")
SHOWN = "--python '/srv/v llm/bin/python'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run `kvpatch apply`", f"run `kvpatch apply {SHOWN}`"),
        ("`kvpatch revert --force` keeps", f"`kvpatch revert {SHOWN} --force` keeps"),
        ("`kvpatch profile gds-blend` makes", f"`kvpatch profile gds-blend {SHOWN}` makes"),
        ("`kvpatch list` shows", "`kvpatch list` shows"),
        ("`kvpatch revert --python /x` takes", "`kvpatch revert --python /x` takes"),
        (
            "`kvpatch verify` or `kvpatch status`",
            f"`kvpatch verify {SHOWN}` or `kvpatch status {SHOWN}`",
        ),
    ],
)
def test_a_command_line_in_a_text_gets_the_place(text: str, said: str) -> None:
    assert addressed(text, PLACE) == said
    assert addressed(text, ()) == text


def test_a_report_names_the_place_wherever_it_speaks_to_a_reader() -> None:
    error = KvpatchError("c", "m `kvpatch apply`", "h `kvpatch apply`", ExitCode.NO)
    before = Report(
        "verify",
        "t `kvpatch apply`",
        {"d": "`kvpatch apply`"},
        errors=(error,),
        notes=("n `kvpatch apply`",),
    )
    report = report_for(before, PLACE)
    (told,) = report.errors
    for text in (report.text, report.notes[0], told.message, told.hint):
        assert text.endswith(f"`kvpatch apply {SHOWN}`")
    assert (told.code, told.exit_code) == ("c", ExitCode.NO)
    assert report.data == before.data
    assert report_for(before, ()) is before


def test_the_place_is_read_off_options_and_off_a_wrong_command_line() -> None:
    assert options({"python": Path("/p"), "site": None, "json": True}) == ("--python", "/p")
    words = ["apply", "--nonsense", "--site=/s", "--python", "/p", "--state"]
    assert options_in(words) == ("--python", "/p", "--site", "/s")
    assert options_in(["status"]) == ()


@pytest.mark.parametrize("name", [b"plain", b"a b'c", b"n\xff\xe9 x", "schön".encode(), b"a\nb\\'"])
def test_a_shell_reads_a_quoted_path_back(name: bytes) -> None:
    word = name.decode("utf-8", "surrogateescape")
    line = quoted(word)
    assert line.isprintable()
    done = subprocess.run(["bash", "-c", f"printf %s {line}"], capture_output=True, check=True)
    assert done.stdout == name
    assert command("revert", ("--python", word)) == f"kvpatch revert --python {line}"


def test_a_place_outlasts_the_folder_that_it_was_named_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert lasting(("--python", "python3")) == ("--python", "python3")
    assert lasting(("--python", "./python3")) == ("--python", str(tmp_path / "python3"))
    # The name of a folder that is there is that folder, as where it is looked for.
    (tmp_path / "python3").mkdir()
    assert lasting(("--python", "python3")) == ("--python", str(tmp_path / "python3"))
    given = ("--site", "site-packages", "--state", "journal")
    kept = ("--site", str(tmp_path / "site-packages"), "--state", str(tmp_path / "journal"))
    assert lasting(given) == kept
    assert lasting(("--python", "/a/b")) == ("--python", "/a/b")
