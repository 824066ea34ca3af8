"""What is new or red since this kvpatch was made, as the text of an issue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .baseline import lost, tied
from .matrix import Row
from .outcome import KvpatchError
from .pairs import Pairs
from .tree import TITLES, other_than
from .validate import Matrix

# A title may have 256 characters, a text 65,536.
TITLE = 256
NAMED_IN_TITLE = 4
LISTED = 100


def issue(matrix: Matrix, errors: Sequence[KvpatchError], known: Pairs) -> str | None:
    """The title, an empty line, and the Markdown of an issue; None where there is nothing to tell.

    Args:
        matrix: what validating came to.
        errors: what is red in it.
        known: the catalogue that came with this kvpatch.
    """
    new = [row for row in matrix.rows if row.version not in _releases(known, row.package)]
    gone, bound = list(lost(matrix, known.green)), list(tied(matrix, known.green))
    others = [error for error in errors if error.code != "regression"]
    if not new and not gone and not bound and not others:
        return None
    title = [
        *_named([row for row in new if _red(row, matrix)], "red"),
        *_named([row for row in new if not _red(row, matrix)], "new"),
        *([f"{_counted(len(gone), 'pair')} no longer green"] if gone else []),
        *([f"{_counted(len(bound), 'pair')} now with launch settings only"] if bound else []),
    ]
    # An issue is opened once for a title, so it has to tell all that may be news.
    lines = [_short("; ".join(title) or others[0].message), ""]
    lines += [f"Compared with the catalogue of {known.date}.", ""]
    for row in new:
        lines += [
            f"## {TITLES[row.package]} {row.version}",
            "",
            *_row(row),
            *_pairs(row, matrix),
            "",
        ]
    if gone:
        lines += ["## Were green, and are not", "", *_first(gone), ""]
    if bound:
        heading = "## Were green, and now are with launch settings only"
        lines += [heading, "", *_first(bound), ""]
    if others:
        lines += ["## Red", "", *(f"- **{e.code}**: {e.message}" for e in others), ""]
    lines += ["`make validate` shows it; `make generate` takes it into the catalogue."]
    return "\n".join(lines) + "\n"


def _releases(known: Pairs, package: str) -> Mapping[str, str]:
    return known.vllm if package == "vllm" else known.lmcache


def _named(rows: Sequence[Row], word: str) -> Iterator[str]:
    names = [f"{TITLES[row.package]} {row.version}" for row in rows]
    if len(names) > NAMED_IN_TITLE:
        names = [*names[:NAMED_IN_TITLE], f"{len(names) - NAMED_IN_TITLE} more"]
    if names:
        yield f"{', '.join(names)}: {word}"


def _first(told: Sequence[str]) -> Iterator[str]:
    yield from (f"- {line}" for line in told[:LISTED])
    if len(told) > LISTED:
        yield f"- and {len(told) - LISTED} more"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


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


def _red(row: Row, matrix: Matrix) -> bool:
    """Whether a release can't be patched, or blends with nothing once it is."""
    mine = [pair for pair in matrix.pairs if pair[row.package] == row.version]
    return not row.ok or not any(pair["ok"] for pair in mine)


def _short(title: str) -> str:
    """One line within the limit of a title."""
    line = " ".join(title.split())
    return line if len(line) <= TITLE else f"{line[: TITLE - 3]}..."


def _pairs(row: Row, matrix: Matrix) -> Iterator[str]:
    mine = [pair for pair in matrix.pairs if pair[row.package] == row.version]
    other = other_than(row.package)
    green = [_star(pair, other) for pair in mine if pair["ok"]]
    told = f"{green[0]} to {green[-1]}" if len(green) > 3 else ", ".join(green)
    counted = f"- blends with {len(green)} of {len(mine)} releases of {TITLES[other]}"
    yield f"{counted}: {told}" if told else counted
    if mine and not green:
        last = mine[-1]
        yield f"- with {TITLES[other]} {last[other]} the letters {' '.join(last['after'])} stay"


def _star(pair: Mapping[str, Any], other: str) -> str:
    return f"{pair[other]}{' with launch settings' if pair['settings'] else ''}"
