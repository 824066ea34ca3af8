"""Every release of vLLM against every release of LMCache: planned and checked, pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from packaging.version import Version

from .codebase import Codebase, Facts
from .compat import Side, Verdict, check, curing, finding_data, same
from .fold import Options
from .outcome import KvpatchError, Outcome
from .plan import GOAL, Plan, plan
from .series import Series
from .tree import Package, Provenance, Source
from .wheel_notes import Pins, notes, read_pins

if TYPE_CHECKING:
    from .index import Wheel

Say = Callable[[str], None]


class Holder(Protocol):
    """Where the files of one release come from: a wheel on the index, a wheel file, a folder."""

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, None where there is none of that path."""

    def opaque(self, module: str) -> bool:
        """Whether a module is there other than as source."""

    def metadata(self) -> bytes | None:
        """The text of METADATA; None where there is none."""

    def forget(self) -> None:
        """Drop what is held in memory and can be had again."""


class UnreadError(KvpatchError):
    """A file of one release that can't be read; ``package`` is whose it is."""

    def __init__(self, package: str, error: KvpatchError) -> None:
        super().__init__(error.code, error.message, error.hint, error.exit_code)
        self.package = package


@dataclass(frozen=True, eq=False)
class Release:
    """One release of one package. ``key`` names its bytes; None where nothing does."""

    package: str
    version: Version
    holder: Holder
    name: str
    key: str | None = None

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, None where there is none of that path.

        Raises:
            UnreadError: it can't be read.
        """
        try:
            return self.holder.read(path)
        except KvpatchError as error:
            raise UnreadError(self.package, error) from None

    def opaque(self, module: str) -> bool:
        """Whether a module is there other than as source; raises as :meth:`read`."""
        try:
            return self.holder.opaque(module)
        except KvpatchError as error:
            raise UnreadError(self.package, error) from None

    def metadata(self) -> bytes | None:
        """The text of METADATA, None where there is none; raises as :meth:`read`."""
        try:
            return self.holder.metadata()
        except KvpatchError as error:
            raise UnreadError(self.package, error) from None

    @staticmethod
    def of(wheel: Wheel, holder: Holder) -> Release:
        """The release that a file of the index is, its files read through a holder."""
        # Nothing is read of a source distribution, so nothing is kept of it either.
        key = None if wheel.sdist else wheel.sha256
        return Release(wheel.distribution, wheel.version, holder, wheel.filename, key)


@dataclass(frozen=True)
class Row:
    """What planning the series on one release came to, or why it could not be read.

    ``key`` is the release's; ``given`` says that it came with ``--source``.
    """

    package: str
    version: str
    name: str
    patches: tuple[Mapping[str, Any], ...] = ()
    error: KvpatchError | None = None
    registered: bool = True
    key: str | None = None
    given: bool = False

    @property
    def refused(self) -> list[Mapping[str, Any]]:
        """The patches that can't go in."""
        return [patch for patch in self.patches if Outcome(patch["outcome"]).refused]

    @property
    def ok(self) -> bool:
        """Whether apply would go through on this release."""
        return self.error is None and not self.refused and self.registered

    @property
    def data(self) -> dict[str, Any]:
        """One entry of ``data.releases``."""
        return {
            "distribution": self.package,
            "version": self.version,
            "file": self.name,
            "sha256": self.key,
            "ok": self.ok,
            "patches": [dict(patch) for patch in self.patches],
            "error": self.error and {"code": self.error.code, "message": self.error.message},
        }


@dataclass
class Planned:
    """A release with what the series makes of it, beside a certain release of the other package."""

    release: Release
    plan: Plan
    after: Mapping[str, bytes]


@dataclass
class Workshop:
    """Plans and checks pairs; keeps what is the same for many of them."""

    series: Series
    options: Options
    facts: Facts = field(default_factory=Facts)
    _plans: dict[tuple[Any, ...], Planned] = field(default_factory=dict)
    _sides: dict[tuple[Any, ...], Side] = field(default_factory=dict)
    _pins: dict[Release, Pins] = field(default_factory=dict)

    def row(self, release: Release, beside: Release | None = None) -> Row:
        """Plan the series on one release, alone or beside one of the other package."""
        try:
            found = self.planned(release, beside)
        except KvpatchError as error:
            version = str(release.version)
            return Row(release.package, version, release.name, error=error, key=release.key)
        wanted = release.package != "vllm" or found.plan.goal_holds
        patches = tuple(
            {"id": patch.id, "outcome": patch.outcome.value, "reason": patch.reason}
            for patch in found.plan.patches
        )
        name, key = release.name, release.key
        version = str(release.version)
        return Row(release.package, version, name, patches, registered=wanted, key=key)

    def pair(self, vllm: Release, lmcache: Release) -> dict[str, Any]:
        """One entry of ``data.pairs``.

        Raises:
            UnreadError: a file of one of the two can't be read.
        """
        planned = (self.planned(vllm, lmcache), self.planned(lmcache, vllm))
        before = check(self.side(vllm, {}), self.side(lmcache, {}))
        refused = any(found.plan.refused for found in planned)
        changed = not refused and any(found.after for found in planned)
        then = before
        if changed:
            then = check(*(self.side(found.release, found.after) for found in planned))
        data = pair_data(vllm, lmcache, before, then, [found.plan for found in planned])
        pins = (self.pins(vllm), self.pins(lmcache))
        return {**data, "notes": list(notes(*pins, lmcache.version))}

    def pins(self, release: Release) -> Pins:
        """What the wheel of a release asks of other distributions."""
        if release not in self._pins:
            self._pins[release] = read_pins(release.metadata())
        return self._pins[release]

    def planned(self, release: Release, other: Release | None) -> Planned:
        """The plan of the patches for one release, beside another package's."""
        members = [m for m in self.series.members if m.patch.distribution == release.package]
        there = {item.package: item.version for item in (release, other) if item is not None}
        conditions = tuple(m.patch.when is None or m.patch.when.holds(there) for m in members)
        key = (release, other is not None, conditions)
        if key not in self._plans:
            tree = HeldTree(release, other)
            found = plan(Series(tuple(members)), tree, self.options)
            after = {file.path: file.after for file in found.changes if file.after is not None}
            self._plans[key] = Planned(release, found, after)
        return self._plans[key]

    def side(self, release: Release, files: Mapping[str, bytes]) -> Side:
        """A release as one side of a pair, some of its files replaced."""
        key = (release, tuple(sorted((path, hash(text)) for path, text in files.items())))
        if key not in self._sides:
            patches = [m.patch for m in self.series.members]
            code = Codebase(
                release.package,
                lambda path: files[path] if path in files else release.read(path),
                self.facts,
                release.opaque,
            )
            mine = tuple(patch for patch in patches if patch.distribution == release.package)
            self._sides[key] = Side(code, release.version, mine)
        return self._sides[key]

    def forget(self, release: Release) -> None:
        """Drop what is kept of a release that is done with."""
        for kept in (self._plans, self._sides):
            for key in [key for key in kept if key[0] is release]:
                del kept[key]
        release.holder.forget()


@dataclass(frozen=True)
class HeldTree:
    """A release as a plan's tree; of the other package only its version is known."""

    release: Release
    other: Release | None

    def package(self, name: str) -> Package | None:
        """The distribution of that package."""
        for item in (self.release, self.other):
            if item is not None and item.package == name:
                return Package(name, item.version)
        return None

    def source(self, name: str, path: str) -> Source | None:
        """The file of that path, as released."""
        content = self.release.read(path) if name == self.release.package else None
        return None if content is None else Source(path, content, Provenance.PRISTINE)

    def owned(self, name: str) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing: no journal stands behind a release."""
        return ()


def pair_data(
    vllm: Release, lmcache: Release, before: Verdict, then: Verdict, plans: Sequence[Plan]
) -> dict[str, Any]:
    """What is known of a pair, as plain data."""
    now = {same(item): item for item in reversed(before.findings)}
    later = {same(item): item for item in reversed(then.findings)}
    ordered = dict.fromkeys(same(item) for item in (*before.findings, *then.findings))
    return {
        "vllm": str(vllm.version),
        "lmcache": str(lmcache.version),
        "before": list(before.letters),
        "after": list(then.letters),
        "ok": then.green,
        "settings": then.settings,
        "findings": [
            {
                **finding_data(
                    now.get(key) or later[key],
                    # What stays is cured by none, though they are there for its letter.
                    [p for found in plans for p in curing(key[0], found) if key not in later],
                ),
                "before": key in now,
                "after": key in later,
            }
            for key in ordered
        ],
    }


def summary(
    pairs: Sequence[Mapping[str, Any]],
    rows: Sequence[Row],
    unread: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """The counts that people ask for first."""
    green = [pair for pair in pairs if pair["ok"]]
    # Of a vLLM with a pair that could not be checked it isn't known that nothing blends with it.
    blends = {str(pair["vllm"]) for pair in (*green, *unread)}
    return {
        "pairs": len(pairs),
        "green_as_released": sum(not blocking(pair, "before") for pair in pairs),
        "green_by_registration_alone": sum(blocking(pair, "before") == {GOAL} for pair in pairs),
        "green_after": len(green),
        "green_after_with_settings": sum(bool(pair["settings"]) for pair in green),
        "green_after_with_notes": sum(bool(pair.get("notes")) for pair in green),
        "vllm_without_a_green_pair": sorted(
            {str(pair["vllm"]) for pair in pairs} - blends, key=Version
        ),
        "unreadable": [f"{row.package} {row.version}" for row in rows if row.error],
    }


def blocking(pair: Mapping[str, Any], when: str) -> set[str]:
    """The letters of a pair that hold for everybody who blends, ``before`` or ``after``."""
    return {
        finding["letter"]
        for finding in pair["findings"]
        if finding[when] and finding["scope"] == "always"
    }
