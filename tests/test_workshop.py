"""A folder for files in the making: gone in the end, and swept after a run that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kvpatch.workshop import PREFIX, workshop

HOLD = """
import sys
from pathlib import Path
from kvpatch.workshop import workshop

with workshop(Path(sys.argv[1])) as folder:
    (folder / "half").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def age(folder: Path) -> None:
    os.utime(folder, (1_000_000_000, 1_000_000_000))


def test_a_workshop_is_gone_in_the_end_also_after_a_failure(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b"
    with workshop(place) as folder:
        assert folder.parent == place
        (folder / "file").touch()
    assert list(place.iterdir()) == []

    def failing() -> None:
        with workshop(place) as folder:
            (folder / "file").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert list(place.iterdir()) == []


def test_what_a_killed_run_left_is_swept_and_what_a_living_one_holds_is_not(
    tmp_path: Path,
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    held = Path(child.stdout.readline().decode().strip())
    age(held)
    with workshop(tmp_path):
        assert (held / "half").exists()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert (held / "half").exists()
    with workshop(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_what_was_made_just_now_and_what_is_no_workshop_stays(tmp_path: Path) -> None:
    young, link, file = (tmp_path / f"{PREFIX}{name}" for name in ("young", "link", "file"))
    other = tmp_path / ".kvpatch"
    young.mkdir()
    other.mkdir()
    link.symlink_to(other)
    file.touch()
    with workshop(tmp_path):
        assert all(os.path.lexists(path) for path in (young, link, file, other))
