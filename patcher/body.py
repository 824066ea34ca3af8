"""The body of an answer, read within limits: a server can send without end, or a byte an hour."""

from __future__ import annotations

import time
from typing import Any

GRACE_S = 60.0
SLOWEST = 4 * 1024
"""After the grace an answer has to have come faster than that on the whole, in bytes a second."""


class TooLongError(ValueError):
    """An answer has more bytes than it may have."""


def read(raw: Any, most: int) -> bytes:
    """All bytes of a response of urllib3, its content coding undone.

    Raises:
        TooLongError: there are more than ``most``.
        TimeoutError: they come too slowly; the timeout of the connection is for single bytes.
        urllib3.exceptions.HTTPError: the connection breaks, or the coding is not what it says.
    """
    begun = time.monotonic()
    data = bytearray()
    # What has come in the meantime, however little, tells how slow it is; urllib3 1 can't.
    piece_of = getattr(raw, "read1", raw.read)
    while piece := piece_of(most + 1 - len(data), decode_content=True):
        data += piece
        if len(data) > most:
            raise TooLongError(f"more than {most} bytes")
        if time.monotonic() - begun > GRACE_S + len(data) / SLOWEST:
            raise TimeoutError
    return bytes(data)
