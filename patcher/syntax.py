"""The syntax tree of a Python file, with one word for each way in which there is none."""

from __future__ import annotations

import ast

_ROOM, _SHARE = 1 << 24, 100
"""Bytes that any tree takes at most, and that it takes for each byte of the source."""


def syntax_tree(content: bytes) -> ast.Module:
    """The tree of a file by this interpreter's grammar.

    Raises:
        SyntaxError: for what is not Python, or nested too deeply for the parser.
        MemoryError: where there is not enough.
    """
    try:
        return ast.parse(content)
    except MemoryError:
        # The parser says so of too deep a nesting, too: see whether a tree would have had room.
        bytearray(_ROOM + _SHARE * len(content))
        raise SyntaxError("it is nested too deeply") from None
    except (ValueError, RecursionError) as error:
        raise SyntaxError(str(error) or "it is nested too deeply") from None
