"""What a pair's wheels say beside their code: pins that don't meet, and torch's ABI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from functools import lru_cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

_TORCH = (
    ("0.3.3", "2.7"),
    ("0.3.4", "2.8 2.9"),
    ("0.3.5", "2.7"),
    ("0.3.6", "2.8 2.9"),
    ("0.4.2", "2.10"),
    ("0.4.5", "2.11"),
    ("0.5.4", "2.13"),
)
"""From which LMCache on its wheel is built for which torch; METADATA has no word of it."""
_LAST = Version("0.5.6")
_FALLS_BACK = Version("0.4.4")


@dataclass(frozen=True)
class Pins:
    """What a wheel asks of other distributions, by name; extras left out."""

    asked: Mapping[str, str]

    @property
    def torch(self) -> str | None:
        """The minor release of torch that it pins, such as ``2.13``."""
        for one in SpecifierSet(self.asked.get("torch", "")):
            if one.operator == "==" and not one.version.endswith("*"):
                return ".".join(map(str, Version(one.version).release[:2]))
        return None


def read_pins(metadata: bytes | None) -> Pins:
    """The pins in the text of METADATA; none where there is no such text."""
    asked: dict[str, str] = {}
    for text in message_from_bytes(metadata or b"").get_all("Requires-Dist") or ():
        try:
            found = Requirement(str(text))
        except InvalidRequirement:
            continue
        name = canonicalize_name(found.name)
        if found.marker is not None and not found.marker.evaluate(_LINUX):
            continue
        asked[name] = ",".join(filter(None, (asked.get(name), str(found.specifier))))
    return Pins(asked)


_LINUX = {
    "extra": "",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "python_version": "3.12",
    "python_full_version": "3.12.0",
}


def notes(vllm: Pins, lmcache: Pins, release: Version) -> Iterator[str]:
    """Sentences on a pair of wheels; nothing where nothing is amiss."""
    built = _built_for(release)
    if vllm.torch is not None and built and vllm.torch not in built:
        how = "falls back to slow Python" if release >= _FALLS_BACK else "fails at its import"
        yield (
            f"LMCache's wheel is built for torch {' and '.join(built)}, this vLLM pins "
            f"{vllm.torch}: its extension does not load, and it {how}"
        )
    for name in sorted(set(vllm.asked) & set(lmcache.asked)):
        ours, theirs = vllm.asked[name], lmcache.asked[name]
        if not _meet(ours, theirs):
            yield f"pip can't install both: vLLM wants {name} {ours}, LMCache {theirs}"


def _built_for(release: Version) -> tuple[str, ...]:
    if release > _LAST:
        return ()
    fitting = [torch for since, torch in _TORCH if Version(since) <= release]
    return tuple(fitting[-1].split()) if fitting else ()


@lru_cache(maxsize=4096)
def _meet(ours: str, theirs: str) -> bool:
    """Whether some release is in both: one of those they name, or one just beside."""
    both = SpecifierSet(ours) & SpecifierSet(theirs)
    if not len(both):
        return True
    return any(both.contains(version, prereleases=True) for version in _around(both))


def _around(specs: SpecifierSet) -> Iterator[Version]:
    yield Version("0")
    for one in specs:
        text = one.version.removesuffix(".*")
        named = Version(text)
        parts = [*named.release, 0, 0][: max(3, len(named.release))]
        yield named
        yield Version(".".join(map(str, [*parts, 1])))
        for place in range(len(parts)):
            lower = [*parts[:place], parts[place] - 1, 999]
            if parts[place]:
                yield Version(".".join(map(str, lower)))
            yield Version(".".join(map(str, [*parts[:place], parts[place] + 1])))
