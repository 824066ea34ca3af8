"""Files that a script names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from kvpatch.script_file import MOST_BYTES, ScriptFile, folder_of, is_returned, nothing, read


def test_a_script_is_read_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes(b"A=1\r\nB=2\n")
    assert read(str(tmp_path / "a.sh")) == ScriptFile("A=1\nB=2\n", str(tmp_path), returned=True)
    assert nothing(str(tmp_path / "a.sh")) is None


def test_by_a_link_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("A=1\n")
    (tmp_path / "b.sh").symlink_to("a.sh")
    found = read(str(tmp_path / "b.sh"))
    assert found is not None
    assert (found.text, found.folder) == ("A=1\n", "")
    assert folder_of(tmp_path / "b.sh") == ""


def test_a_script_that_begins_at_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.sh").write_text("")
    assert read("a.sh") == ScriptFile("", str(tmp_path))


def test_what_is_no_script_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("#" * (MOST_BYTES + 1))
    (tmp_path / "program").write_bytes(b"\x7fELF\0")
    for name in ("pipe", "large", "program", "none", "", "nul\0"):
        assert read(str(tmp_path / name)) is None
    assert read("\0") is None


@pytest.mark.parametrize(
    ("text", "returned"),
    [
        ("A=1\n", False),
        ("A=1\r\n", True),
        ("vllm serve m \\\r\n --port 1\n", True),
        ("A=(x\r\n)\n", True),
        ("# a comment\r\nA=1 # one more\r\n", False),
        ("cat > x <<E\ndata\r\nE\nvllm serve m\n", False),
        ("echo 'it\r\n", True),
    ],
)
def test_carriage_returns_count_where_a_shell_makes_words_of_them(
    text: str, returned: bool, tmp_path: Path
) -> None:
    assert is_returned(text) is returned
    script = tmp_path / "a.sh"
    script.write_bytes(b"vllm() { :; }\n" + text.encode())
    told = subprocess.run(["bash", "-x", script], cwd=tmp_path, capture_output=True)
    assert any(one in told.stderr for one in (b"\\r", b"\r", b"EOF")) is returned
