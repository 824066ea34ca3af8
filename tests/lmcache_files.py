"""LMCache's patches planned over real releases, for tests."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvpatch.fold import Memo
from kvpatch.plan import Options, Plan, plan
from kvpatch.series import Series, discover
from kvpatch.tree import FolderTree, Package, Provenance, Source
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from releases import release_file

VLLM = "0.14.0"
"""A vLLM for which the attention home and the embedding lookup are patched, but not the cache."""
NEW_VLLM = "0.32.0"
"""A vLLM with a packed KV cache."""
OLD_VLLM = "0.11.0"
"""A vLLM that needs none of what depends on the pair."""

MEMO = Memo()


@cache
def lmcache_series() -> Series:
    """The patches of LMCache."""
    members = discover().members
    return Series(tuple(item for item in members if item.patch.distribution == "lmcache"))


@cache
def stock_files(release: str) -> Mapping[str, bytes]:
    """Every file of that release that a patch names."""
    version = Package("lmcache", Version(release)).release
    paths = {
        target.path
        for member in lmcache_series().members
        if member.patch.in_range(version)
        for target in member.patch.targets
        if SpecifierSet(target.versions).contains(version, prereleases=True)
    }
    return {path: bytes(release_file("lmcache", release, path)) for path in sorted(paths)}


@cache
def planned_release(release: str, vllm: str = NEW_VLLM) -> Plan:
    """The plan of LMCache's patches over that release, beside that vLLM."""
    return plan(lmcache_series(), tree(release, vllm, stock_files(release)), Options(memo=MEMO))


def tree(
    release: str,
    vllm: str,
    files: Mapping[str, bytes],
    provenance: Provenance = Provenance.PRISTINE,
) -> FolderTree:
    """LMCache of that release beside that vLLM."""
    packages = {
        "lmcache": Package("lmcache", Version(release)),
        "vllm": Package("vllm", Version(vllm)),
    }
    return FolderTree(packages, files, provenance)


class Applied:
    """A release of LMCache as kvpatch wrote it, with what a journal knows of it."""

    def __init__(self, release: str, vllm: str, found: Plan) -> None:
        self._tree = tree(release, vllm, {})
        self._files = {file.path: file for file in found.files}

    def package(self, name: str) -> Package | None:
        """The package, as in the tree that was planned."""
        return self._tree.package(name)

    def owned(self, name: str) -> tuple[str, ...]:
        """The files that are ours."""
        return tuple(self._files) if name == "lmcache" else ()

    def source(self, name: str, path: str) -> Source | None:
        """The file as written, and its original."""
        file = self._files.get(path)
        if name != "lmcache" or file is None or file.after is None:
            return None
        return Source(
            path,
            file.after,
            Provenance.OURS,
            original=file.original,
            basis="pristine",
            written=file.patches,
        )


@cache
def patched_text(release: str, path: str, vllm: str = NEW_VLLM) -> str:
    """A file of that release as the patches leave it."""
    for file in planned_release(release, vllm).changes:
        if file.path == path:
            assert file.after is not None
            return file.after.decode()
    raise AssertionError(f"{path} of LMCache {release} would not change")


def executed(text: str, names: Sequence[str], **given: Any) -> dict[str, Any]:
    """Run some top-level definitions of a module, and nothing else of it, with these globals."""
    module = ast.parse(text)
    kept = [node for node in module.body if getattr(node, "name", None) in names]
    assert len(kept) == len(names), [getattr(node, "name", "") for node in kept]
    space: dict[str, Any] = dict(given)
    future = ast.parse("from __future__ import annotations").body
    code = ast.Module(body=[*future, *kept], type_ignores=[])
    exec(compile(code, "patched", "exec"), space)
    return space


QUIET = SimpleNamespace(**dict.fromkeys(("debug", "info", "warning", "error"), lambda *_, **__: 0))
"""A logger that says nothing."""


def executed_bare(kept: Sequence[ast.stmt], space: dict[str, Any]) -> dict[str, Any]:
    """Run these definitions with those globals, without decorators; ``Base`` is every base."""
    for owner in kept:
        for node in ast.walk(owner):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                node.decorator_list = []
        if isinstance(owner, ast.ClassDef) and owner.bases:
            owner.bases = [ast.Name("Base", ast.Load())]
    future = ast.parse("from __future__ import annotations").body
    tree = ast.fix_missing_locations(ast.Module([*future, *kept], []))
    exec(compile(tree, "patched", "exec"), space)
    return space
