"""The README's tables: patches and letters by what they declare, pairs by the catalogue."""

from __future__ import annotations

import re

from packaging.version import Version

from .compat import MEANINGS
from .pairs import Pairs, table
from .patch import Patch
from .series import Member, Series

BEGIN = "<!-- patch table: made by `make generate` from the patches' metadata -->"
END = "<!-- end of the patch table -->"
PAIRS_BEGIN = "<!-- pair table: made by `make generate` from the catalogue -->"
PAIRS_END = "<!-- end of the pair table -->"
LETTERS_BEGIN = "<!-- letter table: made by `make generate` from the patches' metadata -->"
LETTERS_END = "<!-- end of the letter table -->"
ABOUT_PAIRS = """\
The table is about the sources. Where the released wheels of a pair don't go together as they are,
the notes of `kvpatch validate` say so: LMCache's extension is built for another minor release of
torch (it fails at its import, or falls back to slow Python), or pip can't meet the pins of both.
Such a pair needs another build of LMCache, or `--no-deps`. Letter S on a pair that blends strikes
only with GDS (LMCache's GPUDirect storage); without GDS nothing fails.
"""
"""What the table of pairs does not tell by itself."""
SHOWN = (Version("0.32.0"), Version("0.5.6"))
"""The vLLM and the LMCache of the example of ``apply``."""
_CATALOGUE = re.compile(r"(?m)^( {4}catalogue   ).*$")
UNPATCHED = {
    "X": "no patch: refused, with the nearest pair that works",
    "C": "otherwise refused, with the nearest pair that works",
    "V": "no patch: launch settings, which `compat` and the profiles give",
}
"""What becomes of a letter that no patch cures, or of what patches leave of it."""


def with_tables(readme: str, series: Series) -> str:
    """The README's text with both tables between their marks made anew.

    Raises:
        ValueError: where the marks of a table are not both there once.
    """
    made = _between(readme, BEGIN, END, patch_table(series))
    return _between(made, LETTERS_BEGIN, LETTERS_END, letter_table(series))


def with_pair_table(readme: str, pairs: Pairs) -> str:
    """The README's text with the table of pairs between its two marks made anew.

    So is what the example of ``apply`` says that the catalogue knows of its pair.

    Raises:
        ValueError: where the marks, or that line, are not there once.
    """
    text = f"\nAs validated on {pairs.date}.\n\n{table(pairs)}\n{ABOUT_PAIRS}"
    standing = pairs.standing(*SHOWN)
    told, count = _CATALOGUE.subn(lambda found: found[1] + standing, readme)
    if count != 1:
        raise ValueError("the README must show what apply says of the catalogue once")
    return _between(told, PAIRS_BEGIN, PAIRS_END, text)


def patch_table(series: Series) -> str:
    """A Markdown table with a row a patch."""
    rows = ["| patch | for | why | how | until |", "|---|---|---|---|---|"]
    rows += [_row(member) for member in series.members]
    return "\n".join(rows) + "\n"


def letter_table(series: Series) -> str:
    """A Markdown table with a row a letter: what fails, from which release on it is cured, proof.

    Raises:
        ValueError: where a letter has neither a patch nor a word on why not.
    """
    rows = ["| letter | what fails | cured by | proved by |", "|---|---|---|---|"]
    for letter, meaning in MEANINGS.items():
        cures = [m.patch for m in series.members if letter in m.patch.cures]
        if not cures and letter not in UNPATCHED:
            raise ValueError(f"nothing says what becomes of {letter}")
        rest = [UNPATCHED[letter]] if letter in UNPATCHED else []
        by = "<br>".join([*map(_range, cures), *rest])
        proofs = "<br>".join(f"{patch.id}: {patch.proved}" for patch in cures)
        rows.append(f"| {letter} | {meaning} | {by} | {proofs} |")
    return "\n".join(rows) + "\n"


def _between(text: str, begin: str, end: str, table: str) -> str:
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the README must have each mark of a table once: {begin}")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{table}{end}{tail}"


def _range(patch: Patch) -> str:
    condition = f", {patch.when.sentence}" if patch.when else ""
    return f"{patch.id}: {patch.distribution} `{patch.versions}`{condition}"


def _row(member: Member) -> str:
    patch = member.patch
    title = f"[{patch.id}]({patch.upstream}) {member.title}"
    cells = (title, f"{patch.distribution} `{patch.versions}`", patch.why, patch.how)
    return "| " + " | ".join((*cells, patch.retire_when)) + " |"
