"""The README's patch table, generated from what the patch modules declare."""

from __future__ import annotations

from .series import Member, Series

BEGIN = "<!-- patch table: made by `make generate` from the patches' metadata -->"
END = "<!-- end of the patch table -->"


def with_patch_table(readme: str, series: Series) -> str:
    """The README's text with the table between its two marks made anew.

    Raises:
        ValueError: where the marks are not both there once.
    """
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError("the README must have each mark of the patch table once")
    head, rest = readme.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{patch_table(series)}{END}{tail}"


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
