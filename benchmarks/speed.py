"""Times kvpatch against floors measured in the same run, and prints each ratio with its limit.

A floor is the least that the work can cost: starting Python and importing the libraries, starting
the target interpreter once, parsing with libcst. Files are those of real releases. fsync is left
out of both sides where a limit says so.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import libcst
from kvpatch import series
from kvpatch.catalogue import load
from kvpatch.digest import sha256 as digest
from kvpatch.fold import Memo
from kvpatch.fork import read_original
from kvpatch.plan import Options, plan
from kvpatch.schema import FILES
from kvpatch.tree import FolderTree, Package
from kvpatch.wheel import Wheel
from kvpatch.wheel_copy import write
from packaging.version import Version

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from fake_site import WORKER, install
from releases import ReleaseFilesMissingError, lmcache_releases, release_file, vllm_releases
from wheels import build_wheel, record_row

RUNS = 15
WITHOUT_FSYNC = "import os; os.fsync = lambda descriptor: None; "
KVPATCH = "import sys; sys.argv[1:] = {arguments!r}; from kvpatch.__main__ import main; main()"


@dataclass(frozen=True)
class Result:
    """One measured ratio: seconds, the floor in seconds, and the most it may be."""

    name: str
    seconds: float
    floor: float
    limit: float

    @property
    def line(self) -> str:
        """For the table."""
        ratio = self.seconds / self.floor
        verdict = "ok" if ratio <= self.limit else "TOO SLOW"
        times = f"{self.seconds * 1000:7.0f} ms  floor {self.floor * 1000:7.0f} ms"
        return f"{self.name:34}  {times}  ratio {ratio:5.2f}  limit {self.limit:.2f}  {verdict}"


@dataclass(frozen=True)
class Bench:
    """A virtual environment whose site folder holds one real worker file."""

    folder: Path

    @property
    def python(self) -> Path:
        """The target interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        """Its site folder."""
        return next(self.folder.glob("lib/python3.*/site-packages"))

    def hold(self, version: str, worker: bytes) -> None:
        """Install that worker as that release, without a journal."""
        shutil.rmtree(self.folder / ".kvpatch", ignore_errors=True)
        files = {"vllm/__init__.py": "", WORKER: worker.decode()}
        install(self.site, "vllm", version, files)


def main() -> int:
    """Measure everything; exit 1 where a limit is missed."""
    newest = vllm_releases()[-1]
    worker = release_file("vllm", newest, WORKER)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        bench = Bench(Path(folder))
        results = [*statuses(bench, newest, worker), applying(bench, newest, worker), *planning()]
        results += linting(Path(folder))
        results += forking(bench, newest, worker)
    print("\n".join(result.line for result in results))
    return int(any(result.seconds > result.limit * result.floor for result in results))


def statuses(bench: Bench, version: str, worker: bytes) -> list[Result]:
    """``status`` of a pristine host, of a patched one, and of one that must be planned."""
    where = ["--python", str(bench.python), "--json"]
    status = code(KVPATCH.format(arguments=["status", *where]))
    click = code("import click")
    start = [str(bench.python), "-I", "-c", ""]
    parse = bench.folder / "parse.py"
    bench.hold(version, worker)
    # "at most 3 times the import of click, plus one start of the target"
    pristine = measure({"status": status, "click": click, "start": start})
    subprocess.run(code(KVPATCH.format(arguments=["apply", *where])), check=True, **QUIET)
    ours = measure({"status": status, "click": click, "start": start})
    bench.hold("99.0.0", worker + b"\n# a release that no catalogue knows\n")
    parse.write_text(
        "import libcst, click, pathlib, sys\n"
        "libcst.parse_module(pathlib.Path(sys.argv[1]).read_bytes())\n"
    )
    floor = [sys.executable, str(parse), str(bench.site / WORKER)]
    planned = measure({"status": status, "floor": floor})
    return [
        Result(name, times["status"], 3 * times["click"] + times["start"], 1.0)
        for name, times in (("status, pristine", pristine), ("status, ours", ours))
    ] + [Result("status, to be planned", planned["status"], planned["floor"], 1.5)]


def applying(bench: Bench, version: str, worker: bytes) -> Result:
    """``apply`` of the newest release, fsync apart."""
    where = ["--python", str(bench.python), "--json"]
    apply = code(WITHOUT_FSYNC + KVPATCH.format(arguments=["apply", *where]))
    parse = bench.folder / "rewrite.py"
    parse.write_text(
        "import libcst, click, pathlib, sys\n"
        "libcst.parse_module(pathlib.Path(sys.argv[1]).read_bytes()).bytes\n"
    )
    floor = [sys.executable, str(parse), str(bench.site / WORKER)]
    start = [str(bench.python), "-I", "-c", ""]
    times = measure(
        {"apply": apply, "floor": floor, "start": start}, lambda: bench.hold(version, worker)
    )
    return Result("apply", times["apply"], times["floor"] + times["start"], 1.3)


def planning() -> list[Result]:
    """Planning every release from the local cache, against parsing the distinct files.

    With the catalogue, as a host plans, and without it, as when the catalogue is made. The
    collector is off, as in the command.
    """
    chosen = series.discover()
    files = {version: release_file("vllm", version, WORKER) for version in vllm_releases()}
    distinct = {digest(content): content for content in files.values()}

    def plan_all(options: Options) -> None:
        for version, content in files.items():
            tree = FolderTree({"vllm": Package("vllm", Version(version))}, {WORKER: content})
            plan(chosen, tree, options)

    def parse_all() -> None:
        for content in distinct.values():
            libcst.parse_module(content)

    times: dict[str, list[float]] = {"floor": [], "known": [], "anew": []}
    gc.disable()
    for _ in range(3):
        times["floor"].append(timed(parse_all))
        times["known"].append(timed(lambda: plan_all(Options(known=load()))))
        times["anew"].append(timed(lambda: plan_all(Options(memo=Memo()))))
    gc.enable()
    floor = min(times["floor"])
    return [
        Result(f"plan {len(files)} releases", min(times["known"]), floor, 2.0),
        Result(f"plan {len(files)} releases, unknown ones", min(times["anew"]), floor, 2.0),
    ]


def linting(folder: Path) -> list[Result]:
    """``lint`` of one file, in every way of saying for which LMCache; an earlier run kept its keys.

    LMCache's real configuration code lies beside kvpatch, in a virtual environment, and in a site
    folder. Nothing is started for it, so the floor is the import alone each time.
    """
    release = str([one for one in lmcache_releases() if not one.pre][-1])
    named = ["--lmcache", release]
    made = subprocess.run(
        code(KVPATCH.format(arguments=["profile", "gds-blend", *named, "--vllm", "0.32.0"])),
        check=True,
        capture_output=True,
    )
    file = folder / "lmcache.yaml"
    file.write_bytes(made.stdout.replace(b"/dev/null/set", b"/mnt/set"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    site = next((folder / "env").glob("lib/python3.*/site-packages"))
    # What is deduced of an ordinary environment holds for one that no variable changes.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    install(site, "lmcache", release, {"lmcache/__init__.py": "", **_configuration(release)})
    install(site, "vllm", "0.32.0", {"vllm/__init__.py": ""})
    ways: dict[str, tuple[list[str], Mapping[str, str]]] = {
        f"lint --lmcache {release}": (named, environ),
        "lint, LMCache beside kvpatch": ([], {**environ, "PYTHONPATH": str(site)}),
        "lint --python": (["--python", str(folder / "env" / "bin" / "python")], environ),
        "lint --site": (["--site", str(site)], environ),
    }
    results = []
    for name, (where, variables) in ways.items():
        lint = [sys.executable, "-m", "kvpatch", "lint", str(file), *where]
        times = measure({"lint": lint, "floor": code("import click, yaml")}, environ=variables)
        results.append(Result(name, times["lint"], times["floor"], 2.0))
    return results


def _configuration(release: str) -> dict[str, str]:
    """The files of a release that its keys are read from."""
    found = {}
    for path in FILES:
        with contextlib.suppress(ReleaseFilesMissingError):
            found[path] = bytes(release_file("lmcache", release, path)).decode()
    return found


def forking(bench: Bench, version: str, worker: bytes) -> list[Result]:
    """``fork`` of a wheel of 340 MB against plain copies of that file, fsync apart.

    The members of vLLM's wheel: some large ones, and thousands of small ones.
    """
    folder = bench.folder / "forking"
    folder.mkdir()
    files = {f"vllm/kernels/{number}.cubin": random.randbytes(80_000) for number in range(3000)}
    files |= {f"vllm/_C{number}.so": random.randbytes(50_000_000) for number in range(2)}
    files |= {"vllm/__init__.py": b"", WORKER: worker}
    wheel = build_wheel(folder, version, {}, "vllm", edit=lambda members: members.update(files))
    with Wheel(wheel) as opened:
        original = read_original(opened)
    rows = "".join(f"{record_row(path, content)}\n" for path, content in files.items())
    files[f"{original.info}/RECORD"] = original.record + rows.encode()
    build_wheel(folder, version, {}, "vllm", edit=lambda members: members.update(files))
    files.clear()
    copied, new = folder / "copied.whl", folder / "new.whl"

    def write_new() -> None:
        with Wheel(wheel) as source, new.open("wb") as out:
            write(source, out, {WORKER: worker}, str)

    fork = ["fork", str(wheel), "-o", str(folder / "out"), "--json"]
    command = code(WITHOUT_FSYNC + KVPATCH.format(arguments=fork))
    (folder / WORKER.rpartition("/")[2]).write_bytes(worker)
    parse = [sys.executable, str(bench.folder / "rewrite.py"), str(folder / "gpu_worker.py")]
    work: dict[str, Callable[[], object]] = {
        "copy": lambda: shutil.copyfile(wheel, copied),
        "write": write_new,
        "parse": lambda: subprocess.run(parse, check=True, **QUIET),
        "fork": lambda: subprocess.run(command, check=True, **QUIET),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(7):
        for name, do in work.items():
            times[name].append(timed(do))
        # An overwritten file and one made anew don't cost the same.
        shutil.rmtree(folder / "out")
        copied.unlink()
        new.unlink()
    best = {name: min(values) for name, values in times.items()}
    size = f"{wheel.stat().st_size / 1e6:.0f} MB"
    # "at most 3 times a plain file copy"; the command also plans, which takes libcst
    return [
        Result(f"write a wheel of {size} anew", best["write"], best["copy"], 3.0),
        Result(f"fork, {size}", best["fork"], 3 * best["copy"] + best["parse"], 1.0),
    ]


QUIET: Mapping[str, int] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def code(text: str) -> list[str]:
    """The command that runs a line of Python."""
    return [sys.executable, "-c", text]


def measure(
    commands: Mapping[str, list[str]],
    before: Callable[[], None] = lambda: None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Least seconds of each command, run in turns so that a busy moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for run in range(RUNS + 1):
        for name, command in commands.items():
            before()
            ran = partial(subprocess.run, command, check=True, env=environ, cwd="/", **QUIET)
            seconds = timed(ran)
            if run:
                times[name].append(seconds)
    return {name: min(values) for name, values in times.items()}


def timed(work: Callable[[], object]) -> float:
    """Seconds of wall time."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
