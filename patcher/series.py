"""The patches in series order: discovery, selection, and the errors of a bad choice."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from .digest import sha256
from .outcome import ExitCode, KvpatchError
from .patch import GOAL, Example, Patch

_SHARED = ("rewrite", "guard", "registration", "edits", "anchors", "matching", "blending")
"""The modules that say, beside its own, what a patch does."""

_MODULE = re.compile(r"(kv\d{3})_[a-z]+(_[a-z0-9]+)+")


@dataclass(frozen=True)
class Member:
    """One patch of the series, with its title, its examples and the digest of what it does."""

    patch: Patch
    title: str
    examples: tuple[Example, ...]
    digest: str

    @property
    def id(self) -> str:
        """The patch's id, such as ``KV001``."""
        return self.patch.id


@dataclass(frozen=True)
class Series:
    """All patches, in the order in which they are folded into a file."""

    members: tuple[Member, ...]

    @cached_property
    def digest(self) -> str:
        """One digest for the whole series."""
        return sha256("\n".join(f"{member.id} {member.digest}" for member in self.members).encode())

    @property
    def distributions(self) -> tuple[str, ...]:
        """The distributions the series touches, in order of first appearance."""
        return tuple(dict.fromkeys(member.patch.distribution for member in self.members))

    @property
    def registering(self) -> tuple[Member, ...]:
        """The patches that register the model, each for some releases."""
        return tuple(member for member in self.members if GOAL in member.patch.cures)

    def get(self, patch_id: str) -> Member:
        """The patch of that id, whatever its case.

        Raises:
            KvpatchError: ``unknown-patch``, naming the nearest ids.
        """
        for member in self.members:
            if member.id == patch_id.upper():
                return member
        from difflib import get_close_matches

        ids = [member.id for member in self.members]
        number = re.fullmatch(r"(?:KV)?\D?(\d+)", patch_id.upper(), re.ASCII)
        same = [one for one in ids if number and one[2:] == number[1].lstrip("0").zfill(3)]
        near = same or get_close_matches(patch_id.upper(), ids, 2) or ids
        raise KvpatchError(
            "unknown-patch",
            f"there is no patch {patch_id}",
            f"did you mean {' or '.join(near)}? `kvpatch list` shows them all",
            ExitCode.USAGE,
        )


@dataclass(frozen=True)
class Selection:
    """The patches a command is about, those that came along, and those that were left out.

    Only what is meant for the installed releases counts as left out.
    """

    series: Series
    taken_along: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def discover() -> Series:
    """Import every patch module of :mod:`kvpatch.patches`, in series order.

    Raises:
        KvpatchError: ``bad-series``, where two patches share an id or a need names no patch.
    """
    package = importlib.import_module("kvpatch.patches")
    names = sorted(path.stem for folder in package.__path__ for path in Path(folder).glob("*.py"))
    beside = Path(__file__).parent
    shared = [(beside / f"{name}.py").read_bytes() for name in _SHARED]
    members = tuple(_load(name, shared) for name in names if _MODULE.fullmatch(name))
    check(members)
    return Series(members)


def check(members: Sequence[Member]) -> None:
    """See that ids are unique and every need names a patch of the series.

    Raises:
        KvpatchError: ``bad-series``.
    """
    ids = [member.id for member in members]
    for member in members:
        unknown = [need.id for need in member.patch.needs if need.id not in ids]
        if ids.count(member.id) > 1 or unknown:
            reason = f"needs {unknown[0]}, which does not exist" if unknown else "is there twice"
            raise KvpatchError(
                "bad-series",
                f"the patch {member.id} {reason}",
                "reinstall kvpatch; if that does not help, report it",
                ExitCode.BUG,
            )


def select(
    series: Series,
    versions: Mapping[str, Version],
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Selection:
    """Choose patches for the installed releases; what a chosen patch needs comes along.

    Where none is named, they are those of the distributions that are installed. Whichever are
    named, the registration of the model comes along, without which none of them does anything.

    Raises:
        KvpatchError: ``unknown-patch``; ``skip-needed`` where a chosen patch needs a skipped one.
    """
    skipped = {series.get(patch_id).id for patch_id in skip}
    chosen = [series.get(patch_id).id for patch_id in only]
    there = [m for m in series.members if m.patch.distribution in versions] or series.members
    named = set(chosen) or {member.id for member in there} - skipped
    wanted = named | (_registering(series, versions) - skipped if chosen else set())
    pending = sorted(wanted)
    while pending:
        patch_id = pending.pop()
        for need in _needs(series.get(patch_id), versions):
            if need in skipped:
                raise KvpatchError(
                    "skip-needed",
                    f"{patch_id} needs {need}, which is to be skipped",
                    f"skip {patch_id} too, or skip neither",
                    ExitCode.USAGE,
                )
            if need not in wanted:
                wanted.add(need)
                pending.append(need)
    if clash := sorted(named & skipped):
        raise KvpatchError(
            "skip-needed",
            f"{clash[0]} is both chosen and skipped",
            "give each patch to --only or to --skip, not to both",
            ExitCode.USAGE,
        )
    members = tuple(member for member in series.members if member.id in wanted)
    left_out = tuple(m.id for m in there if m.id not in wanted and _meant(m, versions))
    return Selection(Series(members), tuple(sorted(wanted - named)), left_out)


def _registering(series: Series, versions: Mapping[str, Version]) -> set[str]:
    """The patches that register the model on these releases."""
    return {
        member.id
        for member in series.registering
        if (version := versions.get(member.patch.distribution)) is not None
        and member.patch.in_range(version)
    }


def _meant(member: Member, versions: Mapping[str, Version]) -> bool:
    patch, version = member.patch, versions.get(member.patch.distribution)
    if version is None or not patch.in_range(version):
        return False
    return patch.when is None or patch.when.holds(versions)


def _needs(member: Member, versions: Mapping[str, Version]) -> Iterable[str]:
    version = versions.get(member.patch.distribution)
    if version is None or not member.patch.in_range(version):
        return ()
    return member.patch.needed_with(version)


def _load(name: str, shared: Sequence[bytes]) -> Member:
    module = importlib.import_module(f"kvpatch.patches.{name}")
    return Member(
        patch=module.PATCH,
        title=str(module.__doc__).strip().splitlines()[0].rstrip("."),
        examples=tuple(module.EXAMPLES),
        digest=sha256(b"\0".join([Path(str(module.__file__)).read_bytes(), *shared])),
    )
