from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kvpatch.locate import Environment, Installed, Interpreter
from kvpatch.outcome import ExitCode, KvpatchError
from kvpatch.processes import Running, running, server_behind
from sites import VLLM, install

KVPATCH, SHELL = 500, 400


@dataclass
class Host:
    """A made-up /proc and two environments on it."""

    proc: Path
    prefix: Path
    other: Path

    @property
    def python(self) -> str:
        return str(self.prefix / "bin" / "python")

    def site(self, prefix: Path | None = None) -> Path:
        return (prefix or self.prefix) / "lib" / "python3.11" / "site-packages"

    def start(
        self,
        pid: int,
        *args: str,
        maps: tuple[str, ...] = (),
        parent: int = 1,
        exe: str = "/usr/bin/python3.11",
        environ: dict[str, str] | None = None,
        root: str = "/",
    ) -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes("\0".join(args).encode() + b"\0")
        lines = [f"7f00-7f01 r-xp 00000000 fe:00 1234          {path}" for path in maps]
        (folder / "maps").write_text("\n".join([*lines, "7f02-7f03 rw-p 00000000 00:00 0 "]))
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} 1 1 0\n")
        environment = (f"{name}={value}\0" for name, value in (environ or {}).items())
        (folder / "environ").write_text("".join(environment))
        (folder / "exe").symlink_to(exe)
        (folder / "cwd").symlink_to("/")
        (folder / "root").symlink_to(root)

    def environment(self, *, interpreter: bool = True, prefix: Path | None = None) -> Environment:
        prefix = prefix or self.prefix
        site = self.site(prefix)
        vllm = Installed("vllm", "vllm", "0.11.1", site, None, False, None, ())
        python = Interpreter(prefix / "bin" / "python", (3, 11, 7), "", None, str(prefix))
        return Environment(python if interpreter else None, {"vllm": vllm})

    def found(self, **options: bool) -> list[int]:
        ran = running(self.environment(**options), proc=self.proc, own=KVPATCH)
        return [each.pid for each in ran]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path / "proc", tmp_path / "env", tmp_path / "other")
    for prefix in (host.prefix, host.other):
        install(host.site(prefix), "vllm", "0.11.1", VLLM)
        (prefix / "bin").mkdir()
    host.proc.mkdir()
    (host.proc / "self").mkdir()
    host.start(1, "/sbin/init", exe="/sbin/init", parent=0)
    host.start(SHELL, "bash", exe="/bin/bash")
    host.start(KVPATCH, host.python, f"{host.prefix}/bin/kvpatch", "apply", parent=SHELL)
    return host


@pytest.mark.parametrize(
    "line",
    [
        "{python} {prefix}/bin/vllm serve model",
        "{python} -m vllm.entrypoints.openai.api_server --model x",
        "{python} -u -X dev -mvllm.entrypoints.cli.main serve",
        "{python} -Im vllm serve",
        "{python} -c import#vllm;vllm.LLM('x')",
        "{python} {site}/vllm/entrypoints/openai/api_server.py",
        "/usr/bin/python3.11 {prefix}/bin/vllm serve",
    ],
)
def test_a_server_is_known_by_its_command_line(host: Host, line: str) -> None:
    filled = line.format(python=host.python, prefix=host.prefix, site=host.site())
    host.start(10, *(part.replace("#", " ") for part in filled.split(" ")))
    assert host.found() == [10]
    assert host.found(interpreter=False) == [10]


def test_pid_and_command_line_are_told_and_a_long_one_is_cut(host: Host) -> None:
    host.start(10, f"{host.prefix}/bin/python", f"{host.prefix}/bin/vllm", "serve", "x" * 500)
    (found,) = running(host.environment(), proc=host.proc, own=KVPATCH)
    whole = f"{host.python} {host.prefix}/bin/vllm serve {'x' * 500}"
    assert found == Running(10, whole[:160])


def test_a_bare_python_is_looked_for_on_the_path_of_the_process(host: Host) -> None:
    for prefix in (host.prefix, host.other):
        (prefix / "bin" / "python").symlink_to(sys.executable)
    environ = {"PATH": f"/nowhere:{host.prefix}/bin:{host.other}/bin"}
    host.start(10, "python", "-m", "vllm.entrypoints.openai.api_server", environ=environ)
    host.start(11, "python", "-m", "vllm.entrypoints.openai.api_server", environ={"PATH": ""})
    assert host.found() == [10]


def test_a_titled_engine_is_known_by_what_it_has_mapped(host: Host) -> None:
    host.start(10, "VLLM::EngineCore", maps=(f"{host.site()}/vllm/_C.abi3.so",))
    host.start(11, "VLLM::Worker_TP1", maps=(f"{host.site()}/torch/lib/libtorch.so",))
    host.start(12, "VLLM::EngineCore", maps=(f"{host.site(host.other)}/vllm/_C.abi3.so",))
    assert host.found() == [10, 11]


def test_a_process_of_any_name_with_the_library_mapped_is_found(host: Host) -> None:
    library = f"{host.site()}/vllm/_C.abi3.so"
    host.start(10, "ray::RayWorkerWrapper.execute_method", maps=(library,))
    host.start(11, host.python, "serve.py", maps=("/lib/libc.so.6", f"{library} (deleted)"))
    assert host.found() == [10, 11]


def test_a_titled_engine_without_a_trace_of_its_own_belongs_where_its_parent_does(
    host: Host,
) -> None:
    host.start(10, host.python, f"{host.prefix}/bin/vllm", "serve")
    host.start(11, "VLLM::EngineCore", parent=10, maps=("/cache/torch/lib/libtorch.so",))
    host.start(12, "VLLM::EngineCore", maps=("/cache/torch/lib/libtorch.so",))
    assert host.found() == [10, 11]


def test_a_shell_beside_the_targets_python_makes_no_child_the_targets(host: Host) -> None:
    host.start(10, f"{host.prefix}/bin/bash", "-c", "vllm", exe=f"{host.prefix}/bin/bash")
    host.start(11, f"{host.other}/bin/python", "-m", "vllm.entrypoints.cli.main", parent=10)
    host.start(12, "VLLM::EngineCore", parent=10, maps=("/cache/torch/lib/libtorch.so",))
    assert host.found() == []


def test_a_library_linked_from_a_shared_cache_needs_the_interpreter_too(host: Host) -> None:
    cached = host.proc.parent / "cache" / "_C.abi3.so"
    cached.parent.mkdir()
    cached.write_bytes(b"")
    for prefix in (host.prefix, host.other):
        (host.site(prefix) / "vllm" / "_C.abi3.so").symlink_to(cached)
    host.start(10, host.python, "serve.py", maps=(str(cached),))
    host.start(11, f"{host.other}/bin/python", "serve.py", maps=(str(cached),))
    assert host.found() == [10]


def test_other_environments_and_other_programs_are_left_out(host: Host) -> None:
    host.start(10, f"{host.other}/bin/python", f"{host.other}/bin/vllm", "serve")
    host.start(11, host.python, "train.py", maps=(f"{host.site()}/torch/lib/libtorch.so",))
    host.start(12, host.python, "-m", "vllm_ascend.tool")
    host.start(13, f"{host.prefix}/bin/tail", "-f", "/var/log/vllm", exe="/usr/bin/tail")
    host.start(14, "bash", "-c", f"{host.prefix}/bin/vllm serve", exe="/bin/bash")
    host.start(15, host.python, "-m", "pip", "install", "vllm")
    host.start(16, host.python, "train.py", "--model", "vllm")
    host.start(17, host.python, "tool.py", maps=(f"{host.site()}/vllm_flash/_C.so",))
    assert host.found() == []


def test_a_venv_on_the_same_base_is_not_the_base(host: Host, tmp_path: Path) -> None:
    base = tmp_path / "usr"
    install(host.site(base), "vllm", "0.11.1", VLLM)
    (base / "bin").mkdir()
    exe = str(base / "bin" / "python3.11")
    theirs = f"{host.site(host.other)}/vllm/_C.abi3.so"
    host.start(10, "VLLM::EngineCore", exe=exe, maps=(theirs,))
    host.start(11, f"{host.other}/bin/python", "-m", "vllm", exe=exe, maps=(theirs,))
    host.start(12, exe, "-m", "vllm.entrypoints.openai.api_server", exe=exe)
    found = running(host.environment(prefix=base), proc=host.proc, own=KVPATCH)
    assert [each.pid for each in found] == [12]


def test_kvpatch_its_ancestors_and_its_children_are_left_out(host: Host) -> None:
    library = (f"{host.site()}/vllm/_C.abi3.so",)
    host.start(300, host.python, "deploy.py", maps=library)
    (host.proc / str(SHELL) / "stat").write_text(f"{SHELL} (bash) S 300 1 1 0\n")
    host.start(20, host.python, "-m", "kvpatch", "status", maps=library)
    host.start(21, host.python, f"{host.prefix}/bin/kvpatch", "verify", maps=library)
    probe = "/x/kvpatch/target_start.py"
    host.start(22, host.python, "-B", probe, "locate", "@@", maps=library)
    assert host.found() == []


def test_the_same_path_in_a_container_is_another_file(host: Host, tmp_path: Path) -> None:
    library = (f"{host.site()}/vllm/_C.abi3.so",)
    container, twin = tmp_path / "root", tmp_path / "twin"
    install(container / str(host.site()).lstrip("/"), "vllm", "0.11.1", VLLM)
    twin.symlink_to("/")
    host.start(10, "VLLM::EngineCore", maps=library, root=str(container))
    host.start(11, "VLLM::EngineCore", maps=library, root=str(tmp_path / "empty"))
    host.start(12, "VLLM::EngineCore", maps=library, root=str(twin))
    assert host.found() == [12]


def test_half_readable_and_vanished_processes_are_no_error(host: Host) -> None:
    host.start(10, host.python, f"{host.prefix}/bin/vllm", "serve")
    for name in ("maps", "environ", "exe", "cwd", "stat"):
        (host.proc / "10" / name).unlink()
    (host.proc / "11").mkdir()
    host.start(12, "")
    assert host.found() == [10]


def test_a_symlinked_site_folder_is_compared_by_where_it_leads(host: Host, tmp_path: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(host.prefix)
    host.start(10, "VLLM::EngineCore", maps=(f"{host.site()}/vllm/_C.abi3.so",))
    host.start(11, host.python, f"{host.prefix}/bin/vllm", "serve")
    found = running(host.environment(prefix=alias), proc=host.proc, own=KVPATCH)
    assert [each.pid for each in found] == [10, 11]


def test_of_an_engine_and_its_workers_the_server_counts(host: Host) -> None:
    host.start(20, host.python, "-m", "vllm.entrypoints.openai.api_server")
    host.start(21, "VLLM::EngineCore", parent=20)
    host.start(22, "VLLM::Worker_TP1", parent=21)
    assert [server_behind(pid, host.proc) for pid in (20, 21, 22)] == [20, 20, 20]
    # Whoever reads that one next says that it is not there.
    assert server_behind(99, host.proc) == 99


def test_an_engine_whose_server_is_gone_is_told(host: Host) -> None:
    host.start(21, "VLLM::EngineCore", parent=1)
    with pytest.raises(KvpatchError, match="process 21 wrote a title") as caught:
        server_behind(21, host.proc)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_without_proc_or_vllm_nothing_runs(host: Host, tmp_path: Path) -> None:
    assert running(host.environment(), proc=tmp_path / "none") == ()
    host.start(10, host.python, f"{host.prefix}/bin/vllm", "serve")
    assert running(Environment(None, {}), proc=host.proc) == ()


@contextmanager
def _started(*command: str, **options: object) -> Iterator[int]:
    child = subprocess.Popen(command, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        assert child.stdout.read(1) == b"r"
        yield child.pid
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_real_processes_are_found_by_title_and_by_command_line(tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    site = next(prefix.glob("lib/python3*/site-packages"))
    install(site, "vllm", "0.11.1", VLLM)
    (site / "vllm" / "_C.abi3.so").write_bytes(b"x" * 4096)
    (prefix / "bin" / "vllm").write_text("import sys, time; print('r', flush=True); time.sleep(99)")
    mapped = (
        f"import mmap, time; file = open({str(site / 'vllm' / '_C.abi3.so')!r}, 'rb');"
        "held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ);"
        "print('r', flush=True); time.sleep(99)"
    )
    python = str(prefix / "bin" / "python")
    version = (sys.version_info[0], sys.version_info[1], sys.version_info[2])
    environment = Environment(
        Interpreter(Path(python), version, "", None, str(prefix)),
        {"vllm": Installed("vllm", "vllm", "0.11.1", site, None, False, None, ())},
    )
    with (
        _started("VLLM::EngineCore", "-c", mapped, executable=python) as engine,
        _started(python, str(prefix / "bin" / "vllm"), "serve") as server,
        _started(python, "-c", "import time; print('r', flush=True); time.sleep(99)"),
    ):
        found = {each.pid for each in running(environment)}
        assert found == {engine, server}
        assert os.getpid() not in found
    assert running(environment) == ()
