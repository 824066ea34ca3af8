"""Files and folders that scripts name, in the ways that scripts do."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from kvpatch.launch import parse_script
from kvpatch.script_path import UNKNOWN, changed, computed, own_folder, spelt_out

OWN = [
    'here=$(dirname "$0")',
    'here="$(dirname -- "$0")"',
    'HERE=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")',
    'export DIR="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
    'DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &> /dev/null && pwd)"',
    "D=$(realpath $(dirname $0))",
]
OTHER = [
    'top=$(dirname "$(dirname "$0")")',
    'top="$(cd "$(dirname "$0")/.." && pwd)"',
    'conf="$(dirname "$0")/conf"',
    'here=$(dirname "$1")',
    "here=$(pwd)",
    'echo "$(dirname "$0")"',
]


@pytest.mark.parametrize("line", OWN)
def test_a_script_that_asks_for_its_own_folder_has_it(line: str) -> None:
    ((name, folder),) = own_folder(line, "/srv/s")
    assert name in line
    assert folder == "/srv/s"


@pytest.mark.parametrize("line", OTHER)
def test_another_folder_is_not_taken_for_it(line: str) -> None:
    assert list(own_folder(line, "/srv/s")) == []


@pytest.mark.parametrize("line", [one for one in OWN if not one.startswith("export")])
def test_bash_gives_the_same_folder(line: str, tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    name = line.partition("=")[0]
    script.write_text(f'{line}\necho "${name}"\n')
    ended = subprocess.run(["bash", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(tmp_path)
    assert dict(own_folder(line, str(tmp_path))) == {name: ended.stdout.strip()}


@pytest.mark.parametrize(
    ("word", "plain"),
    [
        ("$A/s.yaml", "/a/s.yaml"),
        ("${A}/s.yaml", "/a/s.yaml"),
        ("$AB/s.yaml", "$AB/s.yaml"),
        ("$(dirname $0)/s.yaml", "/here/s.yaml"),
        ("$(dirname -- ${BASH_SOURCE[0]})/s.yaml", "/here/s.yaml"),
        ("${A:-/x}/s.yaml", "${A:-/x}/s.yaml"),
        ("$(cat name)", "$(cat name)"),
    ],
)
def test_variables_that_are_known_are_put_in(word: str, plain: str) -> None:
    assert spelt_out(word, {"A": "/a"}, "/here") == plain
    assert computed(plain) is ("$" in plain)


@pytest.mark.parametrize(
    ("line", "before", "after"),
    [
        ("cd /srv", None, "/srv"),
        ("cd /srv && vllm serve m", None, "/srv"),
        ("vllm serve m && cd /srv", None, None),
        ("cd conf", None, "conf"),
        ("cd conf", "/srv", "/srv/conf"),
        ("cd conf", UNKNOWN, UNKNOWN),
        ("cd /srv", UNKNOWN, "/srv"),
        ("cd $A", None, "/a"),
        ("cd $B", "/srv", UNKNOWN),
        ("cd -", "/srv", UNKNOWN),
        ('cd "$(dirname "$0")"', None, "/here"),
        ('cd "$(dirname "$(readlink -f "$0")")" || exit 1', None, "/here"),
        ('cd "$(dirname "$0")/.."', None, "/here/.."),
        ('cd "$(dirname "$(readlink -f "$0")")/.."', None, UNKNOWN),
        ("echo cd-player", None, None),
    ],
)
def test_the_folder_that_a_script_changes_to_is_followed(
    line: str, before: str | None, after: str | None
) -> None:
    assert changed(line, shlex.split(line), before, {"A": "/a"}, "/here") == after


def test_a_script_says_where_vllm_reads_its_file() -> None:
    script = 'CONF=s.yaml\nhere=$(dirname "$0")\ncd /srv\nvllm serve --config "$here/$CONF"\n'
    found = parse_script(script, "/opt/start")
    assert found is not None
    assert found.args == ("serve", "--config", "/opt/start/s.yaml")
    assert found.folder == "/srv"
