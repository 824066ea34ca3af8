"""Rules about keys of chunks: whether one means the same in every process, and after restarts."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from . import rules
from .hash_names import BUILTIN, BYTES_SINCE, is_taken, names
from .key_history import nearest
from .lint_context import Context
from .rules import Finding, Fix, Level

EXECUTOR = "distributed-executor-backend"
_NAME = "pre_caching_hash_algorithm"
_BYTES = Version("0.4.6")
"""The first LMCache that takes a hash of bytes."""
_HASH_NONE = (Version("0.3.4"), Version("0.4"))
_HASH_RIGHT = Version("0.4.1")
"""The first release after those."""
_APART = ("mp", "ray")
"""Executors that give the worker a process of its own on one rank too."""

NOT_LOOKED = " (give --env-file or --pid to have it checked)"
"""Ends the message about a variable that nobody looked for."""


def hashing(context: Context) -> Iterator[Finding]:
    """Whether a key means the same in every process and after every restart."""
    algorithm = context.value(_NAME)
    if not isinstance(algorithm, str):
        return
    taken = is_taken(algorithm, context.lmcache, context.vllm)
    fix = Fix("set", _NAME, value=BUILTIN)
    if taken is False:
        yield _not_taken(context, algorithm)
    elif algorithm != BUILTIN and context.lmcache < _BYTES:
        told = f"{algorithm} works from LMCache {_BYTES} on"
        if context.vllm is None and not algorithm.startswith("sha256_cbor"):
            message = f"{told} where vLLM is {BYTES_SINCE} or newer; here take {BUILTIN}"
            yield context.found(rules.HASH, message, _NAME, lower=Level.WARNING)
        elif context.vllm is None or context.vllm >= BYTES_SINCE:
            yield context.found(rules.HASH, f"{told}; here take {BUILTIN}", _NAME, fix=fix)
    if taken is False or algorithm == BUILTIN:
        yield from _seed(context)


def _not_taken(context: Context, algorithm: str) -> Finding:
    """A name for which LMCache takes Python's own hash."""
    told = f"LMCache {context.schema.version}"
    known = names(context.lmcache)
    if algorithm in known:
        told += f" can't take {algorithm} from vLLM {context.vllm}"
        right = f"write {BUILTIN}"
    else:
        told += f" knows no hash algorithm {context.shown(_NAME, algorithm)}"
        close = nearest(algorithm, [*known, BUILTIN])
        right = f"the nearest is {close}" if close else f"it knows {', '.join((BUILTIN, *known))}"
    return context.found(rules.HASH, f"{told} and takes Python's own hash; {right}", _NAME)


def hashes_none(lmcache: Version, python: tuple[int, ...] | None) -> bool:
    """Whether keys of a release differ in every process on that Python, or on one not known."""
    first, fixed = _HASH_NONE
    return first <= lmcache < fixed and (python is None or python < (3, 12))


def _seed(context: Context) -> Iterator[Finding]:
    # LMCache knows what is on local_disk in its own process alone.
    kept = ("gds_path", "remote_url", "weka_path", "maru_path")
    shared = ("enable_p2p", "enable_pd", "enable_nixl")
    where = next((name for name in (*kept, *shared) if context.value(name)), None)
    apart = context.launch.last(EXECUTOR) if context.launch else None
    if where:
        why = f"{where} outlives or leaves the process"
    elif context.blends:
        # A scheduler sends tokens then, and the process of each rank makes its own keys of them.
        return
    elif context.ranks > 1:
        why = f"{context.ranks} ranks share keys"
    elif apart in _APART:
        why = f"--{EXECUTOR} {apart} has the worker in a process of its own"
    else:
        return
    key = where or _NAME
    if hashes_none(context.lmcache, context.python):
        message = (
            f"{why}, and LMCache {context.schema.version} hashes None: with Python older than 3.12 "
            "keys differ in every process whatever PYTHONHASHSEED says"
        )
        lower = Level.WARNING if context.python is None else None
        todo = f"take Python 3.12 or newer, or LMCache {_HASH_RIGHT} or newer"
        yield context.found(rules.SEED, message, key, lower=lower, todo=todo)
        return
    message = f"{why}: set the same PYTHONHASHSEED, for example 0, in every vLLM process"
    seed = (context.environ or {}).get("PYTHONHASHSEED")
    if not context.whole_environ and seed is None:
        yield context.found(rules.SEED, f"{message}{NOT_LOOKED}", key, lower=Level.NOTE)
    elif seed is None or not seed.isdigit():
        state = "is not set" if seed is None else f"is {context.shown('', seed)}"
        yield context.found(rules.SEED, f"PYTHONHASHSEED {state}: {message}", key)
