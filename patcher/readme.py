"""The README's tables: the patches by what they declare, and the pairs by the catalogue."""

from __future__ import annotations

from .pairs import Pairs, table
from .series import Member, Series

BEGIN = "<!-- patch table: made by `make generate` from the patches' metadata -->"
END = "<!-- end of the patch table -->"
PAIRS_BEGIN = "<!-- pair table: made by `make generate` from the catalogue -->"
PAIRS_END = "<!-- end of the pair table -->"


def with_patch_table(readme: str, series: Series) -> str:
    """The README's text with the patch table between its two marks made anew.

    Raises:
        ValueError: where the marks are not both there once.
    """
    return _between(readme, BEGIN, patch_table(series), END)


def with_pair_table(readme: str, pairs: Pairs) -> str:
    """The README's text with the table of pairs between its two marks made anew.

    Raises:
        ValueError: where the marks are not both there once.
    """
    return _between(
        readme, PAIRS_BEGIN, f"\nAs validated on {pairs.date}.\n\n{table(pairs)}", PAIRS_END
    )


def _between(readme: str, begin: str, text: str, end: str) -> str:
    if readme.count(begin) != 1 or readme.count(end) != 1:
        raise ValueError(f"the README must have each mark of the table once: {begin}")
    head, rest = readme.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{text}{end}{tail}"


def patch_table(series: Series) -> str:
    """A Markdown table with a row a patch."""
    rows = ["| patch | for | why | how | until |", "|---|---|---|---|---|"]
    rows += [_row(member) for member in series.members]
    return "\n".join(rows) + "\n"


def _row(member: Member) -> str:
    patch = member.patch
    title = f"[{patch.id}]({patch.upstream}) {member.title}"
    cells = (title, f"{patch.distribution} `{patch.versions}`", patch.why, patch.how)
    return "| " + " | ".join((*cells, patch.retire_when)) + " |"
