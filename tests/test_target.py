from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.target import Interpreter, compile_in_target, survey_target
from sites import VLLM, install


def _venv(folder: Path) -> tuple[Path, Path]:
    """A virtual environment's Python and site folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    return folder / "bin" / "python", site


def _script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _failure(python: Path, timeout: float = 20.0) -> KvpatchError:
    with pytest.raises(KvpatchError) as caught:
        survey_target(python, timeout=timeout)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert str(python) in caught.value.message
    return caught.value


def test_the_interpreter_is_described_and_its_path_left_unresolved(tmp_path: Path) -> None:
    python, site = _venv(tmp_path / "env")
    assert python.is_symlink()
    install(site, "vllm", "0.11.1", VLLM)
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": "/var/pyc"}
    interpreter, answer = survey_target(python, environ=environ)
    assert interpreter == Interpreter(
        executable=python,
        version=sys.version_info[:3],
        cache_tag=str(sys.implementation.cache_tag),
        pycache_prefix="/var/pyc",
        prefix=str(tmp_path / "env"),
    )
    assert answer["packages"]["vllm"]["site"] == str(site)


def test_noise_at_start_and_end_does_not_break_the_answer(tmp_path: Path) -> None:
    python, site = _venv(tmp_path / "env")
    install(site, "vllm", "0.11.1", VLLM)
    noise = (
        "import atexit, sys; sys.stdout.write('{\"version\": 1}\\n@@kvpatch-probe@@ {}\\nno end');"
        " atexit.register(print, 'bye'); sys.stdout = None\n"
    )
    (site / "noise.pth").write_text(noise)
    _, answer = survey_target(python)
    assert answer["packages"]["vllm"]["version"] == "0.11.1"


def test_much_noise_on_both_streams_does_not_block(tmp_path: Path) -> None:
    python, site = _venv(tmp_path / "env")
    line = "import os; os.write(1, b'x' * 300000); os.write(2, b'y' * 300000)\n"
    (site / "noise.pth").write_text(line)
    interpreter, _ = survey_target(python)
    assert interpreter.executable == python
    sources = {f"{number}.py": b"x = 1\n" * 20000 for number in range(10)}
    assert compile_in_target(interpreter, {**sources, "bad.py": b"("}) == {
        "bad.py": compile_in_target(interpreter, {"bad.py": b"("})["bad.py"]
    }


def test_packages_in_the_working_directory_are_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, _ = _venv(tmp_path / "env")
    install(tmp_path / "here", "vllm", "0.11.1", VLLM)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    assert survey_target(python)[1]["packages"] == {}


def test_a_relative_python_path_means_the_folder_kvpatch_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, _ = _venv(tmp_path / "env")
    install(tmp_path / "here" / "lib", "vllm", "0.11.1", VLLM)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", "lib")
    assert survey_target(python)[1]["packages"]["vllm"]["site"] == str(tmp_path / "here" / "lib")


def test_a_shim_that_looks_at_the_folder_starts_the_same_python_as_for_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, site = _venv(tmp_path / "env")
    install(site, "vllm", "0.11.1", VLLM)
    (tmp_path / "wanted").write_text(str(python))
    shim = _script(tmp_path / "shim", 'exec "$(cat wanted)" "$@"\n')
    monkeypatch.chdir(tmp_path)
    interpreter, answer = survey_target(shim)
    assert (interpreter.executable, interpreter.prefix) == (shim, str(tmp_path / "env"))
    assert answer["executable"] == str(python)


def test_nothing_is_imported_and_no_file_is_left(tmp_path: Path) -> None:
    python, site = _venv(tmp_path / "env")
    install(site, "vllm", "0.11.1", VLLM)
    (site / "helper.py").write_text("")
    (site / "helper.pth").write_text("import helper\n")
    before = sorted(tmp_path.rglob("*"))
    _, answer = survey_target(python)
    assert "vllm" in answer["packages"]
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interpreter_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    python = _script(tmp_path / "python", f"sleep 300 &\necho $! $$ > {pids}\nwait\n")
    assert _failure(python, timeout=0.5).code == "python-timeout"
    deadline = time.monotonic() + 10
    left = [int(pid) for pid in pids.read_text().split()]
    while any(map(_alive, left)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(_alive, left))


def test_an_answer_is_taken_although_a_daemon_keeps_the_output_open(tmp_path: Path) -> None:
    python, site = _venv(tmp_path / "env")
    (site / "daemon.pth").write_text("import subprocess; subprocess.Popen(['sleep', '300'])\n")
    interpreter, _ = survey_target(python, timeout=60)
    assert interpreter.executable == python


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo '{}'\n", "did not answer"),
        ("echo oh no >&2; exit 3\n", "oh no"),
        ('printf "\\n%s{}" "$4"\n', "did not answer"),
        ('printf "\\n%s{\\n" "$4"\n', "makes no sense"),
        ('printf "\\n%s[1]\\n" "$4"\n', "makes no sense"),
        ('printf "\\n%s{}\\n" "$4"\n', "makes no sense"),
        ("cat /dev/zero\n", "did not answer"),
    ],
    ids=["json", "complains", "no-end", "broken", "list", "empty", "endless"],
)
def test_what_is_no_python_is_told_so(tmp_path: Path, text: str, said: str) -> None:
    error = _failure(_script(tmp_path / "python", text))
    assert error.code == "bad-python"
    assert said in error.message


def test_a_file_that_can_not_be_executed_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "python").write_bytes(b"\0\1\2")
    assert "can't be started" in _failure(tmp_path / "python").message
    (tmp_path / "python").chmod(0o755)
    assert "Exec format error" in _failure(tmp_path / "python").message


def _own() -> Interpreter:
    version = (sys.version_info[0], sys.version_info[1], sys.version_info[2])
    return Interpreter(Path(sys.executable), version, "", None, sys.prefix)


def test_sources_that_compile_give_no_errors() -> None:
    assert compile_in_target(_own(), {"a.py": b"x = 1\n", "b.py": b""}) == {}


def test_a_source_that_does_not_compile_is_named_with_its_line() -> None:
    errors = compile_in_target(_own(), {"a.py": b"x = 1\n", "b.py": b"\n\nx = = 1\n"})
    assert list(errors) == ["b.py"]
    assert errors["b.py"].startswith("line 3: ")


def test_without_sources_no_interpreter_is_started(tmp_path: Path) -> None:
    nowhere = Interpreter(tmp_path / "none", (3, 11, 0), "", None, "")
    assert compile_in_target(nowhere, {}) == {}


def test_an_environment_that_never_reads_its_request_is_a_time_out(tmp_path: Path) -> None:
    python = _script(tmp_path / "python", "sleep 300\n")
    target = Interpreter(python, (3, 11, 0), "", None, "")
    with pytest.raises(KvpatchError) as caught:
        compile_in_target(target, {"a.py": b"x" * 1_000_000}, timeout=0.5)
    assert caught.value.code == "python-timeout"


def test_the_request_survives_a_target_that_ends_at_once(tmp_path: Path) -> None:
    python = _script(tmp_path / "python", "exec 0<&-; exit 1\n")
    target = Interpreter(python, (3, 11, 0), "", None, "")
    with pytest.raises(KvpatchError) as caught:
        compile_in_target(target, {"a.py": b"x" * 1_000_000})
    assert caught.value.code == "bad-python"


def test_an_answer_without_results_is_told_so(tmp_path: Path) -> None:
    python = _script(tmp_path / "python", 'cat >/dev/null; printf "\\n%s{}\\n" "$4"\n')
    target = Interpreter(python, (3, 11, 0), "", None, "")
    with pytest.raises(KvpatchError) as caught:
        compile_in_target(target, {"a.py": b""})
    assert caught.value.code == "bad-python"


def test_the_marker_is_new_each_time(tmp_path: Path) -> None:
    words = tmp_path / "words"
    python = _script(tmp_path / "python", f'echo "$4" >> {words}\n')
    _failure(python)
    _failure(python)
    first, second = words.read_text().splitlines()
    assert first != second


def test_json_stays_readable_for_paths_that_are_no_text(tmp_path: Path) -> None:
    python, _ = _venv(tmp_path / "env")
    site = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    install(site, "vllm", "0.11.1", VLLM)
    environ = {**os.environ, "PYTHONPATH": str(site)}
    _, answer = survey_target(python, environ=environ)
    assert json.loads(json.dumps(answer))["packages"]["vllm"]["site"] == str(site)
