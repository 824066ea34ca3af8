"""The matrix as one self-contained page: a heat map whose cells open their findings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from .compat import MEANINGS
from .listing import GDS, Listing, label


def page(data: Mapping[str, Any], red: Sequence[str] = ()) -> str:
    """The HTML of ``data`` of a validate report; it fetches nothing and works from a file.

    ``red`` are lines about releases and pairs that have no cell to open, or need no opening.
    """
    template = files(__package__).joinpath("heatmap.html").read_text("utf-8")
    return template.replace("/*DATA*/null", _embedded({**compact(data), "red": list(red)}))


def compact(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data as the page takes it: findings once each, and by number in the pairs."""
    findings: dict[tuple[str, ...], int] = {}
    notes: dict[str, int] = {}
    pairs = []
    for pair in data["pairs"]:
        numbers = []
        for finding in pair["findings"]:
            words = ("letter", "when", "path", "sentence", "scope")
            key = tuple(str(finding[word]) for word in words)
            key += (str(finding["line"]), " ".join(finding["cures"]))
            state = finding["before"] + 2 * finding["after"]
            numbers.append([findings.setdefault(key, len(findings)), state])
        pairs.append(
            {
                "v": label(pair, "vllm"),
                "l": label(pair, "lmcache"),
                "b": "".join(pair["before"]),
                "a": "".join(pair["after"]),
                "ok": pair["ok"],
                "s": pair["settings"],
                "f": numbers,
                "n": [notes.setdefault(note, len(notes)) for note in pair.get("notes", ())],
            }
        )
    return {
        "summary": data["summary"],
        "meanings": dict(MEANINGS),
        "findings": list(findings),
        "notes": list(notes),
        "legend": [GDS, *Listing(data["pairs"]).sources],
        "pairs": pairs,
    }


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that no text in it can end the script element of."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", " ")
