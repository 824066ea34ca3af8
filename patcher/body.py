"""The body of an answer, read within limits: a server can send without end, or a byte an hour."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

GRACE_S = 60.0
SLOWEST = 4 * 1024
"""After the grace an answer has to have come faster than that on the whole, in bytes a second."""
_PIECE = 1 << 20


class TooLongError(ValueError):
    """An answer has more bytes than it may have."""


def read(raw: Any, most: int) -> bytes:
    """All bytes of a response of urllib3, its content coding undone; raises as :func:`pieces`."""
    return b"".join(pieces(raw, most))


def pieces(raw: Any, most: int) -> Iterator[bytes]:
    """The same in pieces, as they come.

    Raises:
        TooLongError: there are more than ``most``.
        TimeoutError: they come too slowly; the timeout of the connection is for single bytes.
        urllib3.exceptions.HTTPError: the connection breaks, or the coding is not what it says.
    """
    begun = time.monotonic()
    got = 0
    # What has come in the meantime, however little, tells how slow it is; urllib3 1 can't.
    piece_of = getattr(raw, "read1", raw.read)
    while piece := piece_of(min(_PIECE, most + 1 - got), decode_content=True):
        got += len(piece)
        if got > most:
            raise TooLongError(f"more than {most} bytes")
        if time.monotonic() - begun > GRACE_S + got / SLOWEST:
            raise TimeoutError
        yield piece
