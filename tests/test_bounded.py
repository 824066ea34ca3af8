from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from kvpatch import bounded

GRANDCHILD = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
child = subprocess.Popen([sys.executable, "-c", {body!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
{rest}
"""
SLEEPER = "import time; print(flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(flush=True); time.sleep(600)"
)


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def test_status_and_both_streams_of_a_command_come_back() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    ended = bounded.run(_python(code), limit=60)
    assert ended.code == 3
    assert sorted(ended.output.split()) == ["err", "out"]
    assert ended.left == 0


def test_a_command_past_its_limit_has_no_status_and_is_stopped() -> None:
    ended = bounded.run(
        _python("import os, time; print(os.getpid(), flush=True); time.sleep(600)"), limit=2
    )
    assert ended.code is None
    assert _gone(int(ended.output))


def test_a_grandchild_that_outlives_the_command_is_stopped() -> None:
    ended = bounded.run(_python(GRANDCHILD.format(body=SLEEPER, rest="")), limit=60)
    assert ended.code == 0
    assert ended.left == 1
    assert all(_gone(int(pid)) for pid in ended.output.split())


def test_a_grandchild_in_another_process_group_is_stopped() -> None:
    body = "import os; os.setpgid(0, 0); " + SLEEPER
    ended = bounded.run(_python(GRANDCHILD.format(body=body, rest="")), limit=60)
    assert ended.left == 1
    assert all(_gone(int(pid)) for pid in ended.output.split())


def test_a_grandchild_that_ignores_the_polite_signal_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded.end_session, "__defaults__", (0.5,))
    ended = bounded.run(_python(GRANDCHILD.format(body=STUBBORN, rest="")), limit=60)
    assert all(_gone(int(pid)) for pid in ended.output.split())


def test_stdin_stays_open_while_the_command_runs() -> None:
    code = "import select, sys; ready, _, _ = select.select([0], [], [], 0.5); print(len(ready))"
    assert bounded.run(_python(code), limit=60).output.strip() == "0"


def test_an_exception_while_waiting_still_ends_the_session(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    code = f"import os, time; open({str(noted)!r}, 'w').write(str(os.getpid())); time.sleep(600)"

    def stop(_: float) -> None:
        if noted.exists() and noted.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bounded.run(_python(code), limit=60, tick=stop, every=0.05)
    assert _gone(int(noted.read_text()))


def test_the_tick_is_told_the_seconds_gone_by() -> None:
    told: list[float] = []
    bounded.run(_python("import time; time.sleep(0.7)"), limit=60, tick=told.append, every=0.1)
    assert told[:3] == pytest.approx([0.1, 0.2, 0.3])


def test_a_descriptor_to_keep_reaches_the_command(tmp_path: Path) -> None:
    with (tmp_path / "held").open("wb") as held:
        code = f"import os; os.write({held.fileno()}, b'mine')"
        bounded.run(_python(code), limit=60, keep=[held.fileno()])
    assert (tmp_path / "held").read_bytes() == b"mine"


def test_this_process_is_no_member_of_an_unknown_session() -> None:
    assert os.getpid() not in bounded.members(2**22 + 1)


def test_commands_run_together_and_each_has_its_own_end() -> None:
    # Each waits for the other: one after the other they would never end.
    meet = (
        "import sys, time, pathlib\n"
        "mine, other = map(pathlib.Path, sys.argv[1:3])\n"
        "mine.touch()\n"
        "while not other.exists(): time.sleep(0.01)\n"
        "print(mine.name); sys.exit(int(mine.name))\n"
    )
    with tempfile.TemporaryDirectory() as name:
        one, two = Path(name, "1"), Path(name, "2")
        commands = [
            bounded.Command([*_python(meet), one, two]),
            bounded.Command([*_python(meet), two, one]),
        ]
        found = bounded.run_together(commands, limit=60)
    assert [(ended.code, ended.output) for ended in found] == [(1, "1\n"), (2, "2\n")]


def test_of_commands_that_run_together_one_past_the_limit_spoils_no_other() -> None:
    slow = bounded.Command(_python("import time; print('slow', flush=True); time.sleep(600)"))
    quick = bounded.Command(_python("print('quick')"))
    found = bounded.run_together([slow, quick], limit=3)
    assert [(ended.code, ended.output) for ended in found] == [(None, "slow\n"), (0, "quick\n")]
    assert found[1].seconds < found[0].seconds


def test_a_command_that_can_not_start_ends_those_that_did(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    code = f"import os, time; open({str(noted)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(FileNotFoundError):
        bounded.run_together(
            [bounded.Command(_python(code)), bounded.Command([tmp_path / "none"])], limit=60
        )
    assert not noted.exists() or _gone(int(noted.read_text()))
