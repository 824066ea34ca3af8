"""Which pairs blend, as validated when this kvpatch was made: read offline from ``pairs.json``.

:func:`build` makes that file from what ``kvpatch validate`` found. For each LMCache it has a run of
states over the releases of vLLM in order, such as ``0x20 3x25``; a state is the letters before,
``>``, the letters after the patches, and ``+`` where the pair blends then, ``*`` where it does with
launch settings. A ``-`` stands for a pair that could not be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

if TYPE_CHECKING:
    from datetime import date

SCHEMA = 1
_FILE = Path(__file__).with_name("pairs.json")
_HASH = 16
_UNREAD = "-"


@dataclass(frozen=True)
class Known:
    """What is known of a pair by reading its source: letters as released and after the patches."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    ok: bool
    settings: bool


@dataclass(frozen=True)
class Ran:
    """A pair that was really run, apart from what reading says of it.

    ``masked`` are the letters that the run can't tell of, because the check stands in for the code
    they are about or doesn't try it; ``series`` is the digest of the patches it ran with, ``only``
    those that were put in where not all were. ``expected`` is the letter that was to strike first
    of those not masked, ``struck`` the one that did, and ``failed`` how.
    """

    vllm: str
    lmcache: str
    distribution: str
    date: str
    device: str
    blends: bool
    masked: tuple[str, ...]
    series: str
    only: tuple[str, ...] = ()
    expected: str = ""
    struck: str = ""
    failed: str = ""
    agrees: bool = True


@dataclass(frozen=True)
class Pairs:
    """The generated data. ``vllm``, ``lmcache``: release to the beginning of its wheel's hash."""

    date: str
    series: str
    vllm: Mapping[str, str]
    lmcache: Mapping[str, str]
    states: Sequence[str]
    rows: Mapping[str, str]
    ran: tuple[Ran, ...] = ()

    @cached_property
    def texts(self) -> Mapping[tuple[str, str], str]:
        """The state of every pair by its two releases, in order."""
        return {
            (vllm, lmcache): state
            for lmcache, row in self.rows.items()
            for vllm, state in zip(self.vllm, self._row(row), strict=True)
        }

    @cached_property
    def known(self) -> Mapping[tuple[str, str], Known]:
        """What is known of every pair that could be read, by its two releases, in order."""
        told = {pair: _known(state) for pair, state in self.texts.items()}
        return {pair: known for pair, known in told.items() if known is not None}

    @property
    def green(self) -> Mapping[tuple[str, str], bool]:
        """The pairs that blend with the patches, each with whether it takes launch settings to."""
        return {pair: known.settings for pair, known in self._green}

    def of(self, vllm: Version, lmcache: Version) -> Known | None:
        """What is known of a pair; a local part (``+cpu``) names another build of a release.

        A pre-release is none: its code is another than that of the release it leads to.
        """
        row, releases = self.rows.get(lmcache.public), list(self.vllm)
        if row is None or vllm.public not in self.vllm:
            return None
        return _known(list(self._row(row))[releases.index(vllm.public)])

    def standing(self, vllm: Version, lmcache: Version) -> str:
        """``validated on ...``, or ``untested`` and why, for a sentence."""
        if self.of(vllm, lmcache) is not None:
            ran = self.ran_on(vllm, lmcache)
            return f"validated on {self.date}" + (f", {ran}" if ran else "")
        named = (("vLLM", vllm, self.vllm), ("LMCache", lmcache, self.lmcache))
        for name, version, releases in named:
            if version.public in releases:
                continue
            newer = not releases or version > max(map(Version, releases))
            why = "newer than" if newer else "not in"
            if version.is_prerelease:
                why = f"a pre-release of {version.base_version} and {why}"
            return f"untested: {name} {version} is {why} the catalogue of {self.date}"
        return f"untested: the catalogue of {self.date} lacks this pair"

    def ran_on(self, vllm: Version, lmcache: Version) -> str:
        """What a real run with these patches came to, for a sentence; empty where none was."""
        for one in self.ran:
            if (one.vllm, one.lmcache) == (vllm.public, lmcache.public):
                if one.series != self.series or one.only:
                    continue
                told = "ran and blended" if one.blends else "ran and did not blend"
                masked = f", letters {' '.join(one.masked)} not tried" if one.masked else ""
                return f"{told} on {one.date} ({one.distribution}, {one.device}{masked})"
        return ""

    def nearest(self, vllm: Version, lmcache: Version) -> tuple[str, ...]:
        """The nearest releases that work with one of the two, plain green before settings.

        The first keeps this vLLM, the second this LMCache. Where neither has a partner, it is the
        newest pair that works.
        """
        itself = (vllm.public, lmcache.public)
        others = [(pair, known) for pair, known in self._green if pair != itself]
        with_vllm = [(pair[1], known) for pair, known in others if pair[0] == vllm.public]
        with_lmcache = [(pair[0], known) for pair, known in others if pair[1] == lmcache.public]
        found = []
        if one := _nearest(lmcache, with_vllm, list(self.lmcache)):
            found.append(f"LMCache {one[0]} with this vLLM{_star(one[1])}")
        if one := _nearest(vllm, with_lmcache, list(self.vllm)):
            found.append(f"vLLM {one[0]} with this LMCache{_star(one[1])}")
        if not found and self._green:
            best = max(self._green, key=lambda item: tuple(map(Version, item[0])))
            found.append(f"vLLM {best[0][0]} with LMCache {best[0][1]}{_star(best[1])}")
        return tuple(found)

    def advice(self, vllm: Version, lmcache: Version) -> str:
        """The nearest pairs that work, as something to do; empty where none is known."""
        found = self.nearest(vllm, lmcache)
        return f"take {', or '.join(found)} (validated on {self.date})" if found else ""

    @cached_property
    def _green(self) -> Sequence[tuple[tuple[str, str], Known]]:
        return [(pair, known) for pair, known in self.known.items() if known.ok]

    def _row(self, row: str) -> Iterator[str]:
        for run in row.split():
            state, _, count = run.partition("x")
            yield from [self.states[int(state)]] * int(count or 1)


def load() -> Pairs:
    """Read the catalogue that came with this kvpatch."""
    return read(_FILE.read_text("utf-8"))


def read(text: str) -> Pairs:
    """Read the text of a catalogue.

    Raises:
        ValueError: it is none of this schema.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError("not a catalogue of pairs of this kvpatch")
    ran = tuple(
        Ran(**{**one, "masked": tuple(one["masked"]), "only": tuple(one.get("only", ()))})
        for one in data["ran"]
    )
    names = ("date", "series", "vllm", "lmcache", "states", "rows")
    return Pairs(**{name: data[name] for name in names}, ran=ran)


def build(
    pairs: Sequence[Mapping[str, Any]],
    wheels: Mapping[str, Mapping[str, str | None]],
    series: str,
    today: date,
    earlier: Pairs | None = None,
    ran: Sequence[Ran] = (),
    *,
    whole: bool = True,
) -> str:
    """The catalogue's JSON text.

    Args:
        pairs: as ``data.pairs`` of a validate report.
        wheels: package to release to the sha256 of the wheel that was read, by version.
        series: digest of the patches.
        today: the date of the run; where nothing else has changed, that of ``earlier`` stays.
        earlier: the catalogue before, whose runs are kept.
        ran: what was really run; it replaces an earlier run of the same pair and patches.
        whole: whether that is all there is to know; else pairs of ``earlier`` that were not looked
            at stay, where the patches are the same.
    """
    by_pair = {(str(pair["vllm"]), str(pair["lmcache"])): _state(pair) for pair in pairs}
    if earlier is not None and not whole and earlier.series == series:
        by_pair = {**earlier.texts, **by_pair}
        before = {"vllm": earlier.vllm, "lmcache": earlier.lmcache}
        wheels = {name: {**before[name], **found} for name, found in wheels.items()}
    told = {name: sorted(found, key=Version) for name, found in wheels.items()}
    rows = {
        lmcache: [by_pair.get((vllm, lmcache), _UNREAD) for vllm in told["vllm"]]
        for lmcache in told["lmcache"]
    }
    states = list(dict.fromkeys(state for row in rows.values() for state in row))
    runs = {_run_key(one): one for one in (*(earlier.ran if earlier else ()), *ran)}
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "date": today.isoformat(),
        "series": series,
        **{
            name: {version: str(wheels[name][version] or "")[:_HASH] for version in told[name]}
            for name in ("vllm", "lmcache")
        },
        "states": states,
        "rows": {lmcache: _runs([states.index(s) for s in row]) for lmcache, row in rows.items()},
        "ran": [vars(runs[key]) for key in sorted(runs)],
    }
    if earlier is not None and read(json.dumps({**data, "date": earlier.date})) == earlier:
        data["date"] = earlier.date
    return json.dumps(data, indent=1) + "\n"


def table(found: Pairs) -> str:
    """A Markdown table: which LMCache blends with which vLLM after ``kvpatch apply``."""
    rows: list[tuple[str, tuple[str, ...]]] = []
    for vllm in reversed(list(found.vllm)):
        cells: dict[str, list[str]] = {"green": [], "settings": [], "not": []}
        for lmcache in found.lmcache:
            known = found.known.get((vllm, lmcache))
            ok = known is not None and known.ok
            key = "not" if not ok or known is None else "settings" if known.settings else "green"
            cells[key].append(lmcache)
        spans = tuple(_spans(chosen, list(found.lmcache)) for chosen in cells.values())
        rows.append((vllm, spans))
    lines = ["| vLLM | LMCache that blends | blends with launch settings | does not |"]
    lines.append("|---|---|---|---|")
    for spans, same in groupby(rows, key=lambda row: row[1]):
        versions = [vllm for vllm, _ in same]
        which = versions[0] if len(versions) == 1 else f"{versions[-1]} to {versions[0]}"
        lines.append(f"| {which} | {' | '.join(spans)} |")
    return "\n".join(lines) + "\n"


def _run_key(one: Ran) -> tuple[Version, Version, tuple[str, ...]]:
    return Version(one.vllm), Version(one.lmcache), one.only


def _spans(chosen: Sequence[str], ordered: Sequence[str]) -> str:
    """Some releases of an ordered list, neighbours as ``first to last``."""
    spans: list[list[str]] = []
    for version in chosen:
        if spans and ordered.index(version) == ordered.index(spans[-1][-1]) + 1:
            spans[-1].append(version)
        else:
            spans.append([version])
    told = [span[0] if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans]
    return ", ".join(told) or "none"


def _nearest(
    version: Version, found: Sequence[tuple[str, Known]], releases: Sequence[str]
) -> tuple[str, Known] | None:
    """The nearest of some releases, counted in releases; the newer of two that are as near."""
    place = sum(Version(release) < version for release in releases)

    def far(item: tuple[str, Known]) -> tuple[int, bool, int]:
        index = releases.index(item[0])
        return abs(index - place), item[1].settings, -index

    return min(found, key=far, default=None)


def _star(known: Known) -> str:
    return " and launch settings (letter V)" if known.settings else ""


def _state(pair: Mapping[str, Any]) -> str:
    sign = "" if not pair["ok"] else "*" if pair["settings"] else "+"
    return f"{''.join(pair['before'])}>{''.join(pair['after'])}{sign}"


def _known(state: str) -> Known | None:
    if state == _UNREAD:
        return None
    before, _, rest = state.partition(">")
    ok, settings = rest[-1:] in ("+", "*"), rest.endswith("*")
    return Known(tuple(before), tuple(rest.rstrip("+*")), ok, settings)


def _runs(numbers: Sequence[int]) -> str:
    counted = [(number, sum(1 for _ in same)) for number, same in groupby(numbers)]
    return " ".join(f"{number}x{count}" if count > 1 else str(number) for number, count in counted)
