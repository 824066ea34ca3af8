"""Which patches that blending needs are absent from an installed pair, told without planning.

The catalogue says which patches change which file of a release. A file that is the released one
lacks them all; one that kvpatch wrote names those that it has in comments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

SINCE: Mapping[str, Version] = {
    "KV004": Version("0.12.0"),
    "KV005": Version("0.11.1"),
    "KV006": Version("0.26.0"),
}
"""First release of vLLM that a patch of LMCache is for; a test holds it against the patches."""

_NOT_FOR_BLENDING = frozenset({"KV008", "KV009", "KV012"})
"""One checks the configuration alone; those for GDS and several ranks have rules of their own."""

Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Absence:
    """What an installed pair lacks.

    Attributes:
        patches: ids of those that are certainly not there, in order.
        unsure: whether a file is neither as released nor by kvpatch, or of an unknown release.
    """

    patches: tuple[str, ...] = ()
    unsure: bool = False


@dataclass(frozen=True, eq=False, repr=False)
class Installed:
    """An installed package: its version, and how its files are read by path below the site."""

    package: str
    version: Version
    read: Read


def absence(installed: tuple[Installed, ...], vllm: Version | None) -> Absence:
    """The patches that blending needs and that are not in these packages.

    Args:
        installed: LMCache, and vLLM where its files are those in question.
        vllm: release that LMCache runs with; None where there is none.
    """
    data = json.loads(Path(__file__).with_name("releases.json").read_text("utf-8"))
    found: set[str] = set()
    unsure = False
    for one in installed:
        files = data["releases"].get(one.package, {}).get(one.version.public)
        unsure = unsure or files is None
        for patch, state in _states(one, files or {}, data["plans"]):
            if not _concerned(patch, vllm):
                continue
            if state is None:
                unsure = True
            elif not state:
                found.add(patch)
    return Absence(tuple(sorted(found)), unsure)


def mark(patch: str) -> bytes:
    """What stands in every file that a patch of that id has written."""
    return f"# kvpatch {patch}".encode()


def _states(
    one: Installed, files: Mapping[str, str], plans: Mapping[str, Any]
) -> Iterator[tuple[str, bool | None]]:
    """Each patch of each file, with whether it is there; None where that can't be told."""
    for path, released in files.items():
        patches = list(plans.get(released, {}).get("outcomes", ()))
        content = one.read(path) if patches else None
        if content is None:
            yield from ((patch, None) for patch in patches)
            continue
        ours = mark("KV") in content
        known = ours or _digest(content) == released
        for patch in patches:
            yield patch, mark(patch) in content if known else None


def _digest(content: bytes) -> str:
    # hashlib loads OpenSSL, which a lint of a patched pair has no need for.
    from .digest import sha256

    return sha256(content)


def _concerned(patch: str, vllm: Version | None) -> bool:
    if patch in _NOT_FOR_BLENDING:
        return False
    first = SINCE.get(patch)
    return first is None or (vllm is not None and Version(vllm.base_version) >= first)
