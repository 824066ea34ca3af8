"""What a profile is made for: a pair that was named, or the installed one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from packaging.version import Version

from . import bundle
from .cache import default_cache
from .curing import curable, pair_on
from .fsops import Disk
from .host import Where, open_host
from .outcome import KvpatchError
from .pair_checks import MODEL_TABLES, models_of, models_taken
from .release import read_from_index, schema_from_index
from .schema import Schema
from .schema_source import read_schema
from .templates import Pair, Template


@dataclass(frozen=True, eq=False, repr=False)
class MadeFor:
    """What the profile is for.

    ``programs`` is the folder of the environment's commands; None where there is none. ``taken``
    reads the model classes that its LMCache blends.
    """

    pair: Pair
    schema: Schema
    programs: Path | None
    taken: Callable[[], Sequence[str]] = tuple


def made_for(
    template: Template,
    where: Where,
    disk: Disk,
    *,
    lmcache: Version | None = None,
    vllm: Version | None = None,
) -> MadeFor:
    """Find what a profile is for.

    Args:
        template: of the profile.
        where: the environment.
        disk: for its journals.
        lmcache: a release on the index, beside the vLLM of the environment where one is named; None
            for the installed one.
        vllm: a release to take instead of the installed one.

    Raises:
        KvpatchError: what locating an environment, and reading the index raise.
    """
    free = template.kind == "vllm"
    programs = bundle.programs_of(where.python)
    if free:
        lmcache = None
        if vllm is not None:
            return MadeFor(Pair(None, vllm), Schema("", {}), programs)
    named = where.python is not None or where.site is not None
    if lmcache is not None and (vllm is not None or not named):
        return _by_name(lmcache, curable(lmcache, vllm), programs)
    needs = "vllm" if free else "lmcache" if lmcache is None else None
    try:
        host = open_host(where, disk, needs=needs)
    except KvpatchError as error:
        error.hint += "; or name a pair: --vllm 0.32.0 --lmcache 0.5.6"
        raise
    if programs is None and vllm is None and (used := host.environment.interpreter) is not None:
        programs = bundle.programs_of(used.executable)
    found, beside = (host.tree.package(name) for name in ("lmcache", "vllm"))
    there = found.version if found else None
    release = beside.version if beside else None
    if free:
        return MadeFor(Pair(None, release), Schema("", {}), programs)
    absent = tuple(
        f"{name} {asked}"
        for name, asked, installed in (("LMCache", lmcache, there), ("vLLM", vllm, release))
        if asked is not None and asked != installed
    )
    pair = replace(curable(lmcache or there, vllm or release), absent=absent)
    if lmcache is not None and lmcache != there:
        return _by_name(lmcache, pair, programs)
    if there is None:
        raise RuntimeError("LMCache was located, and then was not")
    read = partial(host.tree.content, "lmcache")
    schema, taken = read_schema(read, str(there)), partial(models_of, host.tree)
    return MadeFor(pair if absent else pair_on(host, there, release), schema, programs, taken)


def _by_name(lmcache: Version, pair: Pair, programs: Path | None) -> MadeFor:
    """For a release of LMCache that is read on the index."""
    schema = schema_from_index(lmcache, default_cache())
    return MadeFor(pair, schema, programs, partial(_on_index, lmcache))


def _on_index(lmcache: Version) -> Sequence[str]:
    tables = map(read_from_index(lmcache, default_cache(), MODEL_TABLES), MODEL_TABLES)
    return models_taken(next(filter(None, tables), b""))
