"""A source tree as a plan sees it: for each file its bytes and where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from packaging.version import Version

PACKAGES = ("vllm", "lmcache")
"""The packages whose files patches may touch."""
TITLES: Mapping[str, str] = {"vllm": "vLLM", "lmcache": "LMCache"}
"""What the two are called in sentences."""


def other_than(package: str) -> str:
    """The package that it runs beside."""
    return PACKAGES[1 - PACKAGES.index(package)]


FORK = "kvpatch"
"""What the local version of a wheel that ``kvpatch fork`` wrote has in it, before its number."""


class Provenance(str, Enum):
    """Where a file's bytes come from."""

    PRISTINE = "pristine"
    OURS = "ours"
    OTHER = "other"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Source:
    """One file of a distribution.

    ``original`` are the bytes that revert would put back, where the journal keeps them for this
    file; ``written`` says by which patches (id to digest) kvpatch wrote the bytes it wrote;
    ``why`` says what is known of bytes that are neither pristine nor ours.
    """

    path: str
    content: bytes
    provenance: Provenance
    original: bytes | None = None
    basis: str | None = None
    written: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Package:
    """An installed distribution, or one in a folder: the name it goes by and its release."""

    distribution: str
    version: Version

    @property
    def release(self) -> Version:
        """The release whose code this is: a pre-release stands for the one it leads to."""
        return Version(self.version.base_version) if self.version.is_prerelease else self.version

    @property
    def fork(self) -> str | None:
        """Its name and version where ``kvpatch fork`` wrote it."""
        local = (self.version.local or "").split(".")
        return f"{self.distribution} {self.version}" if FORK in local else None


class Tree(Protocol):
    """What a plan needs to know of a source tree."""

    def package(self, name: str) -> Package | None:
        """The distribution that carries the package ``vllm`` or ``lmcache``; None if none."""

    def source(self, name: str, path: str) -> Source | None:
        """A file of that package by its path below the site folder; None where it is not there.

        Raises:
            Refusal: where the path is not a file that can be read.
        """

    def owned(self, name: str) -> tuple[str, ...]:
        """The paths of that package's files that kvpatch wrote, by the journal."""


class ReadableTree(Tree, Protocol):
    """A tree of which any file can be read, and of which it is known what else there is."""

    def content(self, name: str, path: str) -> bytes | None:
        """The bytes of a file of that package, wherever they come from; None where it has none."""

    def opaque(self, name: str, module: str) -> bool:
        """Whether a module of that package is an extension, or a folder without ``__init__``."""


@dataclass(frozen=True)
class OverlaidTree:
    """A tree with some of its files replaced: how it will be after an apply."""

    under: ReadableTree
    files: Mapping[str, bytes]

    def package(self, name: str) -> Package | None:
        """The distribution of that package."""
        return self.under.package(name)

    def source(self, name: str, path: str) -> Source | None:
        """The file of that path, the replaced one where there is one."""
        if path in self.files:
            return Source(path, self.files[path], Provenance.OTHER)
        return self.under.source(name, path)

    def content(self, name: str, path: str) -> bytes | None:
        """The bytes of that path, the replaced ones where there are some."""
        return self.files[path] if path in self.files else self.under.content(name, path)

    def owned(self, name: str) -> tuple[str, ...]:
        """The paths that the journal under it knows."""
        return self.under.owned(name)

    def opaque(self, name: str, module: str) -> bool:
        """Whether the tree under it has that module other than as source."""
        return self.under.opaque(name, module)


@dataclass(frozen=True)
class FolderTree:
    """Files held in memory, all pristine unless said otherwise: a wheel's, or an example's."""

    packages: Mapping[str, Package]
    files: Mapping[str, bytes]
    provenance: Provenance = Provenance.PRISTINE

    def package(self, name: str) -> Package | None:
        """The distribution of that package."""
        return self.packages.get(name)

    def source(self, name: str, path: str) -> Source | None:  # noqa: ARG002
        """The file of that path."""
        content = self.files.get(path)
        return None if content is None else Source(path, content, self.provenance)

    def content(self, name: str, path: str) -> bytes | None:  # noqa: ARG002
        """The bytes of that path."""
        return self.files.get(path)

    def owned(self, name: str) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing: no journal stands behind such a tree."""
        return ()

    def opaque(self, name: str, module: str) -> bool:  # noqa: ARG002
        """Whether the files show an extension of that module, or a folder of that name."""
        return is_opaque(self.files, module)


def is_opaque(paths: Iterable[str], module: str) -> bool:
    """Whether files of such paths are an extension of that module, or lie in a folder of it."""
    base = module.replace(".", "/")
    return any(
        path.startswith(f"{base}/") or (path.startswith(f"{base}.") and path.endswith(".so"))
        for path in paths
    )
