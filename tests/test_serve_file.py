"""Reading the file behind --config from where vLLM would, and saying so where that can't be."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kvpatch.launch import Launch
from kvpatch.launch_script import parse_launch, parse_script
from kvpatch.serve_config import ServeConfig
from kvpatch.serve_file import Base, followed, of_process
from kvpatch.yaml_source import MOST_BYTES
from packaging.version import Version

NEWEST = Version("0.32.0")
TEXT = "kv-transfer-config:\n  kv_connector: LMCacheConnectorV1\napi-key: sk-secret\n"


def config(launch: Launch) -> ServeConfig:
    assert launch.config is not None
    return launch.config


def follow(name: str, *folders: Path, folder: str | None = None) -> Launch:
    launch = replace(parse_launch(f"vllm serve m --config {name}"), folder=folder)
    return followed(launch, NEWEST, Base(folders))


def test_a_command_without_the_file_stays_as_it_is(tmp_path: Path) -> None:
    launch = parse_launch("vllm serve m --port 1")
    assert followed(launch, NEWEST, Base((tmp_path,))) is launch


def test_its_options_are_those_of_the_command_and_have_their_places(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TEXT)
    found = follow("s.yaml", tmp_path)
    assert found.in_process
    assert config(found).read
    origin = found.origin("kv-transfer-config")
    assert origin is not None
    assert (origin.path, origin.line) == (str(tmp_path / "s.yaml"), 1)


@pytest.mark.parametrize("name", ["{}/s.yaml", "$HOME/s.yaml", "~/s.yaml", "${{HOME}}/s.yaml"])
def test_absolute_names_need_no_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "s.yaml").write_text(TEXT)
    assert follow(name.format(tmp_path), Path("/none")).in_process


@pytest.mark.parametrize(
    ("name", "folder", "why", "todo"),
    [
        ("$X/s.yaml", None, "when the command runs", "written out"),
        ("s.yaml", "", "can't be told", "absolute path"),
        ("gone.yaml", None, "is not in", "absolute path"),
        ("/none/gone.yaml", None, "No such file", "where vLLM runs"),
        ("gone.yaml", "/none", "No such file", "where vLLM runs"),
        ("folder.yaml", None, "a folder, a pipe", "a YAML file"),
        ("pipe.yaml", None, "a folder, a pipe", "a YAML file"),
        ("large.yaml", None, f"more than {MOST_BYTES} bytes", "alone"),
        ("loop.yaml", "/", "No such file", "where vLLM runs"),
    ],
)
def test_what_can_not_be_read_is_not_taken_for_missing(
    tmp_path: Path, name: str, folder: str | None, why: str, todo: str
) -> None:
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MOST_BYTES + 1))
    found = follow(name, tmp_path, tmp_path / "other", folder=folder)
    assert why in config(found).unread
    assert todo in config(found).todo
    assert not found.known


def test_a_file_that_fails_while_it_is_read_is_told(tmp_path: Path) -> None:
    # The first page of a process's memory is never there.
    (tmp_path / "s.yaml").symlink_to("/proc/self/mem")
    assert config(follow("s.yaml", tmp_path)).unread == "Input/output error"


def test_a_name_with_a_null_byte_is_told(tmp_path: Path) -> None:
    launch = Launch({}, args=("serve", "m", "--config", "a\0.yaml"))
    assert "null byte" in config(followed(launch, NEWEST, Base((tmp_path,)))).unread


def test_of_two_folders_the_one_that_has_it_counts_and_neither_where_both_do(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (two / "s.yaml").write_text(TEXT)
    assert config(follow("s.yaml", one, two)).path == str(two / "s.yaml")
    (one / "s.yaml").symlink_to(two / "s.yaml")
    assert follow("s.yaml", one, two).known
    (one / "s.yaml").unlink()
    (one / "s.yaml").write_text("port: 1\n")
    found = config(follow("s.yaml", one, two))
    assert found.unread == f"it is {one / 's.yaml'} or {two / 's.yaml'}, by where vLLM is started"


def test_a_script_that_changes_to_its_own_folder_is_followed_there(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TEXT)
    script = 'cd "$(dirname "$0")"\nexec vllm serve m --config s.yaml\n'
    launch = parse_script(script, str(tmp_path))
    assert launch is not None
    assert followed(launch, NEWEST, Base((Path("/none"), Path("/gone")))).in_process


def test_without_vllm_in_the_command_nobody_knows_who_reads_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TEXT)
    launch = parse_launch("docker run my/image --config s.yaml --port 1")
    found = followed(launch, NEWEST, Base((tmp_path,)))
    assert "vLLM itself" in config(found).unread
    assert not found.in_process


@pytest.mark.parametrize(
    "text", ["api-key: *sk-secret\n", "api-key: !!int sk-secret\n", "api-key: !sk-secret x\n"]
)
def test_what_yaml_stumbles_over_is_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    (problem,) = config(follow("s.yaml", tmp_path)).problems
    assert "not YAML" in problem.message
    assert "secret" not in problem.message


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_bytes(b"port: 1\nname: \xff\n")
    (problem,) = config(follow("s.yaml", tmp_path)).problems
    assert (problem.message, problem.origin.line) == ("it is not UTF-8 text", 2)


def test_a_process_reads_it_where_it_runs_and_keeps_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(TEXT)
    launch = parse_launch("vllm serve m --config s.yaml")
    sleeps = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(sleeps, stdin=subprocess.PIPE, cwd=tmp_path) as process:
        base = of_process(process.pid)
        assert base.since is not None
        assert abs(base.since - time.time()) < 60
        found = followed(launch, NEWEST, base)
        assert found.in_process
        assert config(found).path == str(tmp_path / "s.yaml")
        assert config(found).problems == ()
        os.utime(tmp_path / "s.yaml", (base.since + 60, base.since + 60))
        late = followed(launch, NEWEST, of_process(process.pid))
        assert "changed after vLLM was started" in config(late).unread
        assert "restart vLLM" in config(late).todo
        assert not late.in_process
        os.utime(tmp_path / "s.yaml", (base.since, base.since))
        early = replace(base, since=base.since - 60)
        # By its time alone it is old; that it was put there is not.
        assert "changed after vLLM was started" in config(followed(launch, NEWEST, early)).unread
        absolute = parse_launch(f"vllm serve m --config {tmp_path}/s.yaml")
        assert followed(absolute, NEWEST, base).in_process
        process.communicate()


def test_a_link_of_a_process_is_followed_in_its_own_root(tmp_path: Path) -> None:
    (tmp_path / "root/mnt").mkdir(parents=True)
    (tmp_path / "root/mnt/real.yaml").write_text(TEXT)
    (tmp_path / "root/cur.yaml").symlink_to("/mnt/real.yaml")
    (tmp_path / "root/loop.yaml").symlink_to("loop.yaml")
    base = Base((tmp_path / "root/mnt",), str(tmp_path / "root"))
    for name in ("/cur.yaml", "../cur.yaml", "real.yaml"):
        assert followed(parse_launch(f"vllm serve m --config {name}"), NEWEST, base).in_process
    loop = followed(parse_launch("vllm serve m --config /loop.yaml"), NEWEST, base)
    assert config(loop).unread == os.strerror(errno.ELOOP)


def test_a_link_that_was_exchanged_since_is_not_what_runs(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(TEXT)
    os.utime(tmp_path / "real.yaml", (1, 1))
    (tmp_path / "cur.yaml").symlink_to("real.yaml")
    after = (tmp_path / "real.yaml").stat().st_ctime + 1000
    os.utime(tmp_path / "cur.yaml", (after, after), follow_symlinks=False)
    launch = parse_launch(f"vllm serve m --config {tmp_path}/cur.yaml")
    base = Base((tmp_path,), "", after - 500)
    found = followed(launch, NEWEST, replace(base, root="/proc/self/root"))
    assert "changed after vLLM was started" in config(found).unread


def test_a_secret_of_any_length_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f'api-key: !!int "{"sk-secret" * 12}"\n')
    (problem,) = config(follow("s.yaml", tmp_path)).problems
    assert "secret" not in problem.message
    assert problem.origin.column == 10
