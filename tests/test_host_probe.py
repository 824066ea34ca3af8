"""Hosts as /proc, /sys and /etc show them, each kind as a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from kvpatch import host_probe
from kvpatch.host_probe import counters, cufile, look

STATS = """GDS Version: 1.14.0.30
NVFS statistics(ver: 4.0)
NVFS Driver(version: 2.25.6)
Mellanox PeerDirect Supported: True
IO stats: Enabled, peer IO stats: Disabled
Active Shadow-Buffer (MiB): 0
Reads : n=63 ok=63 err=0 readMiB=31 io_state_err=0
Writes : n=7 ok=7 err=0 writeMiB=3 io_state_err=0
"""


def host(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def test_a_host_with_everything_tells_it(tmp_path: Path) -> None:
    root = host(
        tmp_path,
        {
            "proc/driver/nvidia-fs/stats": STATS,
            "proc/driver/nvidia-fs/version": "version: 2.25.6\n",
            "proc/modules": "nvidia_fs 1 0 - Live 0x0\nrpcrdma 1 0 - Live 0x0\next4 1 0 -\n",
            "sys/class/infiniband/mlx5_0/x": "",
            "etc/cufile.json": '// c\n{"properties": {"allow_compat_mode": true, // d\n}, }\n',
            "dev/nvidia0": "",
        },
    )
    facts = look(root, {})
    assert facts["nvidia_fs_loaded"]
    assert facts["counters"] == {"reads": 63, "writes": 7, "io_stats": "Enabled"}
    assert facts["rdma"] == ["mlx5_0"]
    assert facts["modules"] == ["nvidia_fs", "rpcrdma"]
    assert facts["cufile"]["compat"] is True


def test_a_host_with_nothing_tells_that(tmp_path: Path) -> None:
    facts = look(str(tmp_path), {})
    assert not facts["nvidia_fs_loaded"]
    assert facts["counters"] is None
    assert facts["cufile"] == {"path": "/etc/cufile.json", "there": False}
    assert facts["rdma"] == facts["modules"] == facts["devices"] == []


@pytest.mark.parametrize("text", ["", "\0\xff", "Reads", "IO stats: Disabled\n"])
def test_counters_that_count_nothing_are_no_crash(text: str) -> None:
    assert not (counters(text) or {}).get("reads")


@pytest.mark.parametrize("text", ["{", "[1]", "", '{"properties": 3}'])
def test_settings_that_cannot_be_read_are_a_problem(tmp_path: Path, text: str) -> None:
    root = host(tmp_path, {"own.json": text})
    found = cufile(root, {"CUFILE_ENV_PATH_JSON": "/own.json"})
    assert found["there"]
    assert found["problem"]


def test_a_slash_inside_of_a_string_is_no_comment(tmp_path: Path) -> None:
    root = host(tmp_path, {"etc/cufile.json": '{"logging": {"dir": "http://x"}, "properties": {}}'})
    assert "problem" not in cufile(root, {})


def test_a_file_of_proc_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "proc/modules").mkdir(parents=True)
    assert look(str(tmp_path), {})["modules"] == []


def test_it_runs_alone_as_a_script_on_this_host() -> None:
    argv = [sys.executable, "-I", host_probe.__file__, "/"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "nvidia_fs_loaded" in json.loads(ended.stdout)
