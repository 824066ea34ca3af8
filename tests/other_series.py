"""Series that another kvpatch may have: fewer patches, or one more that only the tests know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager

import libcst as cst
import pytest
from kvpatch import host, outlook, verbs
from kvpatch.patch import Judgement, Patch, Target
from kvpatch.series import Member, Series, discover

CACHE = "lmcache/v1/cache.py"
PARALLEL = "vllm/distributed/parallel_state.py"


def vllm_members() -> tuple[Member, ...]:
    """The patches of vLLM, which the small packages here are written for."""
    return tuple(item for item in discover().members if item.patch.distribution == "vllm")


@contextmanager
def series(*members: Member) -> Iterator[None]:
    """The series that this kvpatch has."""
    with pytest.MonkeyPatch.context() as patcher:
        for module in (host, outlook, verbs):
            patcher.setattr(module, "discover", lambda: Series(members))
        yield


def rank_patch(path: str = CACHE) -> Member:
    """A patch of another file, as another series may have one."""
    wanted = "RANK = 1"

    def transform(module: cst.Module) -> cst.Module:
        return module.with_changes(body=[cst.parse_statement(f"# kvpatch KV900\n{wanted}")])

    def done(module: ast.Module, version: object) -> Judgement:
        return Judgement(ast.unparse(module) == wanted, "the rank is what it has to be")

    def faithful(before: ast.Module, after: ast.Module) -> Judgement:
        return Judgement(holds=True, reason="")

    patch = Patch(
        id="KV900",
        distribution=path.partition("/")[0],
        targets=(Target(path, ">=0.3", transform),),
        versions=">=0.3",
        why="For the tests.",
        how="Sets the rank.",
        upstream="none",
        retire_when="never",
        post_condition=done,
        faithful=faithful,
    )
    return Member(patch, "Set the rank", (), "digest of the rank")
