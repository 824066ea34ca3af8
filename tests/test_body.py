"""Bodies that end, that don't, and that drip."""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass, field

import pytest
import urllib3
from kvpatch import body


@dataclass
class Dripping:
    """A body that never ends, some bytes at a time, each taking so many seconds of the clock."""

    clock: list[float]
    seconds: float
    size: int = 1000
    given: list[int] = field(default_factory=list)

    def read1(self, most: int, *, decode_content: bool) -> bytes:
        assert decode_content
        self.clock[0] += self.seconds
        self.given.append(min(most, self.size))
        return bytes(self.given[-1])

    read = read1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(body.time, "monotonic", lambda: now[0])
    return now


def response(data: bytes, **headers: str) -> urllib3.HTTPResponse:
    return urllib3.HTTPResponse(io.BytesIO(data), headers=headers, preload_content=False)


@pytest.mark.parametrize("size", [0, 1, 99_999, 100_000])
def test_a_body_within_the_limit_comes_whole(size: int) -> None:
    assert body.read(response(bytes(size)), 100_000) == bytes(size)


def test_a_coding_is_undone() -> None:
    packed = response(gzip.compress(b"text" * 1000), **{"content-encoding": "gzip"})
    assert body.read(packed, 4000) == b"text" * 1000


def test_what_unpacks_to_more_than_the_limit_is_refused() -> None:
    bomb = response(gzip.compress(bytes(1_000_000)), **{"content-encoding": "gzip"})
    with pytest.raises(body.TooLongError):
        body.read(bomb, 4000)


def test_a_body_without_end_is_read_to_one_byte_more_than_it_may_have(clock: list[float]) -> None:
    endless = Dripping(clock, 0.001)
    with pytest.raises(body.TooLongError):
        body.read(endless, 50_500)
    assert sum(endless.given) == 50_501


@pytest.mark.parametrize(("seconds", "size"), [(19.0, 1), (1.0, 1), (19.0, 50_000)])
def test_what_comes_too_slowly_is_given_up_after_the_grace(
    clock: list[float], seconds: float, size: int
) -> None:
    dripping = Dripping(clock, seconds, size)
    with pytest.raises(TimeoutError):
        body.read(dripping, 10_000_000)
    spent = clock[0] - 100
    assert body.GRACE_S < spent <= body.GRACE_S + sum(dripping.given) / body.SLOWEST + seconds


def test_what_comes_slowly_but_fast_enough_is_waited_for(clock: list[float]) -> None:
    with pytest.raises(body.TooLongError):
        body.read(Dripping(clock, 10.0, 50_000), 10_000_000)
    assert clock[0] > 1000
