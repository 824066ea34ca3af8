from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import clean_environ
from fake_site import make_site
from hypothesis import given
from hypothesis import strategies as st
from journals import ENTRY, FORMER, OPEN, A, B, C
from kvpatch.fsops import sha256
from kvpatch.ledger import SCHEMA, Step
from kvpatch.ledger_format import parse, render
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.target_file import Shape


def test_a_journal_reads_as_it_was_written() -> None:
    for journal in (FORMER, OPEN):
        assert parse(render(journal), "there") == journal


@pytest.mark.parametrize(
    "step",
    [
        {"other.py": Step(None, ENTRY.first)},
        {"other.py": Step(Shape(B, 0o644), ENTRY.first)},
        {"vllm/a.py": Step(Shape(B, 0o644), Shape(sha256(b"planted"), 0o644))},
        {"vllm/a.py": Step(None, Shape(C, 0o644))},
    ],
)
def test_a_step_that_no_entry_speaks_of_is_hostile(step: dict[str, Step]) -> None:
    with pytest.raises(KvpatchError) as caught:
        parse(render(replace(OPEN, steps=step)), "there")
    assert caught.value.code == "journal-hostile"


def test_text_that_is_no_path_is_damage_and_no_bug() -> None:
    text = render(FORMER).replace(b'"/pyc"', b'"/\\ud800"')
    with pytest.raises(KvpatchError) as caught:
        parse(text, "there")
    assert caught.value.code == "journal-damaged"


ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def test_a_journal_reads_and_is_written_the_same_in_a_locale_of_ascii() -> None:
    entry = replace(ENTRY, path="vllm/\xe9\udcff.py", link="\u4e00")
    odd = replace(FORMER, site="/caf\xe9/\udce9", entries={entry.path: entry})
    told = (
        "import sys; from kvpatch.ledger_format import parse, render;"
        "journal = parse(sys.stdin.buffer.read(), 'there');"
        "print(sys.getfilesystemencoding(), ascii(journal.site), file=sys.stderr);"
        "sys.stdout.buffer.write(render(journal))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", told],
        input=render(odd),
        capture_output=True,
        check=False,
        env={**clean_environ(), **ASCII},
    )
    assert (ran.stdout, ran.returncode) == (render(odd), 0), ran.stderr
    encoding, site = ran.stderr.decode().split()
    if encoding != "utf-8":
        assert site == ascii("/caf\udcc3\udca9/\udce9")
    assert parse(render(odd), "there") == odd


def test_an_apply_in_one_locale_is_taken_back_in_another(tmp_path: Path) -> None:
    site = make_site(tmp_path / "caf\xe9")
    before = site.worker.read_bytes()
    for first, then in (({}, ASCII), (ASCII, {}), (ASCII, ASCII)):
        for verb, more in (("apply", first), ("status", then), ("revert", then)):
            ran = subprocess.run(
                [sys.executable, "-m", "kvpatch", verb, "--site", str(site.path)],
                capture_output=True,
                check=False,
                env={**clean_environ(), **more},
            )
            assert ran.returncode == 0, ran.stderr
            assert (site.worker.read_bytes() == before) is (verb == "revert")
        assert not site.state.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "x" * 9999},
        {"schema": ["x" * 9999]},
        {"schema": int("9" * 999)},
        {"schema": SCHEMA + 1, "kvpatch": "x" * 9999},
        {"site": "x" * 9999},
        {"entries": {"/" + "x" * 9999: {}}},
    ],
)
def test_what_a_journal_holds_is_shown_no_longer_than_a_line(changes: dict[str, Any]) -> None:
    with pytest.raises(KvpatchError) as caught:
        parse(spoiled(**changes), "there")
    assert len(caught.value.message) < 250


def test_any_truncation_is_called_damaged() -> None:
    text = render(OPEN).rstrip()
    for end in range(len(text)):
        with pytest.raises(KvpatchError) as caught:
            parse(text[:end], "there")
        assert (caught.value.code, caught.value.exit_code) == ("journal-damaged", ExitCode.REFUSED)
        assert caught.value.hint


def spoiled(**changes: Any) -> bytes:
    data = json.loads(render(OPEN))
    for name, value in changes.items():
        data[name] = value
    return json.dumps(data).encode()


def code_of(text: bytes) -> str:
    with pytest.raises(KvpatchError) as caught:
        parse(text, "there")
    assert caught.value.exit_code == ExitCode.REFUSED
    return caught.value.code


def test_a_newer_schema_asks_for_an_upgrade_whatever_else_it_holds() -> None:
    assert code_of(json.dumps({"schema": SCHEMA + 1}).encode()) == "journal-newer"
    assert code_of(spoiled(schema=SCHEMA + 1, entries=[])) == "journal-newer"


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "done"},
        {"schema": 0},
        {"schema": True},
        {"schema": "1"},
        {"entries": []},
        {"participants": "x"},
        {"distributions": {"vllm": {"version": 1, "record_sha256": ""}}},
        {"steps": {"a": {"before": None, "after": None}}},
        {"former": {**json.loads(render(OPEN)), "former": None}},
    ],
)
def test_a_wrong_value_is_called_damaged(changes: dict[str, Any]) -> None:
    assert code_of(spoiled(**changes)) == "journal-damaged"


HOSTILE = ("../a.py", "/etc/passwd", "a/../../b", "a//b", "", ".", "a\\b", "a\nb")


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_path_is_refused_in_entries_and_in_steps(path: str) -> None:
    entry = json.loads(render(FORMER))["entries"]["vllm/a.py"]
    assert code_of(spoiled(entries={path: {**entry, "path": path}})) == "journal-hostile"
    assert code_of(spoiled(entries={"vllm/a.py": {**entry, "path": path}})) == "journal-hostile"
    step = {"before": None, "after": {"digest": A, "mode": 0, "link": None}}
    assert code_of(spoiled(steps={path: step})) == "journal-hostile"


def test_hostile_names_of_blobs_folders_and_transactions_are_refused() -> None:
    entry = json.loads(render(FORMER))["entries"]["vllm/a.py"]
    for changes in (
        {"entries": {"vllm/a.py": {**entry, "original": "../../etc/passwd"}}},
        {"transaction": "../x"},
        {"site": "relative"},
        {"participants": ["/a/../b"]},
        {"prefixes": ["pyc"]},
    ):
        assert code_of(spoiled(**changes)) == "journal-hostile"


@given(
    st.sampled_from(sorted(json.loads(render(OPEN)))),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=4),
)
def test_no_value_anywhere_gives_anything_but_an_error_or_the_journal(
    name: str, value: Any
) -> None:
    text, code = spoiled(**{name: value}), ""
    try:
        parse(text, "there")
    except KvpatchError as error:
        code = error.code
    assert code in ("", "journal-damaged", "journal-hostile", "journal-newer")
