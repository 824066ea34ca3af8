"""Folders that scripts ask for, in the ways that scripts do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kvpatch.script_path import computed, is_own_folder

OWN = [
    '$(dirname "$0")',
    '$(dirname -- "$0")',
    '$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")',
    '$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)',
    '$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &> /dev/null && pwd)',
    '$(cd "$(dirname "$0")" >/dev/null 2>&1 && pwd -P)',
    "$(realpath $(dirname $0))",
]
OTHER = [
    '$(dirname "$(dirname "$0")")',
    '$(cd "$(dirname "$0")/.." && pwd)',
    '$(dirname "$1")',
    "$(pwd)",
    '$(ls "$(dirname "$0")"; echo x)',
]


@pytest.mark.parametrize("text", OWN)
def test_bash_gives_the_scripts_own_folder(text: str, tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    script.write_text(f'echo "{text}"\n')
    ended = subprocess.run(["bash", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(tmp_path)
    assert is_own_folder(text)


@pytest.mark.parametrize("text", OTHER)
def test_another_folder_is_not_taken_for_it(text: str) -> None:
    assert not is_own_folder(text)


@pytest.mark.parametrize(("word", "open_"), [("$A/x", True), ("`a`", True), ("/a/x", False)])
def test_what_a_shell_puts_in_is_seen(word: str, open_: bool) -> None:
    assert computed(word) is open_
