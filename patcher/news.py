"""What is new or red since this kvpatch was made, as the text of an issue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .matrix import Row
from .outcome import KvpatchError
from .pairs import Pairs
from .tree import PACKAGES
from .validate import Matrix

_NAMES = {"vllm": "vLLM", "lmcache": "LMCache"}


def issue(matrix: Matrix, errors: Sequence[KvpatchError], known: Pairs) -> str | None:
    """The title, an empty line, and the Markdown of an issue; None where there is nothing to tell.

    Args:
        matrix: what validating came to.
        errors: what is red in it.
        known: the catalogue that came with this kvpatch.
    """
    new = [row for row in matrix.rows if row.version not in _releases(known, row.package)]
    lost = list(_lost(matrix, known))
    if not new and not lost and not errors:
        return None
    red = [row for row in new if not row.ok]
    title = "; ".join(filter(None, (_named(red, "red"), _named(new, "new") if not red else "")))
    title = title or f"{len(lost) or len(errors)} that were green are red"
    lines = [title, "", f"Compared with the catalogue of {known.date}.", ""]
    for row in new:
        lines += [
            f"## {_NAMES[row.package]} {row.version}",
            "",
            *_row(row),
            *_pairs(row, matrix),
            "",
        ]
    if lost:
        lines += ["## Were green, and are not", "", *(f"- {line}" for line in lost), ""]
    others = [error for error in errors if error.code != "regression"]
    if others:
        lines += ["## Red", "", *(f"- **{e.code}**: {e.message}" for e in others), ""]
    lines += ["`make validate` shows it; `make generate` takes it into the catalogue."]
    return "\n".join(lines) + "\n"


def _releases(known: Pairs, package: str) -> Mapping[str, str]:
    return known.vllm if package == "vllm" else known.lmcache


def _named(rows: Sequence[Row], word: str) -> str:
    return f"{', '.join(f'{_NAMES[r.package]} {r.version}' for r in rows)}: {word}" if rows else ""


def _row(row: Row) -> Iterator[str]:
    if row.error is not None:
        yield f"- can't be read: {row.error.message}"
        return
    for patch in row.refused:
        yield f"- {patch['id']} is {patch['outcome']}: {patch['reason']}"
    if not row.registered:
        yield "- no patch registers its model"
    if row.ok:
        yield "- every patch goes in"


def _pairs(row: Row, matrix: Matrix) -> Iterator[str]:
    mine = [pair for pair in matrix.pairs if pair[row.package] == row.version]
    other = PACKAGES[1 - PACKAGES.index(row.package)]
    green = [_star(pair, other) for pair in mine if pair["ok"]]
    told = f"{green[0]} to {green[-1]}" if len(green) > 3 else ", ".join(green)
    counted = f"- blends with {len(green)} of {len(mine)} releases of {_NAMES[other]}"
    yield f"{counted}: {told}" if told else counted
    if mine and not green:
        last = mine[-1]
        yield f"- with {_NAMES[other]} {last[other]} the letters {' '.join(last['after'])} stay"


def _star(pair: Mapping[str, Any], other: str) -> str:
    return f"{pair[other]}{' with launch settings' if pair['settings'] else ''}"


def _lost(matrix: Matrix, known: Pairs) -> Iterator[str]:
    for pair in matrix.pairs:
        before = known.known.get((str(pair["vllm"]), str(pair["lmcache"])))
        if before is not None and before.ok and not pair["ok"]:
            letters = " ".join(pair["after"])
            yield f"vLLM {pair['vllm']} with LMCache {pair['lmcache']}: {letters}"
