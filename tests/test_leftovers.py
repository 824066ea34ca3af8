"""What killed runs leave in the cache: removed when it is old, and nothing else with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kvpatch.index import write_atomically
from kvpatch.leftovers import DAY_S, PREFIX, clear
from kvpatch.workshop import PREFIX as MAKING

WRITE = """
import os, sys
from pathlib import Path
from kvpatch import index

inner = os.fdopen

class Waiting:
    def __init__(self, *opened):
        self.stream = inner(*opened)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()

    def write(self, data):
        print("half", flush=True)
        sys.stdin.read()

os.fdopen = Waiting
index.write_atomically(Path(sys.argv[1]), b"x")
"""


def age(path: Path, seconds: float = 2 * DAY_S) -> None:
    at = time.time() - seconds
    os.utime(path, (at, at), follow_symlinks=False)


def half(cache: Path, *folders: str, seconds: float = 2 * DAY_S) -> Path:
    made = cache.joinpath(*folders, f"{PREFIX}abcd_123")
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text("half")
    age(made, seconds)
    return made


def test_old_halves_are_removed_from_every_folder_and_nothing_else(tmp_path: Path) -> None:
    old = [
        half(tmp_path, *folders)
        for folders in (
            ("files", "ab"),
            ("members", "cd"),
            ("index", "0123456789ab"),
            ("verdicts", "0123456789abcdef"),
            ("directories",),
            ("wheels",),
            ("schema",),
        )
    ]
    young = half(tmp_path, "files", "cd", seconds=DAY_S / 2)
    strange = half(tmp_path, "env", "lib")
    whole = tmp_path / "files" / "ab" / "abcdef"
    whole.write_text("whole")
    age(whole)
    clear(tmp_path)
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in (young, strange, whole))


def test_they_are_looked_for_once_a_day(tmp_path: Path) -> None:
    clear(tmp_path)
    left = half(tmp_path, "files", "ab")
    clear(tmp_path)
    clear(tmp_path, time.time() + DAY_S - 60)
    assert left.exists()
    clear(tmp_path, time.time() + DAY_S + 60)
    assert not left.exists()
    # A clock that went wrong does not put it off for ever.
    (stamp,) = (path for path in tmp_path.iterdir() if path.is_file())
    age(stamp, -9 * DAY_S)
    left = half(tmp_path, "files", "ab")
    clear(tmp_path)
    assert not left.exists()


def test_one_that_a_process_writes_is_left_however_old_it_is(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITE, str(tmp_path / "files" / "ab" / "file")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"half\n"
    (held,) = (tmp_path / "files" / "ab").iterdir()
    age(held)
    clear(tmp_path)
    assert held.exists()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert held.name.startswith(PREFIX)
    clear(tmp_path, time.time() + DAY_S + 60)
    assert not held.exists()


def test_no_link_is_followed(tmp_path: Path) -> None:
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    outside = [
        half(elsewhere, *folders) for folders in (("ab",), (f"{MAKING}abcdefgh",), ("tmpabcdefgh",))
    ]
    for path in elsewhere.iterdir():
        age(path)
    cache.mkdir()
    (cache / "files").mkdir()
    (cache / "files" / "ab").symlink_to(elsewhere / "ab")
    (cache / "files" / f"{PREFIX}linklink").symlink_to(outside[0])
    (cache / "members").symlink_to(elsewhere)
    (cache / "whole").symlink_to(elsewhere)
    clear(cache)
    assert all(path.exists() for path in outside)
    (cache / "whole").unlink()
    (cache / "whole").mkdir()
    (cache / "whole" / f"{MAKING}linklink").symlink_to(elsewhere / f"{MAKING}abcdefgh")
    clear(cache, time.time() + DAY_S + 60)
    assert all(path.exists() for path in outside)


def test_a_link_in_the_place_of_the_stamp_is_not_written_through(tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", tmp_path / "other"
    cache.mkdir()
    clear(cache)
    (stamp,) = cache.iterdir()
    stamp.unlink()
    stamp.symlink_to(other)
    age(stamp)
    left = half(cache, "schema")
    clear(cache)
    assert (left.exists(), other.exists()) == (True, False)


def test_downloads_that_broke_off_are_removed(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    gone = [half(whole, f"{MAKING}abcdefgh"), half(whole, "tmpabcdefgh")]
    young = half(whole, "tmpyoungone")
    kept = whole / f"{'0' * 64}.whl"
    kept.touch()
    for path in (*(path.parent for path in gone), kept):
        age(path)
    clear(tmp_path)
    assert not any(path.parent.exists() for path in gone)
    assert young.exists()
    assert kept.exists()


@pytest.mark.parametrize(
    "names",
    [
        ("files", "ab", f"{PREFIX}notes.txt"),
        ("files", "ab", f"{PREFIX}ABCD_123"),
        ("files", "ab", f"{PREFIX}abcd_1234"),
        ("files", f"{PREFIX}abcd_123"),
        ("files", "abc", f"{PREFIX}abcd_123"),
        ("files", "ab", "cd", f"{PREFIX}abcd_123"),
        ("schema", "ab", f"{PREFIX}abcd_123"),
        ("whole", f"{MAKING}notes", "file"),
        ("whole", "tmp", "file"),
        ("whole", f"{MAKING}abcdefgh", "folder", "file"),
    ],
)
def test_what_kvpatch_gives_no_such_name_is_left(tmp_path: Path, names: tuple[str, ...]) -> None:
    other = tmp_path.joinpath(*names)
    other.parent.mkdir(parents=True)
    other.write_text("mine")
    for path in tmp_path.rglob("*"):
        age(path)
    clear(tmp_path)
    assert other.read_text() == "mine"


def test_a_folder_without_end_keeps_nothing_from_its_end(tmp_path: Path) -> None:
    left = half(tmp_path, "files", "ab")
    for start in (tmp_path / "files" / "cd", tmp_path / "whole" / f"{MAKING}abcdefgh"):
        start.mkdir(parents=True)
        at = os.open(start, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("d", dir_fd=at)
            inner = os.open("d", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = inner
        os.close(at)
        age(start)
    clear(tmp_path)
    assert not left.exists()
    # Neither can the test runner remove it.
    subprocess.run(["rm", "-r", *map(str, tmp_path.iterdir())], check=True)


MOUNTED = """
set -e
mount --bind "$1" "$2"
"$3" -c 'import sys; from pathlib import Path; from kvpatch import leftovers, verdicts
leftovers.clear(Path(sys.argv[1]))
verdicts.Kept(Path(sys.argv[1]) / "verdicts" / ("f" * 16)).prune(9e9)' "$4"
"""


@pytest.mark.parametrize(
    ("place", "file"),
    [
        (("files",), f"ab/{PREFIX}abcd_123"),
        (("files", "ab"), f"{PREFIX}abcd_123"),
        (("files", "mnt"), f"{PREFIX}abcd_123"),
        (("schema",), f"{PREFIX}abcd_123"),
        (("whole",), f"{MAKING}abcdefgh/file"),
        (("whole", f"{MAKING}abcdefgh"), "file"),
        (("whole", f"{MAKING}abcdefgh", "sub"), "file"),
        (("verdicts", "0" * 16), f"vllm-0.25.1-{0:016x}.json"),
        (("verdicts", "0" * 16, "sub"), f"vllm-0.25.1-{0:016x}.json"),
    ],
)
def test_what_is_mounted_there_is_left(tmp_path: Path, place: tuple[str, ...], file: str) -> None:
    namespace = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"]).returncode:
        pytest.skip("no mount namespace can be made here")
    cache, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    there, point = elsewhere / file, cache.joinpath(*place)
    there.parent.mkdir(parents=True)
    there.write_text("mine")
    point.mkdir(parents=True)
    for number in range(1, 5):
        (cache / "verdicts" / f"{number:016x}").mkdir(parents=True)
    old = half(cache, "members", "ab")
    for path in (elsewhere, *elsewhere.rglob("*"), *cache.rglob("*")):
        age(path)
    age(cache.joinpath("verdicts", "0" * 16) if place[0] == "verdicts" else point, 3 * DAY_S)
    command = [*namespace, "sh", "-c", MOUNTED, "sh"]
    subprocess.run([*command, elsewhere, point, sys.executable, cache], check=True)
    assert there.read_text() == "mine"
    assert not old.exists()


@pytest.mark.parametrize("cache", ["/proc/kvpatch", "/dev/null"])
def test_where_nothing_can_be_written_nothing_is_said(cache: str) -> None:
    clear(Path(cache))


def test_what_is_written_is_whole_and_leaves_nothing(tmp_path: Path) -> None:
    write_atomically(tmp_path / "files" / "a", b"x")
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["a"]
