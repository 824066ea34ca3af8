"""The releases that a validation is about: of the index and find-links, and given by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from .index import Wheel, listing
from .matrix import Release
from .outcome import ExitCode, KvpatchError
from .remote import RemoteWheel
from .sources import local_release
from .tree import PACKAGES

FIRST = {"vllm": ">=0.8.5", "lmcache": ">=0.3.3"}
"""The releases that are looked at where none are named: those the series was begun for."""

Sides = Mapping[str, Sequence[Release]]
"""The releases of each package, the oldest first."""


@dataclass(frozen=True)
class Request:
    """What the user asked for. A spec is one of PEP 440, empty for :data:`FIRST`.

    ``max_download`` is the size in MB up to which a wheel is read whole where its server answers no
    ranges.
    """

    specs: Mapping[str, str]
    pre: bool = False
    sources: tuple[Path, ...] = ()
    jobs: int = 8
    max_download: int = 0


@dataclass(frozen=True)
class Offer:
    """Releases, and which of the places could not be read that may have more of them."""

    releases: tuple[Release, ...]
    lost: tuple[KvpatchError, ...] = ()


def offered(
    asked: Request,
    cache: Path,
    remote: Callable[[Wheel], RemoteWheel],
    given: Sequence[Release],
) -> Offer:
    """The releases that were asked for, and those ``given`` whatever was asked.

    Raises:
        KvpatchError: ``bad-spec`` (exit 2); ``no-network`` and others (exit 4), where no place
            says which releases there are.
    """
    found: list[Release] = []
    lost: list[KvpatchError] = []
    for name in PACKAGES:
        spec = asked.specs.get(name) or FIRST[name]
        told = listing(name, spec, pre=asked.pre, cache=cache, sdists=True)
        found += _listed(told.wheels, remote)
        lost += told.lost
    return Offer((*found, *given), tuple(lost))


def by_version(found: Sequence[Release]) -> Sides:
    """The releases of each package, by version.

    Raises:
        KvpatchError: ``no-releases``, exit 4.
    """
    sides = {
        name: sorted((r for r in found if r.package == name), key=lambda r: r.version)
        for name in PACKAGES
    }
    for name, side in sides.items():
        if not side:
            raise KvpatchError(
                "no-releases",
                f"no release of {name} is in what was asked for",
                "widen --vllm or --lmcache, or give --pre; yanked releases are left out",
                ExitCode.ENVIRONMENT,
            )
    return sides


def _listed(wheels: Sequence[Wheel], remote: Callable[[Wheel], RemoteWheel]) -> Iterator[Release]:
    for wheel in wheels:
        if wheel.yanked:
            continue
        if wheel.sdist:
            yield Release.of(wheel, Unreadable(no_wheel(wheel)))
        elif wheel.path is not None:
            yield _local(wheel.path, wheel.distribution, wheel.version)
        else:
            yield Release.of(wheel, remote(wheel))


def _local(path: Path, name: str, version: Version) -> Release:
    try:
        return local_release(path)
    except KvpatchError as error:
        # Nobody named that file: it is a row, and no reason to look at nothing else.
        return Release(name, version, Unreadable(error), path.name)


def no_wheel(sdist: Wheel) -> KvpatchError:
    """What to say of a release that has but a source distribution."""
    return KvpatchError(
        "only-sdist",
        f"{sdist.filename} is all that the index has of this release, and no wheel",
        "build a wheel, and give it with --source",
        ExitCode.ENVIRONMENT,
    )


@dataclass(frozen=True)
class Unreadable:
    """A release of which nothing can be read: a row that says why."""

    error: KvpatchError

    def read(self, path: str) -> bytes | None:  # noqa: ARG002
        """Nothing can be read of it.

        Raises:
            KvpatchError: :attr:`error`.
        """
        raise self.error.again

    def opaque(self, module: str) -> bool:
        """As :meth:`read`."""
        return self.read(module) is not None

    def metadata(self) -> bytes | None:
        """As :meth:`read`."""
        return self.read("METADATA")

    def forget(self) -> None:
        """Nothing is held."""


def specifiers(spec: str) -> SpecifierSet:
    """Which versions that text means.

    Raises:
        KvpatchError: ``bad-spec``, exit 2.
    """
    try:
        return SpecifierSet(spec)
    except InvalidSpecifier:
        raise KvpatchError(
            "bad-spec",
            f"{spec!r} does not say which releases",
            "write it as pip does, such as '>=0.26' or '==0.32.0'",
            ExitCode.USAGE,
        ) from None
