"""The pairs of a matrix in words: one a line, or compactly by release, with notes by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from .tree import TITLES, other_than

_FEW_PAIRS = 20
_FEW_RELEASES = 10

STARS = "*: with launch settings, letter V"
ELSEWHERE = "which pairs blend: --html FILE or --markdown FILE writes them, and their notes"
GDS = "S on a pair that blends: only with GDS (GPUDirect storage); without GDS nothing fails"


def label(pair: Mapping[str, Any], package: str) -> str:
    """The release of one side, marked where it was given with ``--source``."""
    version = str(pair[package])
    return f"{version} (source)" if package in pair.get("sources", {}) else version


def only_with_gds(pair: Mapping[str, Any]) -> bool:
    """Whether the pair blends and a letter stays that concerns GDS alone."""
    found = pair["findings"]
    return bool(pair["ok"]) and any(f["after"] and f["scope"] == "with GDS" for f in found)


@dataclass(frozen=True)
class Listing:
    """The pairs, and the numbers by which their notes are referred to."""

    pairs: Sequence[Mapping[str, Any]]

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The sentence of every note of a pair that blends, to its number; from 1."""
        told = [note for pair in self.pairs if pair["ok"] for note in pair.get("notes", ())]
        return {note: number for number, note in enumerate(dict.fromkeys(told), 1)}

    @property
    def notes(self) -> list[str]:
        """The notes, each with its number."""
        return [f"[{number}] {note}" for note, number in self.numbers.items()]

    @property
    def sources(self) -> list[str]:
        """What stands behind ``(source)``."""
        told = {
            f"(source) {TITLES[package]} {pair[package]}: {name}": None
            for pair in self.pairs
            for package, name in pair.get("sources", {}).items()
        }
        return list(told)

    def text(self) -> list[str]:
        """As many lines as one likes to read, or where to see what they would say."""
        counts = {package: len(self._labels(package)) for package in TITLES}
        few = [package for package, count in counts.items() if count <= _FEW_RELEASES]
        if len(self.pairs) <= _FEW_PAIRS:
            lines = self._each()
        elif few:
            lines = self._compact(few[0])
        else:
            return [ELSEWHERE, *self.sources]
        return [*lines, *self.notes, *self.sources]

    def green(self, package: str, release: str) -> str:
        """What blends with one release after apply, in spans; marks hold for a whole span."""
        other = other_than(package)
        mine = [pair for pair in self.pairs if label(pair, package) == release]
        place = {found: number for number, found in enumerate(self._labels(other))}
        green = [pair for pair in mine if pair["ok"]]
        # Neighbours in the list of releases have the same distance from their place among green.
        keyed = [(place[label(p, other)] - n, self._marks(p), p) for n, p in enumerate(green)]
        spans = []
        for (_, marks), same in groupby(keyed, key=lambda item: item[:2]):
            found = [label(pair, other) for _, _, pair in same]
            span = found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"
            spans.append(f"{span}{marks}")
        return ", ".join(spans) or "none"

    def _labels(self, package: str) -> list[str]:
        return list(dict.fromkeys(label(pair, package) for pair in self.pairs))

    def _marks(self, pair: Mapping[str, Any]) -> str:
        return ("*" if pair["settings"] else "") + self._numbered(pair)

    def _numbered(self, pair: Mapping[str, Any]) -> str:
        told = [str(self.numbers[note]) for note in pair.get("notes", ()) if pair["ok"]]
        return f" [{' '.join(told)}]" if told else ""

    def _each(self) -> list[str]:
        """Each pair with its letters, as released and after apply."""
        rows = [("vLLM", "LMCache", "as released", "after apply", "")]
        for pair in self.pairs:
            before, after = (" ".join(pair[when]) or "none" for when in ("before", "after"))
            answer = "blends" if pair["ok"] else "does not blend"
            if pair["ok"] and pair["settings"]:
                answer += " with launch settings"
            answer += self._numbered(pair)
            rows.append((label(pair, "vllm"), label(pair, "lmcache"), before, after, answer))
        gds = [GDS] if any(map(only_with_gds, self.pairs)) else []
        return [*_aligned(rows), *gds]

    def _compact(self, package: str) -> list[str]:
        """Each release of one package with all that blends with it."""
        other = other_than(package)
        rows = [(TITLES[package], f"{TITLES[other]} that blends with it after apply")]
        rows += [(release, self.green(package, release)) for release in self._labels(package)]
        stars = any(pair["ok"] and pair["settings"] for pair in self.pairs)
        return [*_aligned(rows), *([STARS] if stars else [])]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows of the same length as lines, two blanks between the widest and the next column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
