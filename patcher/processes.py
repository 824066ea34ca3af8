"""The vLLM processes that run on a target environment, as far as /proc shows them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .locate import Environment
from .outcome import ExitCode, KvpatchError

_MOST_SHOWN = 160
_VALUE_OPTIONS = ("-X", "-W", "--check-hash-based-pycs")
_TITLE = "VLLM::"


@dataclass(frozen=True)
class Running:
    """A process of the target, with its command line or title, shortened."""

    pid: int
    command: str


@dataclass(frozen=True)
class _Places:
    """Where the target's vLLM lives: resolved, because /proc shows resolved paths."""

    package: Path
    site: Path
    binaries: frozenset[Path]
    libraries: tuple[Path, ...]


@dataclass(frozen=True)
class _Process:
    pid: int
    folder: Path
    args: tuple[str, ...]

    @property
    def titled(self) -> bool:
        return self.args[0].startswith(_TITLE)

    def maps(self) -> bytes:
        return _read(f"{self.folder}/maps")

    def environ(self) -> dict[str, str]:
        entries = os.fsdecode(_read(f"{self.folder}/environ")).split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def running(
    environment: Environment, *, proc: Path = Path("/proc"), own: int | None = None
) -> tuple[Running, ...]:
    """The vLLM processes of this environment, by pid; kvpatch and its ancestors left out.

    Best effort: processes of other users may not be told, and without /proc there are none.

    Args:
        environment: the target.
        proc: the folder to read instead of /proc.
        own: the pid to leave out with its ancestors; that of this process where None.
    """
    places = _places(environment)
    if places is None:
        return ()
    ours = set(_line_of(proc, os.getpid() if own is None else own))
    found = []
    for process in _processes(proc):
        if process.pid in ours or _is_kvpatch(process.args):
            continue
        if _is_vllm_of(places, process, proc) and _sees_same_files(process, places.package):
            command = " ".join(process.args).strip()
            found.append(Running(process.pid, command[:_MOST_SHOWN]))
    return tuple(found)


def server_behind(pid: int, proc: Path = Path("/proc")) -> int:
    """The process whose variables and command count for one: itself, or what started it.

    vLLM's engines and workers write a title over both. Their server hands its variables on.

    Raises:
        KvpatchError: ``titled``, exit 4: the server is gone.
    """
    first, *ancestors = [_process(proc, one) for one in _line_of(proc, pid)] or [None]
    # Whoever reads one that is gone says so.
    if first is None or not first.titled:
        return pid
    for process in ancestors:
        if process is None or not process.titled:
            if process is not None and "python" in Path(process.args[0]).name:
                return process.pid
            break
    raise KvpatchError(
        "titled",
        f"process {pid} wrote a title over its variables, and the server that started it is gone",
        "name the pid of a process that `vllm serve` started, or give --env-file",
        ExitCode.ENVIRONMENT,
    )


def _places(environment: Environment) -> _Places | None:
    vllm = environment.packages.get("vllm")
    if vllm is None:
        return None
    roots = [Path(environment.interpreter.prefix)] if environment.interpreter else []
    if re.search(r"/lib[^/]*/python3[^/]*/(site|dist)-packages$", str(vllm.site)):
        roots.append(vllm.site.parents[2])
    package = (vllm.site / "vllm").resolve()
    linked = [path for path in sorted((vllm.site / "vllm").glob("*.so")) if path.is_symlink()]
    return _Places(
        package=package,
        site=vllm.site.resolve(),
        binaries=frozenset((root / "bin").resolve() for root in roots),
        libraries=tuple(path.resolve() for path in linked),
    )


def _processes(proc: Path) -> Iterator[_Process]:
    try:
        names = [entry.name for entry in os.scandir(proc) if entry.name.isdigit()]
    except OSError:
        return
    for pid in sorted(map(int, names)):
        process = _process(proc, pid)
        if process is not None:
            yield process


def _process(proc: Path, pid: int) -> _Process | None:
    line = os.fsdecode(_read(f"{proc}/{pid}/cmdline")).rstrip("\0 ")
    return _Process(pid, proc / str(pid), tuple(line.split("\0"))) if line else None


def _is_vllm_of(places: _Places, process: _Process, proc: Path) -> bool:
    maps = process.maps()
    if _maps_below(maps, places.package):
        return True
    # A library linked into several environments says vLLM, but not whose.
    linked = any(os.fsencode(library) in maps for library in places.libraries)
    if not (linked or _mentions_vllm(places, process)):
        return False
    return any(_belongs(places, each) for each in _with_ancestors(process, proc))


def _maps_below(maps: bytes, folder: Path) -> bool:
    return b" " + os.fsencode(folder) + b"/" in maps


def _mentions_vllm(places: _Places, process: _Process) -> bool:
    if process.titled:
        return True
    if not _is_python(process):
        return False
    kind, value = _started(process.args)
    if kind == "-m":
        return value == "vllm" or value.startswith("vllm.")
    if kind == "-c":
        return re.search(r"\bvllm\b", value) is not None
    script = Path(value)
    return script.name == "vllm" or places.package in script.parents


def _is_python(process: _Process) -> bool:
    names = (Path(process.args[0]).name, Path(_link(process.folder / "exe") or "").name)
    return any(name.startswith(("python", "pypy")) for name in names)


def _started(args: tuple[str, ...]) -> tuple[str, str]:
    """What a Python command line runs: ``-m`` and a module, ``-c`` and code, or a script."""
    rest = iter(args[1:])
    for arg in rest:
        option = re.fullmatch(r"-[a-zA-Z]*?([mc])(.*)", arg, re.DOTALL)
        if arg in _VALUE_OPTIONS:
            next(rest, "")
        elif option and not arg.startswith(("-X", "-W")):
            return f"-{option[1]}", option[2] or next(rest, "")
        elif not arg.startswith("-"):
            return "", arg
    return "", ""


def _belongs(places: _Places, process: _Process) -> bool:
    """Whether the process runs the target's interpreter, a script beside it, or its libraries."""
    maps = process.maps()
    if _maps_below(maps, places.site):
        return True
    # A title hides the command line, and the executable is one that environments share.
    if process.titled:
        return not maps and _interpreter(process).parent.resolve() in places.binaries
    script = Path(_started(process.args)[1])
    return any(
        path.is_absolute() and path.parent.resolve() in places.binaries
        for path in (_interpreter(process), script)
    )


def _interpreter(process: _Process) -> Path:
    """The path the interpreter was started by: its last link, resolved, would leave its venv."""
    first = process.args[0]
    if "/" in first:
        return Path(_link(process.folder / "cwd") or "/") / first
    import shutil

    found = None if process.titled else shutil.which(first, path=process.environ().get("PATH", ""))
    return Path(found or _link(process.folder / "exe") or "")


def _with_ancestors(process: _Process, proc: Path) -> Iterator[_Process]:
    yield process
    for pid in _line_of(proc, process.pid)[1:]:
        parent = _process(proc, pid)
        # A shell lies beside the system's Python, and starts any environment's vLLM.
        if parent is not None and (parent.titled or _is_python(parent)):
            yield parent


def _line_of(proc: Path, pid: int) -> list[int]:
    """The pid and those of its ancestors, nearest first."""
    line = []
    while pid > 0 and pid not in line:
        line.append(pid)
        fields = _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0
    return line


def _is_kvpatch(args: tuple[str, ...]) -> bool:
    kind, value = _started(args)
    if kind == "-m":
        return value.split(".")[0] == "kvpatch"
    names = {Path(args[0]).name, Path(value).name if not kind else ""}
    return not names.isdisjoint({"kvpatch", "target_start.py"})


def _sees_same_files(process: _Process, package: Path) -> bool:
    """Whether that path means these files to the process, which may be in a container."""
    inside = Path(f"{process.folder}/root{package}/__init__.py")
    try:
        return inside.samefile(package / "__init__.py")
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _link(path: Path) -> str | None:
    try:
        return os.fspath(path.readlink())
    except OSError:
        return None


def _read(path: str) -> bytes:
    # Of hundreds of processes each status reads some, so by the calls that cost least.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        chunks = []
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
        return b"".join(chunks)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
