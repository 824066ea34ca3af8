"""The release of the other package that a fork will run beside, and what hangs on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from .compat import MEANINGS
from .index import releases
from .outcome import ExitCode, KvpatchError
from .series import Member, Series
from .tree import PACKAGES, TITLES, Package, other_than

if TYPE_CHECKING:
    from .pairs import Pairs


def package_of(distribution: str) -> str | None:
    """The package that distributions of such a name hold, where the name tells it."""
    name = canonicalize_name(distribution)
    return next((one for one in PACKAGES if name == one or name.startswith(f"{one}-")), None)


def deciding(own: Series, release: Version) -> Sequence[Member]:
    """The patches of a release that are for some releases of the other package only."""
    return [m for m in own.members if m.patch.when and m.patch.in_range(release)]


def require_beside(own: Series, release: Version, title: str) -> None:
    """See that nothing hangs on the other package's release, which was not given.

    Args:
        own: the patches of the wheel's own packages.
        release: of the wheel.
        title: what names the wheel.

    Raises:
        KvpatchError: ``no-beside``, exit 2.
    """
    for member in deciding(own, release):
        other = other_than(member.patch.distribution)
        raise KvpatchError(
            "no-beside",
            f"{member.id} is for some {other} releases only, and {title} does not say which it "
            "will run beside",
            f"give the release of {other} with --beside",
            ExitCode.USAGE,
        )


def foresee(
    series: Series, known: Pairs, distribution: str, wanted: Version, beside: Version | None
) -> None:
    """What would be refused of a release once it is fetched, said before its megabytes are.

    Raises:
        KvpatchError: ``no-beside`` (exit 2); ``unsupported``, ``nothing-to-fork``, ``incurable``.
    """
    package = package_of(distribution)
    if package is None:
        return
    own = Series(tuple(m for m in series.members if m.patch.distribution == package))
    release = Package(distribution, wanted).release
    if not any(member.patch.in_range(release) for member in own.members):
        every = dict.fromkeys(member.patch.versions for member in own.members)
        ranges = [one for one in every if "<" not in one] or every
        hint = f"take a supported release: {' or '.join(ranges)}"
        other = other_than(package)
        if wanted.public in _listed(known)[other]:
            hint = f"that is a release of {TITLES[other]}: give --distribution {other}; or {hint}"
        raise KvpatchError(
            "unsupported" if package == "vllm" else "nothing-to-fork",
            f"no patch is for {distribution} {wanted}, so nothing was fetched",
            hint,
        )
    if beside is None:
        require_beside(own, release, f"{distribution} {wanted}")
    elif (error := incurable(known, {package: wanted, other_than(package): beside})) is not None:
        raise error


def _listed(known: Pairs) -> Mapping[str, Mapping[str, str]]:
    """The releases that the catalogue has of each package."""
    return {"vllm": known.vllm, "lmcache": known.lmcache}


def unreleased(known: Pairs, package: str, beside: Version, *, online: bool = False) -> str:
    """What is to be said of a release beside that there is none of; empty where there is one.

    Args:
        known: the catalogue, whose releases are not asked for.
        package: the one that the wheel holds.
        beside: what is to run beside it.
        online: whether the package index may be asked.
    """
    other = other_than(package)
    listed = _listed(known)
    if beside.public in listed[other]:
        return ""
    if beside.public in listed[package]:
        return (
            f"{beside} is a release of {TITLES[package]}, and --beside takes the {TITLES[other]} "
            f"that a wheel of {TITLES[package]} will run beside"
        )
    if not online:
        return ""
    try:
        found = [wheel.version for wheel in releases(other, pre=True, sdists=True)]
    except KvpatchError:
        # A private index need not have it.
        return ""
    if not found or Version(beside.public) in found:
        return ""
    return (
        f"the package index has no release {beside} of {other}: --beside takes the "
        f"{TITLES[other]} that the wheel will run beside, the newest is {max(found)}"
    )


def incurable(known: Pairs, pair: Mapping[str, Version], lacking: str = "") -> KvpatchError | None:
    """Why a fork for that pair would be of no use, as ``apply`` refuses it.

    None where the pair is not whole, or nothing lacks and the catalogue does not have it with X, C
    or the S that strikes without GDS left.

    Args:
        known: the catalogue.
        pair: the release of each package.
        lacking: what :func:`~kvpatch.contract.unloadable` says of the LMCache in the wheel.
    """
    if set(pair) != set(PACKAGES):
        return None
    both = [pair[name] for name in PACKAGES]
    told = known.of(*both)
    left: list[str] = []
    if told is not None and not told.ok:
        left = [letter for letter in told.after if letter in ("X", "C")]
        if set(told.after) <= {"S", "V"}:
            # S with GDS and V at default settings leave a pair green, so it is everybody's S.
            left = ["S"]
    if lacking:
        left = ["X"]
    if not left:
        return None
    whence = f"; {lacking}" if lacking else f" (by the catalogue of {known.date})"
    return KvpatchError(
        "incurable",
        f"vLLM {both[0]} and LMCache {both[1]} can't blend, letter {left[0]}: {MEANINGS[left[0]]}"
        f"{whence}",
        f"{known.advice(*both)}; `kvpatch validate` lists all pairs that work",
    )


def doubt(known: Pairs, pair: Mapping[str, Version]) -> str:
    """What is to be said of a fork for that pair though it is made; empty where nothing is."""
    if set(pair) != set(PACKAGES):
        return ""
    both = [pair[name] for name in PACKAGES]
    told = known.of(*both)
    title = f"vLLM {both[0]} with LMCache {both[1]}"
    if told is None:
        asked = f"--vllm '=={both[0].public}' --lmcache '=={both[1].public}'"
        return f"{title} is {known.standing(*both)}; `kvpatch validate --pre {asked}` reads it"
    if not told.ok:
        letters = " ".join(told.after)
        return f"{title} does not blend with the patches either, letters {letters} stay; " + (
            known.advice(*both)
        )
    return ""
