"""What an earlier run found: its catalogue, the pairs that were green, and which are worse now."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.version import Version

from .outcome import ExitCode, KvpatchError
from .pairs import Pairs, read
from .validate import Matrix

Green = Mapping[tuple[str, str], bool]
"""Pairs that blend with the patches, each with whether it takes launch settings to."""

# What reading a file as something that it is not ends with.
_NONE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def green_before(baseline: Path | None) -> Green:
    """The pairs that an earlier report or catalogue had green.

    A report that doesn't say whether with launch settings is taken to have them all so.

    Raises:
        KvpatchError: ``unreadable`` (exit 4), ``bad-baseline`` (exit 2).
    """
    if baseline is None:
        return {}
    content = _content(baseline, "write one with `kvpatch validate --json > FILE`")
    try:
        data = json.loads(content)
        if "rows" in data:
            return _catalogue(content).green
        pairs = data.get("data", data)["pairs"]
        # What was given with --source says nothing of a release of that version that is there too.
        told = {
            (str(p["vllm"]), str(p["lmcache"])): (p["ok"], bool(p.get("settings", True)))
            for p in sorted(pairs, key=lambda p: "sources" not in p)
        }
        return {pair: settings for pair, (ok, settings) in told.items() if ok}
    except _NONE:
        raise KvpatchError(
            "bad-baseline",
            f"{baseline} is no report of `kvpatch validate --json`, and no catalogue",
            "write one with `kvpatch validate --json > FILE`",
            ExitCode.USAGE,
        ) from None


def regressions(matrix: Matrix, was: Green) -> Iterator[KvpatchError]:
    """The pairs that were green and are :func:`lost`, or :func:`tied` to launch settings now."""
    for message in (*lost(matrix, was), *tied(matrix, was)):
        yield KvpatchError(
            "regression", message, "see its findings in `kvpatch validate --json`", ExitCode.NO
        )


def lost(matrix: Matrix, was: Green) -> Iterator[str]:
    """What is to be said of the pairs that were green, and now are red or can't be read."""
    now = _now(matrix)
    versions = {(row.package, row.version) for row in matrix.rows}
    for vllm, lmcache in sorted(was):
        found = now[vllm, lmcache]
        states = [_state(pair) for pair in found if not pair["ok"]]
        if not found and {("vllm", vllm), ("lmcache", lmcache)} <= versions:
            states = ["not to be read"]
        for state in states:
            yield f"vLLM {vllm} with LMCache {lmcache} was green and is {state}"


def tied(matrix: Matrix, was: Green) -> Iterator[str]:
    """What is to be said of the pairs that were green as they are, and now with settings only."""
    now = _now(matrix)
    for vllm, lmcache in sorted(pair for pair, settings in was.items() if not settings):
        for pair in now[vllm, lmcache]:
            if pair["ok"] and pair["settings"]:
                yield (
                    f"vLLM {vllm} with LMCache {lmcache} was green without launch settings and "
                    f"now needs them: {_state(pair)}"
                )


def _now(matrix: Matrix) -> Mapping[tuple[str, str], list[Mapping[str, Any]]]:
    now = defaultdict[tuple[str, str], list[Mapping[str, Any]]](list)
    for pair in matrix.pairs:
        now[str(pair["vllm"]), str(pair["lmcache"])].append(pair)
    return now


def _state(pair: Mapping[str, Any]) -> str:
    """Its letters, and of which files where they are not the released ones."""
    letters, sources = " ".join(pair["after"]), pair.get("sources", {})
    return f"{letters} ({', '.join(sources.values())})" if sources else letters


def catalogue_before(path: Path | None) -> Pairs | None:
    """The catalogue that is to be written anew, where it is there.

    Raises:
        KvpatchError: ``unreadable`` (exit 4), ``bad-catalogue`` (exit 2).
    """
    if path is None or not path.exists():
        return None
    content = _content(path, "name another file, or see that this user may read it")
    try:
        return _catalogue(content)
    except _NONE:
        raise KvpatchError(
            "bad-catalogue",
            f"{path} is there and is no catalogue of this kvpatch",
            "name another file, or remove that one",
            ExitCode.USAGE,
        ) from None


def _catalogue(content: bytes) -> Pairs:
    """A catalogue, with all of it looked at: what is odd in it shows now and not later.

    Raises:
        one of ``_NONE``: it is none.
    """
    found = read(content.decode("utf-8"))
    ran = [version for one in found.ran for version in (one.vllm, one.lmcache)]
    named = [*found.vllm.items(), *found.lmcache.items(), *((version, "") for version in ran)]
    for version, digest in named:
        if not isinstance(digest, str):
            raise TypeError(f"{version} has no digest")
        Version(version)
    if not found.known:
        raise ValueError("it tells of no pair")
    return found


def _content(path: Path, hint: str) -> bytes:
    """What is in a file that the user named.

    Raises:
        KvpatchError: ``unreadable``; exit 4.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise KvpatchError(
            "unreadable",
            f"{path} can't be read: {error.strerror}",
            hint,
            ExitCode.ENVIRONMENT,
        ) from None
