"""Plans of a single worker file, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kvpatch.outcome import Outcome
from kvpatch.plan import Options, Plan, plan
from kvpatch.series import Series, discover
from kvpatch.tree import Package, Provenance, Source
from packaging.version import Version

LMCACHE = "0.5.6"
WORKER = "vllm/v1/worker/gpu_worker.py"


@dataclass(frozen=True)
class OneFile:
    """A package of one release with one file, whose provenance and history a test chooses."""

    content: bytes | None
    version: str
    provenance: Provenance = Provenance.PRISTINE
    original: bytes | None = None
    written: Mapping[str, str] = field(default_factory=dict)
    why: str = "not what was released"
    path: str = WORKER
    owned_paths: tuple[str, ...] = ()
    owner: str = "vllm"
    beside: Mapping[str, str] = field(default_factory=dict)

    def package(self, name: str) -> Package | None:
        given = self.version if name == self.owner else self.beside.get(name)
        version = given or (LMCACHE if name == "lmcache" else None)
        return Package(name, Version(version)) if version else None

    def source(self, name: str, path: str) -> Source | None:
        if name != self.owner or path != self.path or self.content is None:
            return None
        basis = "pristine" if self.original is not None else None
        return Source(
            path,
            self.content,
            self.provenance,
            original=self.original,
            basis=basis,
            written=self.written,
            why=self.why,
        )

    def owned(self, name: str) -> tuple[str, ...]:
        return self.owned_paths if name == self.owner else ()


@lru_cache(maxsize=1)
def series() -> Series:
    """The patches of vLLM's worker, discovered once."""
    members = discover().members
    return Series(tuple(item for item in members if item.patch.distribution == "vllm"))


def chosen(ids: Sequence[str]) -> Series:
    """Those patches alone, in series order, whatever they need."""
    return Series(tuple(member for member in series().members if member.id in ids))


def planned(
    content: bytes,
    version: str,
    provenance: Provenance = Provenance.PRISTINE,
    ids: Sequence[str] = (),
    options: Options | None = None,
) -> Plan:
    """The plan of the whole series, or of some of its patches, over one worker file."""
    patches = chosen(ids) if ids else series()
    return plan(patches, OneFile(content, version, provenance), options)


def replanned(first: Plan, version: str, thorough: bool = False) -> Plan:
    """The plan over what the first plan would have written, known to the journal as ours."""
    (file,) = first.files
    assert file.after is not None
    tree = OneFile(file.after, version, Provenance.OURS, file.original, file.patches)
    return plan(series(), tree, Options(thorough=thorough))


def outcomes(found: Plan) -> dict[str, Outcome]:
    """Outcome by patch id."""
    return {patch.id: patch.outcome for patch in found.patches}


def reasons(found: Plan) -> str:
    """All that the plan says, in one text."""
    return " | ".join(patch.reason for patch in found.patches)


def written(found: Plan) -> bytes:
    """The bytes that applying the plan would write to its one file."""
    (file,) = found.changes
    assert file.after is not None
    return file.after
