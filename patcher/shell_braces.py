"""Braces of a word, of which the shell makes several: ``a{b,c}`` is ``ab ac``."""

from __future__ import annotations

from collections.abc import Sequence

from .shell_words import Piece, Word

_MOST = 1000
"""Words that one may become."""
_LONGEST = 20_000
_DEEPEST = 50


def braces(word: Word) -> list[Word]:
    """The words that a shell makes of one before all else; itself where that can't be told.

    Lists are put in; what a range such as ``{1..3}`` becomes is not told.
    """
    if word.items is not None or not any(_active(one) and "{" in one.text for one in word.pieces):
        return [word]
    units = [
        unit for one in word.pieces for unit in (map(Piece, one.text) if _active(one) else [one])
    ]
    if len(units) > _LONGEST:
        return [word]
    found = _expanded(units, _DEEPEST)
    return [word] if found is None else [Word(_pieces(one), word.line) for one in found]


def _active(one: Piece) -> bool:
    return not one.quoted and not one.expands


def _is(unit: Piece, text: str) -> bool:
    return _active(unit) and unit.text == text


def _expanded(units: Sequence[Piece], deepest: int) -> list[list[Piece]] | None:
    """All that the lists of a word come to; None for too many, or too deep ones."""
    if not deepest:
        return None
    ends = _ends(units)
    done: list[list[Piece]] = [[]]
    at = 0
    while at < len(units):
        options: list[list[Piece]] = [[units[at]]]
        following = at + 1
        if at in ends and len(ends[at]) > 1:
            options, start = [], at + 1
            for end in ends[at]:
                inner = _expanded(units[start:end], deepest - 1)
                if inner is None:
                    return None
                options += inner
                start = end + 1
            following = start
        if len(done) * len(options) > _MOST:
            return None
        done = [[*one, *more] for one in done for more in options]
        at = following
    return done


def _ends(units: Sequence[Piece]) -> dict[int, list[int]]:
    """Of each brace that is closed, the commas between and its end."""
    found: dict[int, list[int]] = {}
    opened: list[tuple[int, list[int]]] = []
    for place, unit in enumerate(units):
        if _is(unit, "{"):
            opened.append((place, []))
        elif _is(unit, ",") and opened:
            opened[-1][1].append(place)
        elif _is(unit, "}") and opened:
            start, commas = opened.pop()
            found[start] = [*commas, place]
    return found


def _pieces(units: Sequence[Piece]) -> tuple[Piece, ...]:
    """Letters put together again."""
    found: list[Piece] = []
    for one in units:
        if _active(one) and found and _active(found[-1]):
            found[-1] = Piece(found[-1].text + one.text)
        else:
            found.append(one)
    return tuple(found)
